"""Rounds as plain data: what was drafted, what was kept, and how much both caches held before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import Generation, Round, Run, SpeculativeEngine

REJECTED, UNTESTED = "rejected", "not tested"
_CONTEXT = 4  # tokens recorded before the pending one


@dataclass(frozen=True)
class CacheLengths:
    """Tokens in a cache: before a round, at its fullest, and after the round."""

    before: int
    fullest: int
    after: int


@dataclass(frozen=True)
class RecordedRound:
    """One round of a generation, as plain data.

    context: the last tokens committed before the round; the final one is pending.
    drafted, accepted, token, origin: the proposal and the verdict, see `specdec_ref.interfaces.Verdict`.
    kept: the tokens that became part of the output; fewer than the verdict's if a stop cut them off.
    committed: length of prompt and output after the round, in tokens.
    target, draft: cache lengths; `draft` is None for a drafter without a cache.
    """

    context: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: int
    token: int
    origin: str
    kept: tuple[int, ...]
    committed: int
    target: CacheLengths
    draft: CacheLengths | None

    @property
    def fates(self) -> list[str]:
        """The fate of each drafted token: "accepted", "rejected" or "not tested"."""
        tail = [REJECTED, *[UNTESTED] * len(self.drafted)]
        return [*["accepted"] * self.accepted, *tail][: len(self.drafted)]


def record_rounds(engine: SpeculativeEngine, prompt: Any, **options: Any) -> tuple[Generation, list[RecordedRound]]:
    """Generate with `engine` and record every round. Takes the options of `SpeculativeEngine.generate`."""
    steps: list[RecordedRound] = []

    def note(run: Run, round_: Round) -> None:
        drafted, verdict, kept = round_.proposal.tokens, round_.verdict, round_.kept
        begin = len(run.tokens) - len(kept)
        before = steps[-1].target.after if steps else run.prompt_length - 1
        assert run.cache is not None  # a round has begun with it
        target = CacheLengths(before, before + 1 + len(drafted), run.cache.length)
        draft = None
        if isinstance(run.drafter, DraftModelDrafter):
            held = steps[-1].draft.after if steps and steps[-1].draft else 0
            # A draft model takes in all committed tokens and every draft but the last.
            draft = CacheLengths(held, begin + len(drafted) - 1 if drafted else held, run.drafter.cache.length)
        steps.append(
            RecordedRound(
                context=tuple(run.tokens[max(0, begin - _CONTEXT - 1) : begin]),
                drafted=tuple(drafted),
                accepted=verdict.accepted,
                token=verdict.token,
                origin=verdict.origin if drafted else "plain",
                kept=tuple(kept),
                committed=len(run.tokens),
                target=target,
                draft=draft,
            )
        )

    return engine.generate(prompt, on_round=note, **options), steps


def worked_round(
    tokens: Sequence[int], drafted: Sequence[int], accepted: int, token: int, draft_cache: bool = False
) -> RecordedRound:
    """A round worked out by hand, with the cache lengths that the invariant asks for.

    tokens: committed before the round. draft_cache: whether a draft model with a cache of its own drafted.
    Raises ValueError for more accepted drafts than there are.
    """
    n, g = len(tokens), len(drafted)
    if not 0 <= accepted <= g:
        raise ValueError(f"{accepted} accepted of {g} drafts: give 0 to {g}")
    draft = CacheLengths(n - 1, n + g - 1, min(n + g - 1, n + accepted)) if draft_cache and g else None
    return RecordedRound(
        context=tuple(tokens[-_CONTEXT - 1 :]),
        drafted=tuple(drafted),
        accepted=accepted,
        token=token,
        origin=("bonus" if accepted == g else "corrected") if g else "plain",
        kept=(*drafted[:accepted], token),
        committed=n + accepted + 1,
        target=CacheLengths(n - 1, n + g, n + accepted),
        draft=draft,
    )


def describe(step: RecordedRound) -> str:
    """The round in one sentence."""
    n, fates = len(step.drafted), step.fates
    parts = [f"{n} drafted, {step.accepted} accepted"]
    if REJECTED in fates:
        parts.append(f"1 rejected, {fates.count(UNTESTED)} not tested")
    cut = step.accepted + 1 - len(step.kept)
    parts.append(f"{cut} cut off after the end" if cut else f"1 {step.origin} token")
    return f"{', '.join(parts)}: the text grows by {len(step.kept)}."


def token_text(token: int, tokenizer: Any) -> str:
    """A token as one visible word: ␣ for a space, ↵ for a new line, ∅ for nothing; its id without a tokenizer."""
    text = str(token) if tokenizer is None else tokenizer.decode([token])
    return text.replace("\n", "↵").replace(" ", "␣") or "∅"
