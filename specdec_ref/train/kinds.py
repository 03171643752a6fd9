"""The kinds of drafts that can be trained: how each is made before training, and what its model card calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from specdec_ref.models.llama import Llama
from specdec_ref.train.block import BlockTraining, new_block
from specdec_ref.train.draft_lm import DraftLMTraining, new_draft_lm
from specdec_ref.train.eagle import EagleTraining, new_head
from specdec_ref.train.loop import Training
from specdec_ref.train.medusa import MedusaTraining, new_medusa


@dataclass(frozen=True)
class DraftOptions:
    """What is trained.

    layers: those that are kept ("lm"), or three or so whose states are read ("eagle", "block"); None is a choice of
    ours. n_tokens: how many of the vocabulary are drafted (all but "lm"). n_places: tokens per round. width: of the
    draft's feed-forward part, in multiples of the target's; None is 2 for "eagle", 1 for "block". depth: layers, and
    rank: of the Markov bias ("block"). start: an earlier draft of the same sizes to begin from.
    """

    kind: str
    layers: tuple[int, ...] | None = None
    n_tokens: int = 8192
    n_places: int = 5
    width: float | None = None
    depth: int = 1
    rank: int = 128
    start: Path | None = None


def _eagle(draft: DraftOptions, model: Llama, plain: Callable[[], Llama], tokens: Tensor) -> Training:
    return EagleTraining(new_head(model, tokens, draft.layers, draft.width or 2.0), draft.n_places)


def _block(draft: DraftOptions, model: Llama, plain: Callable[[], Llama], tokens: Tensor) -> Training:
    width = draft.width or 1.0
    return BlockTraining(new_block(model, tokens, draft.n_places, draft.layers, width, draft.depth, draft.rank))


def _medusa(draft: DraftOptions, model: Llama, plain: Callable[[], Llama], tokens: Tensor) -> Training:
    return MedusaTraining(new_medusa(model, tokens, draft.n_places))


def _lm(draft: DraftOptions, model: Llama, plain: Callable[[], Llama], tokens: Tensor) -> Training:
    n = model.config.n_layers
    return DraftLMTraining(new_draft_lm(plain(), draft.layers or (0, 1, n - 2, n - 1)), draft.n_places)


class Kind(NamedTuple):
    """A kind of draft. notice: what more its NOTICE says of where the weights come from."""

    name: str
    make: Callable[[DraftOptions, Llama, Callable[[], Llama], Tensor], Training]
    notice: str = ""


KINDS = {
    "eagle": Kind("EAGLE-style head", _eagle),
    "block": Kind("block drafter", _block),
    "medusa": Kind("Medusa heads", _medusa),
    "lm": Kind("draft language model", _lm, ", and begun from its layers"),
}


def make_training(draft: DraftOptions, model: Llama, plain: Callable[[], Llama], tokens: Tensor) -> Training:
    """The draft before training. plain: gives the target in float32, whose matrices can be read.

    Raises ValueError for a kind that there is not.
    """
    if draft.kind not in KINDS:
        raise ValueError(f"no kind of draft {draft.kind!r}: give one of {', '.join(KINDS)}")
    return KINDS[draft.kind].make(draft, model, plain, tokens)
