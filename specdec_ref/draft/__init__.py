"""Who proposes: drafters behind one interface."""

from specdec_ref.draft.base import Drafter
from specdec_ref.draft.model import DraftModelDrafter
from specdec_ref.draft.ngram import NGramDrafter

__all__ = ["DraftModelDrafter", "Drafter", "NGramDrafter"]
