"""What a generation counted and timed, and the rates that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Literal

from specdec_ref.interfaces import Origin, Verdict


@dataclass(frozen=True)
class RoundCounts:
    """The numbers of one round.

    drafted, tested, accepted: draft tokens proposed, tested by the rule, and kept in the output. Tested are those
        accepted, and the one rejected; tokens drafted after a rejection are never tested. Of a tree, drafted counts
        all its tokens and tested counts places: however many guesses there are for one, it is one that is tested.
    last: origin of the token that the target added; None where a stop or the budget cut it off.
    depth: places that drafts were proposed for; None, of a chain, is as many as were drafted.
    """

    drafted: int
    tested: int
    accepted: int
    last: Origin | None
    depth: int | None = None

    @property
    def places(self) -> int:
        """Places that drafts were proposed for: the tokens of a chain, the depth of a tree."""
        return self.drafted if self.depth is None else self.depth

    @property
    def emitted(self) -> int:
        """Tokens of the output that this round gave."""
        return self.accepted + (self.last is not None)


@dataclass
class Stats:
    """Counts over all rounds of one generation; times in seconds.

    by_round: what each target pass after the prefill gave. Everything else is counted from it.
    lossless: whether the rule keeps the target's distribution; False for a lossy one, None for a function of the
        user's own.
    prefill_seconds, draft_seconds, verify_seconds, other_seconds: taking in the prompt; proposing; the target's pass
        and the rule; committing, rolling back and making text.
    """

    by_round: list[RoundCounts] = field(default_factory=list)
    lossless: bool | None = None
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """Target passes after the prefill."""
        return len(self.by_round)

    @property
    def drafted(self) -> int:
        """Draft tokens proposed, of a tree all its tokens."""
        return sum(r.drafted for r in self.by_round)

    @property
    def tested(self) -> int:
        """Draft tokens that the rule tested: those accepted, and the one rejected, of each round; see RoundCounts."""
        return sum(r.tested for r in self.by_round)

    @property
    def accepted(self) -> int:
        """Draft tokens in the output."""
        return sum(r.accepted for r in self.by_round)

    @property
    def corrected(self) -> int:
        """Tokens of the target after a rejection."""
        return self._last("corrected")

    @property
    def bonus(self) -> int:
        """Tokens of the target after drafts that were all accepted."""
        return self._last("bonus")

    @property
    def plain(self) -> int:
        """Tokens of the target in rounds in which nothing was drafted."""
        return self._last("plain")

    @property
    def emitted(self) -> int:
        """Tokens of the output; equals len(tokens)."""
        return sum(r.emitted for r in self.by_round)

    @property
    def origins(self) -> list[Origin]:
        """Origin of each emitted token: "accepted", "corrected", "bonus" or "plain"."""
        origins: list[Origin] = []
        for r in self.by_round:
            origins += ["accepted"] * r.accepted
            if r.last is not None:
                origins.append(r.last)
        return origins

    @property
    def tested_by_position(self) -> list[int]:
        """Drafts tested, by place in the draft (depth in a tree), first place first, up to the longest draft."""
        return [sum(r.tested > i for r in self.by_round) for i in range(self._longest)]

    @property
    def accepted_by_position(self) -> list[int]:
        """Drafts accepted, by place in the draft (depth in a tree), first place first."""
        return [sum(r.accepted > i for r in self.by_round) for i in range(self._longest)]

    @property
    def seconds(self) -> float:
        """All time of the generation."""
        return self.prefill_seconds + self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def acceptance_rate(self) -> float:
        """Accepted over *tested*: an estimate of Leviathan's alpha. 0 where nothing was tested.

        Of trees it is the share of places for which one of the guesses was right.
        """
        return self.accepted / self.tested if self.tested else 0.0

    @property
    def accepted_per_drafted(self) -> float:
        """Accepted over drafted: a smaller number than the acceptance rate. 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per target pass, the one that the target adds included. 0 where there was no round."""
        return self.emitted / self.rounds if self.rounds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Counts, times and rates by name, ready for JSON."""
        names = """rounds drafted tested accepted corrected bonus plain emitted tested_by_position accepted_by_position
            origins lossless prefill_seconds draft_seconds verify_seconds other_seconds seconds acceptance_rate
            accepted_per_drafted tokens_per_round"""
        return {name: getattr(self, name) for name in names.split()} | {"by_round": [asdict(r) for r in self.by_round]}

    @contextmanager
    def time(self, part: Literal["prefill", "draft", "verify", "other"]) -> Iterator[None]:
        """Add the time spent in the block to `part`'s seconds."""
        start = perf_counter()
        try:
            yield
        finally:
            name = f"{part}_seconds"
            setattr(self, name, getattr(self, name) + perf_counter() - start)

    def count(self, drafted: int, verdict: Verdict, kept: int, depth: int | None = None) -> None:
        """Enter a round of which `kept` emitted tokens stay (fewer than the verdict's where a stop cut it).

        depth: of a tree.
        """
        accepted = min(verdict.accepted, kept)
        whole = kept == verdict.accepted + 1
        last: Origin = verdict.origin if drafted else "plain"
        tested = accepted + (whole and last == "corrected")
        self.by_round.append(RoundCounts(drafted, tested, accepted, last if whole else None, depth))

    @property
    def _longest(self) -> int:
        return max((r.places for r in self.by_round), default=0)

    def _last(self, origin: Origin) -> int:
        return sum(r.last == origin for r in self.by_round)
