"""Drafters: what proposes tokens, behind one interface."""

from specdec_ref.draft.block import BlockDrafter
from specdec_ref.draft.combined import CombinedDrafter
from specdec_ref.draft.eagle import EagleDrafter
from specdec_ref.draft.early_exit import EarlyExitDrafter
from specdec_ref.draft.medusa import MedusaDrafter
from specdec_ref.draft.model import DraftModelDrafter
from specdec_ref.draft.ngram import NGramDrafter
from specdec_ref.draft.suffix import SuffixDrafter
from specdec_ref.draft.tree import DynamicTreeDrafter, TreeDrafter
from specdec_ref.interfaces import Drafter

__all__ = [
    "BlockDrafter",
    "CombinedDrafter",
    "DraftModelDrafter",
    "Drafter",
    "DynamicTreeDrafter",
    "EagleDrafter",
    "EarlyExitDrafter",
    "MedusaDrafter",
    "NGramDrafter",
    "SuffixDrafter",
    "TreeDrafter",
]
