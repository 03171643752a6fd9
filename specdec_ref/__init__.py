"""specdec_ref: an exact, fast and readable speculative decoding engine.

Names are imported at first use, so that the arithmetic (`specdec_ref.arithmetic`) works without torch.
"""

# ruff: noqa: I001 - in the order in which a reader meets them
from typing import TYPE_CHECKING

from specdec_ref.lazy import attach

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specdec_ref.models import load_model as load_model
    from specdec_ref.engine import SpeculativeEngine as SpeculativeEngine, Generation as Generation
    from specdec_ref.draft import NGramDrafter as NGramDrafter, DraftModelDrafter as DraftModelDrafter
    from specdec_ref.draft import EagleDrafter as EagleDrafter, SuffixDrafter as SuffixDrafter
    from specdec_ref.draft import EarlyExitDrafter as EarlyExitDrafter, CombinedDrafter as CombinedDrafter
    from specdec_ref.draft import BlockDrafter as BlockDrafter, MedusaDrafter as MedusaDrafter
    from specdec_ref.engine.control import Controller as Controller
    from specdec_ref.cache import PagedKVPool as PagedKVPool

    # For drafters, rules and measurements of one's own
    from specdec_ref.interfaces import Proposal as Proposal, Verdict as Verdict
    from specdec_ref.sampling import RandomSource as RandomSource
    from specdec_ref.engine.prompt import encode_prompt as encode_prompt
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
