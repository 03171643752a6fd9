"""Batches for training: examples padded to one length, the target's states at every position, and anchors.

An *anchor* t is where a round may begin: the target has taken in tokens 0..t, token t + 1 is pending. Place k of the
draft is then token t + 1 + k, and what the draft should have said there is the head on the target's state t + k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.draft.eagle_head import output_rows
from specdec_ref.models.llama import Llama
from specdec_ref.train.shards import Example
from specdec_ref.train.states import StateStore

POOL = 16
"""Batches that are sorted by length together, so that little is padded."""


@dataclass(frozen=True)
class Batch:
    """Examples side by side.

    ids: `[b, s]`, padded with 0; lengths, n_prompt: `[b]`.
    states: of each layer that was asked for, `[b, s, hidden]`; last: `[b, s, hidden]`, what the target's head is given.
    anchors: `[b, a]`, positions t; valid: `[b, a]`, False where an example has fewer.
    """

    ids: Tensor
    lengths: Tensor
    n_prompt: Tensor
    states: tuple[Tensor, ...]
    last: Tensor
    anchors: Tensor
    valid: Tensor

    def places(self, n_places: int) -> tuple[Tensor, Tensor]:
        """For each anchor and each place k = 1..n: the position t + k whose state gives p, and whether its token
        exists; `[b, a, n]` both. A position outside is clamped."""
        at = self.anchors[..., None] + torch.arange(1, n_places + 1, device=self.ids.device)
        exists = (at + 1 < self.lengths[:, None, None]) & self.valid[..., None]
        return at.clamp(max=self.ids.shape[1] - 2), exists

    def tokens(self, at: Tensor) -> Tensor:
        """The tokens after the positions `at` `[b, ...]`, in the same shape."""
        return self.ids.gather(1, (at + 1).flatten(1)).view_as(at)


class Teacher:
    """The target, run over whole examples: its states, and the distributions that follow from them.

    layers: whose states a draft reads. vocabulary: `[n]`, the ids that are drafted; None is all. kept: a folder for
    states, so that an example's second pass is read from disk; None runs every pass.
    """

    def __init__(
        self, model: Llama, layers: Sequence[int] = (), vocabulary: Tensor | None = None, kept: Path | None = None
    ) -> None:
        self.model, self.layers = model, tuple(layers)
        self.vocabulary = torch.arange(model.vocab_size) if vocabulary is None else vocabulary
        self.rows = output_rows(model, self.vocabulary)  # [n, hidden], the head's rows of these tokens
        self.read = (*self.layers, model.config.n_layers)
        self.store = None if kept is None else StateStore(kept, model, self.read)

    @torch.no_grad()
    def batch(self, examples: Sequence[Example], max_anchors: int | None = None, rng: Random | None = None) -> Batch:
        """`examples` with their states. max_anchors: so many of all are drawn by `rng`; None takes every one."""
        lengths = torch.tensor([len(e.ids) for e in examples])
        width = int(lengths.max())
        ids = torch.zeros(len(examples), width, dtype=torch.long)
        taps = [torch.zeros(len(examples), width, self.model.config.hidden_size) for _ in range(len(self.layers) + 1)]
        for row, example in enumerate(examples):
            n = len(example.ids)
            ids[row, :n] = torch.tensor(example.ids)
            for tap, state in zip(taps, self._states(example.ids[:-1]).unbind(1), strict=True):
                tap[row, : n - 1] = state
        anchors, valid = _anchors(examples, max_anchors, rng)
        n_prompt = torch.tensor([e.n_prompt for e in examples])
        return Batch(ids, lengths, n_prompt, tuple(taps[:-1]), taps[-1], anchors, valid)

    def _states(self, ids: Sequence[int]) -> Tensor:
        """`[n, layers, hidden]` of a text's n tokens, the states that the head is given last."""
        if self.store is not None and (kept := self.store.read(ids)) is not None:
            return kept
        tokens = torch.tensor(ids, device=self.model.device)
        found = self.model.forward_pass(tokens, self.model.new_cache(len(ids)), slice(0), layers=self.read)
        states = torch.stack(found.features, 1).cpu()
        if self.store is not None:
            self.store.write(ids, states)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """The head's answer to `states` `[..., hidden]`, the target's or a draft's: `[..., n]` over the vocabulary."""
        return F.linear(states.to(self.rows.dtype), self.rows)

    @torch.no_grad()
    def log_probs_of_text(self, batch: Batch, temperature: float) -> Tensor:
        """log p of each token given those before it, over the whole vocabulary: `[b, s - 1]`, for token i + 1 at i."""
        out = torch.zeros(batch.ids.shape[0], batch.ids.shape[1] - 1)
        for row, (n, n_prompt) in enumerate(zip(batch.lengths.tolist(), batch.n_prompt.tolist(), strict=True)):
            part = slice(n_prompt - 1, n - 1)
            logits = self.model.head(batch.last[row, part].to(self.model.dtype)).float() / temperature
            out[row, part] = logits.log_softmax(-1).gather(1, batch.ids[row, n_prompt:n, None])[:, 0]
        return out


def pick(states: Tensor, positions: Tensor) -> Tensor:
    """Rows `[b, a, width]` of `states` `[b, s, width]` at `positions` `[b, a]`."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def _anchors(examples: Sequence[Example], most: int | None, rng: Random | None) -> tuple[Tensor, Tensor]:
    """Anchors of each example, `[b, a]`, and which are real. The first has the prompt's last token pending."""
    every = [list(range(e.n_prompt - 2, len(e.ids) - 2)) for e in examples]
    if most is not None:
        share = max(1, most // len(examples))
        every = [sorted((rng or Random()).sample(each, min(share, len(each)))) for each in every]
    widest = max(map(len, every))
    anchors = torch.tensor([each + [0] * (widest - len(each)) for each in every])
    valid = torch.tensor([[i < len(each) for i in range(widest)] for each in every])
    return anchors, valid


def order(examples: Sequence[Example], size: int, seed: int, epoch: int) -> Iterator[list[Example]]:
    """All examples once, in batches of `size` of similar length; an order of its own for each epoch."""
    rng = Random(f"{seed} epoch {epoch}")
    shuffled = rng.sample(list(examples), len(examples))
    for start in range(0, len(shuffled), size * POOL):
        pool = sorted(shuffled[start : start + size * POOL], key=lambda e: len(e.ids))
        batches = [pool[i : i + size] for i in range(0, len(pool), size)]
        yield from rng.sample(batches, len(batches))


def usable(examples: Sequence[Example], longest: int) -> list[Example]:
    """Examples with a token before the pending one, at least two of answer, and at most `longest` in all."""
    return [e for e in examples if e.n_prompt >= 2 and e.n_answer >= 2 and len(e.ids) <= longest]


def frequent_tokens(examples: Sequence[Example], vocab_size: int, n: int, always: Sequence[int]) -> Tensor:
    """The `n` tokens to draft from, rising: those that came most often in prompts and answers, and `always`.

    What came never is taken in the order of its id: a tokenizer learns frequent tokens first, so the low ids are those
    of broad text.
    """
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for e in examples:
        counts += torch.bincount(torch.tensor(e.ids), minlength=vocab_size)
    counts -= torch.arange(vocab_size) / vocab_size  # ties by id
    counts[torch.tensor(list(always), dtype=torch.long)] = torch.inf
    return counts.topk(min(n, vocab_size)).indices.sort().values
