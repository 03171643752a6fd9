"""Drafters: what proposes tokens, behind one interface."""

from specdec_ref.draft.combined import CombinedDrafter
from specdec_ref.draft.eagle import EagleDrafter
from specdec_ref.draft.early_exit import EarlyExitDrafter
from specdec_ref.draft.model import DraftModelDrafter
from specdec_ref.draft.ngram import NGramDrafter
from specdec_ref.draft.suffix import SuffixDrafter
from specdec_ref.interfaces import Drafter

__all__ = [
    "CombinedDrafter",
    "DraftModelDrafter",
    "Drafter",
    "EagleDrafter",
    "EarlyExitDrafter",
    "NGramDrafter",
    "SuffixDrafter",
]
