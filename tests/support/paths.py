"""Where the project's files lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = [ROOT / "specdec_ref", ROOT / "specdec_course"]
