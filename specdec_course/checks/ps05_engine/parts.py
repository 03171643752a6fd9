"""The five parts that problem set 05 hands to a learner's loop: the engine's own, which refuse wrong caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdec_course.checks import wrong
from specdec_course.checks.mistakes import Judge, Mistake
from specdec_course.checks.ps05_engine.answers import SEEN, Ids, as_ids
from specdec_course.checks.ps05_engine.rounds import most_drafts, up_to_the_stop
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.interfaces import Proposal
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify.tokenwise import verify_tokenwise


def rule_of(source: RandomSource, kept: list[bool] | None = None) -> Any:
    """The production rule in the form of the exercise; at temperature 0 it is the greedy one.

    kept: takes for each round whether all drafts were accepted.
    """

    def rule(drafted: Sequence[int], q: Any, p: Tensor) -> tuple[int, int]:
        verdict = verify_tokenwise(Proposal(list(drafted), torch.stack(list(q)) if len(q) else None), p, source)
        if kept is not None:
            kept.append(verdict.accepted == len(drafted))
        return verdict.accepted, verdict.token

    return rule


def _missing(got: Ids, right: Ids) -> str:
    return "it was not rolled back." if len(got) >= len(right) else "a committed token is missing: rolled back too far."


_TAKEN = Mistake(
    "the newest token is in it: was it not rolled back, or the whole prompt taken in?", lambda tokens, held: tokens
)
TARGET_CACHE = Judge(
    "What the target's cache holds",
    lambda tokens, held: tokens[:-1],
    [_TAKEN],
    replace(SEEN, hint=_missing),
    lambda tokens, held: f"committed are {tokens}",
)
"""Of the committed tokens and what the cache holds."""


def _held(cache: Any, tokens: Ids) -> Any:
    """What the cache holds; of a real one only how much."""
    return getattr(cache, "held", [*tokens, *"?" * cache.length][: cache.length])


class Parts:
    """The five functions of parts A to C.

    calls: how often each was called.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature, self.calls = temperature, Counter[str]()

    def _called(self, name: str, tokens: Any = (), temperature: float | None = None) -> Ids:
        self.calls[name] += 1
        if temperature is not None and temperature != self._temperature:
            what = f"parts.{name} was given temperature {temperature!r}, and generate {self._temperature:g}."
            raise wrong(what, mistake="the temperature does not reach the parts: both models need the same one.")
        return as_ids(tokens, f"The list that parts.{name} was given")

    def draft(self, model: Any, cache: Any, tokens: Any, gamma: int, temperature: float, source: Any) -> Any:
        """As in part A. Raises CheckFailed for a cache that is no beginning of `tokens`."""
        tokens = self._called("draft", tokens, temperature)
        held = _held(cache, tokens)
        if gamma > 0 and held != tokens[:-1][: len(held)]:
            mistake = "the draft's cache was not rolled back, or the two caches are mixed up."
            raise wrong("parts.draft was given a wrong cache.", given=f"tokens {tokens}", got=held, mistake=mistake)
        if model.max_context is not None and gamma > most_drafts(gamma, len(tokens), 10**6, model.max_context):
            what = f"{gamma} drafts after {len(tokens)} tokens exceed the draft model's context of {model.max_context}."
            raise wrong(what, mistake="parts.how_many_drafts has to know draft_model.max_context.")
        names = ("vocab_size", "max_context", "eos_token_ids", "tokenizer", "device", "forward")
        # The drafter asks its model for a cache and gets the one that is there.
        lent: Any = SimpleNamespace(**{name: getattr(model, name) for name in names}, new_cache=lambda capacity: cache)
        drafter = DraftModelDrafter(lent).begin(lent, Sampling(temperature=temperature), 0)
        proposal, like = drafter.propose(tokens, gamma, source), torch.zeros(model.vocab_size, dtype=torch.float64)
        return proposal.tokens, [proposal.distribution(i, like) for i in range(len(proposal.tokens))]

    def verify(self, model: Any, cache: Any, tokens: Any, drafted: Any, q: Any, rule: Any, temperature: float) -> Ids:
        """As in part B. Raises CheckFailed for a cache that does not hold all of `tokens` but the last."""
        tokens, drafted = self._called("verify", tokens, temperature), as_ids(drafted, "The drafts for parts.verify")
        TARGET_CACHE(lambda tokens, held: held, [(tokens, _held(cache, tokens))])
        p = Sampling(temperature=temperature).probs(model.forward(torch.tensor([tokens[-1], *drafted]), cache))
        accepted, token = rule(drafted, q, p)
        return [*drafted[:accepted], token]

    def roll_back(self, cache: Any, tokens: Any) -> None:
        """As in part C."""
        cache.truncate(min(cache.length, len(self._called("roll_back", tokens)) - 1))

    def how_many_drafts(self, gamma: int, n_tokens: int, end: int, draft_context: int | None = None) -> int:
        """As in part C."""
        self._called("how_many_drafts")
        return most_drafts(gamma, n_tokens, end, draft_context)

    def cut(self, emitted: Any, eos: Any) -> Ids:
        """As in part C."""
        return up_to_the_stop(self._called("cut", emitted), eos)
