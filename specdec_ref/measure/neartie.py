"""Near-ties: whether rounding or a fault makes two greedy outputs differ.

In exact arithmetic greedy speculation gives the same tokens as plain decoding. In floating point a pass over several
tokens may add the same numbers in a different order from passes over one token, so logits move by the *rounding scale*
of the pass, and where the two best tokens are closer than that, either may win. Such a flip is no fault; any other
difference is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.interfaces import CausalLM

WIDTHS = (1, 2, 4, 8)
"""Tokens per pass, besides the pass over everything: the shapes that plain decoding and verification use."""

SAFETY = 2.0
"""How much larger than observed the rounding of a logit may be: a handful of passes doesn't show the worst case."""


@dataclass(frozen=True)
class Comparison:
    """What `compare_greedy` found.

    kind: "same"; "near-tie", a flip that rounding explains; or "error".
    position: index in the output of the first difference, None where there is none.
    tokens: what either output has there, None where it has ended.
    gap: how far the worse of the two tokens lies below the best logit of the position.
    rounding: how much the logits of the leading tokens move between passes of different shapes.
    """

    kind: str
    position: int | None = None
    tokens: tuple[int | None, int | None] = (None, None)
    gap: float = 0.0
    rounding: float = 0.0

    def __str__(self) -> str:
        if self.kind == "same":
            return "same tokens"
        if None in self.tokens:
            return f"error: one output ends at token {self.position}, the other goes on"
        verdict = "a near-tie" if self.kind == "near-tie" else "an error, rounding does not explain it"
        a, b = self.tokens
        at = f"token {self.position} is {a} or {b}"
        return f"{at}: logit gap {self.gap:.3g}, rounding scale {self.rounding:.3g}: {verdict}"


def compare_greedy(a: Sequence[int], b: Sequence[int], model: CausalLM, prompt: Any, leading: int = 8) -> Comparison:
    """Find the first difference of two greedy outputs `a` and `b` (new tokens) of `model`, and what explains it.

    The logits of that position are computed again, in one pass and in passes of `WIDTHS` tokens over the same context.
    The rounding scale is the largest change of a leading logit, and at least one unit in the last place of the best.
    It is a near-tie if both tokens lie within 2 `SAFETY` times that scale of the best one (each of two logits may
    move). What comes after a flip continues a different text and says nothing. Costs a few plain generations up to the
    position.
    """
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if position == len(a) == len(b):
        return Comparison("same")
    if position in (len(a), len(b)):
        ended = position == len(a)
        return Comparison("error", position, (None, b[position]) if ended else (a[position], None))
    tokens = (a[position], b[position])
    rows = logits_by_shape(model, encode_prompt(prompt, model), list(a[:position]))
    ulp = torch.finfo(rows.dtype).eps * rows[0].max().abs().item()
    rows = rows.double()
    best = rows[0].topk(min(leading, rows.shape[1])).indices
    looked_at = torch.cat([best, torch.tensor(tokens, device=best.device)]).unique()
    rounding = max(ulp, (rows[:, looked_at] - rows[0, looked_at]).abs().max().item())
    gap = (rows.amax(1) - rows[:, list(tokens)].amin(1)).min().item()
    kind = "near-tie" if gap <= 2 * SAFETY * rounding else "error"
    return Comparison(kind, position, tokens, gap, rounding)


@torch.inference_mode()
def logits_by_shape(model: CausalLM, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """The logits after prompt and output, `[shapes, vocab]`: from one pass over all, then from passes of WIDTHS tokens.

    As in the engine, all of the prompt but its last token is one pass. What follows is cut into passes of one width, so
    that keys and values in the cache come from such passes, too.
    """
    tokens = [*prompt, *output]
    rows = []
    for width in (len(tokens), *WIDTHS):
        cache = model.new_cache(len(tokens))
        start = 0 if width == len(tokens) else len(prompt) - 1
        if start:
            model.forward(torch.tensor(tokens[:start], device=model.device), cache, slice(0))
        for part in torch.tensor(tokens[start:], device=model.device).split(width):
            last = model.forward(part, cache, slice(len(part) - 1, None))
        rows.append(last[0])
    return torch.stack(rows)
