import sys

from specdec_ref.cli import main

sys.exit(main())
