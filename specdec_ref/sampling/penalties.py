"""What a row's own context changes in its logits: penalties, biases, forbidden words.

Each function takes the logits of one row, `[vocab]`, and the tokens that this row continues, `[n]`; it returns new
logits. Context ids outside a smaller draft vocabulary have no logit there and change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

Processor = Callable[[Tensor, Tensor], Tensor]
"""A transformers logits processor: (input_ids `[1, n]`, scores `[1, vocab]`) -> scores."""


def penalise_repetition(row: Tensor, context: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens in `context` by `penalty`, multiply negative ones (Keskar et al. 2019, CTRL).

    As in transformers and vLLM the context is prompt and output, and a token counts once however often it came.
    """
    seen = context[context < len(row)]
    score = row[seen]
    return row.scatter(0, seen, torch.where(score < 0, score * penalty, score / penalty))


def penalise_use(row: Tensor, output: Tensor, presence: float, frequency: float) -> Tensor:
    """Subtract `presence` once, and `frequency` for each occurrence, from the tokens in `output`.

    The meaning of the OpenAI API and of vLLM: `output` holds generated tokens only, never the prompt.
    """
    counts = torch.bincount(output[output < len(row)], minlength=len(row)).to(row)
    return row - frequency * counts - presence * (counts > 0).to(row)


def bias_sequences(row: Tensor, context: Tensor, biases: Mapping[tuple[int, ...], float]) -> Tensor:
    """Add each bias to its sequence's last token, where `context` ends with the tokens before it."""
    recent = tuple(context[-max(map(len, biases)) :].tolist())
    hits = [
        (last, bias)
        for (*before, last), bias in biases.items()
        if last < len(row) and (not before or recent[-len(before) :] == tuple(before))
    ]
    if not hits:
        return row
    ids, values = zip(*hits, strict=True)
    return row.index_add(0, torch.tensor(ids, device=row.device), row.new_tensor(values))


def forbid(row: Tensor, ids: Collection[int]) -> Tensor:
    """-inf for `ids`."""
    inside = [i for i in ids if i < len(row)]
    return row.index_fill(0, torch.tensor(inside, dtype=torch.long, device=row.device), -math.inf)


def process(row: Tensor, context: Tensor, processor: Processor, vocab_size: int) -> Tensor:
    """The row after a processor of the user's own.

    It always sees `vocab_size` scores, the target's: a smaller draft vocabulary is filled up with -inf.
    Raises ValueError where it returns anything but scores of the same shape.
    """
    scores = row.new_full((1, max(vocab_size, len(row))), -math.inf)
    scores[0, : len(row)] = row
    result = processor(context[None].clone(), scores)  # later rows of a block read the same context
    if not isinstance(result, Tensor) or result.shape != scores.shape:
        what = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"{processor!r} returned {what}: a processor returns scores of shape {list(scores.shape)}")
    return result[0, : len(row)].to(row)
