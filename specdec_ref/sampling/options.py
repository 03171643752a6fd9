"""From logits to the distribution a token is drawn from, and the one source of randomness.

Everything that changes a distribution happens here, for target and draft alike: a rule that compares p with q
needs both *after* every filter. What a token's own probability decides is in `filters`, what the context decides in
`penalties`; here they are put in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from specdec_ref.sampling.filters import keep_min_p, keep_top_k, keep_top_p, keep_typical
from specdec_ref.sampling.penalties import Processor, bias_sequences, forbid, penalise_repetition, penalise_use, process


def _number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _share(value: Any) -> bool:
    return value is None or (_number(value) and 0 < value <= 1)


def _words(value: Any) -> bool:
    return all(len(word) > 0 and all(map(_count, word)) for word in value)


def _as_tuples(bias: Mapping[Any, float]) -> dict[tuple[int, ...], float]:
    return {ids if isinstance(ids, tuple) else (ids,): value for ids, value in bias.items()}


VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda t: _number(t) and (t == 0 or 1e-6 <= t <= 1e6), "0 for greedy, or a number 1e-6 to 1e6"),
    "top_k": (lambda k: k is None or _count(k), "a whole number of tokens, or None"),
    "top_p": (_share, "a number above 0 and up to 1, or None"),
    "min_p": (lambda p: p == 0 or _share(p), "a number from 0 to 1, or None"),
    "typical_p": (_share, "a number above 0 and up to 1, or None"),
    "logit_bias": (
        lambda bias: _words(_as_tuples(bias)) and all(_number(b) or b == -math.inf for b in bias.values()),
        "{token id, or tuple of ids: a finite number, or -inf to forbid}",
    ),
    "repetition_penalty": (lambda r: _number(r) and r > 0, "a number above 0; 1 is off"),
    "presence_penalty": (_number, "a finite number; 0 is off"),
    "frequency_penalty": (_number, "a finite number; 0 is off"),
    "bad_words": (_words, "sequences of token ids"),
    "min_new_tokens": (_count, "a whole number, 0 or more"),
    "processors": (lambda fs: all(map(callable, fs)), "functions (input_ids, scores) -> scores"),
}
"""For each option of `Sampling`: what it has to be, as a test and in words."""


class SamplingOptions(TypedDict, total=False):
    """The options of `Sampling`, as keyword arguments; bad_words may be texts where there is a tokenizer."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    logit_bias: Mapping[Any, float] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    bad_words: str | Sequence[str | Sequence[int]] | None
    min_new_tokens: int | None
    processors: Sequence[Processor] | None


@dataclass(frozen=True)
class Sampling:
    """What the user asked for; `probs` turns logits into the distribution that tokens are drawn from.

    The options mean what they mean in transformers and apply in its order, which is this one:

    logit_bias: {token id, or tuple of ids: number added to the logit}; a tuple biases its last token where the
        context ends with those before it. -inf forbids. (transformers: sequence_bias)
    repetition_penalty: above 1 makes the tokens of prompt and output less likely; 1 is off.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens in the *output*, once, or once for
        each time they came: OpenAI's and vLLM's meaning, transformers has neither.
    bad_words: sequences of token ids that never come. An end token alone is left out, as in transformers: to keep
        the output going there is min_new_tokens.
    min_new_tokens: no end token before the output has this many.
    processors: a transformers LogitsProcessorList, or functions (input_ids `[1, n]`, scores `[1, vocab]`) -> scores.
        They may look at nothing but their arguments: contexts come in any order, and not all become the output.
    temperature: 0 is greedy (one-hot at the argmax, lowest index on a tie), otherwise logits / temperature.
    top_k, top_p, min_p, typical_p: see `specdec_ref.sampling.filters`; None is off, greedy decoding does not ask them.

    `bound` sets what the engine knows: where the output begins, the target's vocabulary, its end tokens.
    Raises ValueError for a value that makes no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    logit_bias: Mapping[Any, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: Sequence[Sequence[int]] = ()
    min_new_tokens: int = 0
    processors: Sequence[Processor] = ()

    # What `bound` sets for one sequence.
    prompt_length: ClassVar[int] = 0
    vocab_size: ClassVar[int] = 0
    eos: ClassVar[frozenset[int]] = frozenset()

    def __post_init__(self) -> None:
        for name, (valid, wanted) in VALID.items():
            value = getattr(self, name)
            try:
                fits = valid(value)
            except (TypeError, AttributeError):  # of another kind altogether
                fits = False
            if not fits:
                raise ValueError(f"{name} is {value!r}: give {wanted}")
        object.__setattr__(self, "logit_bias", _as_tuples(self.logit_bias))
        object.__setattr__(self, "bad_words", tuple(map(tuple, self.bad_words)))
        object.__setattr__(self, "processors", tuple(self.processors))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def reads_context(self) -> bool:
        """Whether a row's distribution depends on more than its logits."""
        return bool(
            self.logit_bias
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.bad_words
            or self.min_new_tokens
            or self.processors
        )

    def bound(self, prompt_length: int, vocab_size: int, eos: Collection[int]) -> BoundSampling:
        """The same options for one sequence: where its output begins, the target's vocabulary, its end tokens.

        Raises ValueError where an option names a token outside the vocabulary.
        """
        for name in ("logit_bias", "bad_words"):
            for token in itertools.chain(*getattr(self, name)):
                if token >= vocab_size:
                    raise ValueError(f"{name} names token {token}: the vocabulary has ids 0 to {vocab_size - 1}")
        words = [word for word in self.bad_words if len(word) > 1 or word[0] not in eos]
        options = {f.name: getattr(self, f.name) for f in fields(Sampling)} | {"bad_words": words}
        return BoundSampling(**options, prompt_length=prompt_length, vocab_size=vocab_size, eos=frozenset(eos))

    def probs(self, logits: Tensor, tokens: Sequence[int] = ()) -> Tensor:
        """The distribution of the next token for each row of `logits` `[n, vocab]`: `[n, vocab]`, rows sum to one.

        `tokens` is the sequence that the last row continues; row i continues all but its last n - 1 - i tokens.
        A row whose tokens are all forbidden is 0 everywhere: an error only if something samples from it.
        Raises ValueError where a row holds NaN or no finite maximum: a broken model must not become a token.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        _check_finite(logits.amax(-1), "the model returned", "its weights or its precision are broken (try float32)")
        if self.reads_context:
            logits = self._in_context(logits, tokens)
        if self.greedy:
            best, argmax = logits.max(-1, keepdim=True)
            return torch.zeros_like(logits).scatter_(-1, argmax, (best > -math.inf).to(logits.dtype))
        p = torch.softmax(self._filtered(logits / self.temperature), -1)
        return p.nan_to_num(0.0) if self.reads_context else p

    def argmax(self, logits: Tensor) -> list[int]:
        """The token that greedy decoding takes in each row of `logits` `[n, vocab]`: what `probs` puts all mass on.

        Only where no option reads the context. Raises ValueError as `probs` does.
        """
        if logits.is_cpu:  # where NumPy finds the first of the largest several times as fast as PyTorch in bfloat16
            rows = logits if logits.dtype == torch.float64 else logits.float()
            index = torch.from_numpy(rows.numpy(force=True).argmax(-1))
            best = logits.gather(-1, index[:, None])[:, 0]
        else:
            best, index = logits.max(-1)
        _check_finite(best, "the model returned", "its weights or its precision are broken (try float32)")
        return index.tolist()

    def _in_context(self, logits: Tensor, tokens: Sequence[int]) -> Tensor:
        """Each row of `logits` `[n, vocab]` after what its own context changes."""
        n, vocab = logits.shape
        if len(tokens) < n:
            raise ValueError(f"{n} rows of logits continue {n} contexts, but tokens has {len(tokens)}")
        history = torch.tensor(tokens, dtype=torch.long, device=logits.device)
        logits = logits.clone()
        for i, end in enumerate(range(len(tokens) - n + 1, len(tokens) + 1)):
            logits[i] = self._row(logits[i], history[:end])
            # A draft after an end token or a forbidden one is never kept, and its context may be one that plain
            # decoding cannot reach: no processor has to bear it.
            if i + 1 < n and ((x := tokens[end]) in self.eos or x >= vocab or logits[i, x] == -math.inf):
                break
        best = logits.amax(-1)
        _check_finite(best[best != -math.inf], "processors or logit_bias made", "look at what they return")
        return logits

    def _row(self, row: Tensor, context: Tensor) -> Tensor:
        """The logits `[vocab]` that follow `context` `[n]`, in the order of transformers."""
        output = context[self.prompt_length :]
        if self.logit_bias:
            row = bias_sequences(row, context, self.logit_bias)
        if self.repetition_penalty != 1:
            row = penalise_repetition(row, context, self.repetition_penalty)
        if self.presence_penalty or self.frequency_penalty:
            row = penalise_use(row, output, self.presence_penalty, self.frequency_penalty)
        if self.bad_words:
            row = bias_sequences(row, context, dict.fromkeys(map(tuple, self.bad_words), -math.inf))
        if len(output) < self.min_new_tokens:
            row = forbid(row, self.eos)
        for processor in self.processors:
            row = process(row, context, processor, self.vocab_size)
        return row

    def _filtered(self, logits: Tensor) -> Tensor:
        """`logits` `[n, vocab]` with -inf for what truncation cuts, in the order of transformers."""
        if self.top_k:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p:
            logits = keep_min_p(logits, self.min_p)
        if self.typical_p is not None and self.typical_p < 1:
            logits = keep_typical(logits, self.typical_p)
        return logits


@dataclass(frozen=True)
class BoundSampling(Sampling):
    """`Sampling` for one sequence: where its output begins, the target's vocabulary, its end tokens."""

    prompt_length: int = 0  # type: ignore[misc]
    vocab_size: int = 0  # type: ignore[misc]
    eos: frozenset[int] = frozenset()  # type: ignore[misc]


def _check_finite(best: Tensor, who: str, hint: str) -> None:
    """Raises ValueError unless every entry, a row's largest logit, is a finite number."""
    broken = int((~torch.isfinite(best)).sum())
    if broken:
        raise ValueError(f"{who} logits with NaN or infinity in {broken} of {best.numel()} rows: {hint}")
