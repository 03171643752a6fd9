"""What a generation counted and timed, and the rates that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec_ref.interfaces import Verdict


@dataclass
class Stats:
    """Counts over all rounds of one generation; times in seconds.

    rounds: target passes after the prefill.
    drafted: draft tokens proposed.
    tested: draft tokens that the rule came to: those accepted, and the one rejected, of each round. Tokens drafted
        after a rejection are never tested.
    accepted, corrected, bonus: emitted tokens by origin; `emitted` is their sum. What a stop or the budget cut
        off is in none of them.
    tested_by_position, accepted_by_position: the same by place in the draft, first place first.
    drafted_by_round, accepted_by_round: drafts proposed and accepted in each round.
    origins: origin of each emitted token, "accepted", "corrected" or "bonus".
    lossless: whether the rule keeps the target's distribution; False for a lossy one, None for a function of the
        user's own.
    """

    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    corrected: int = 0
    bonus: int = 0
    tested_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_round: list[int] = field(default_factory=list)
    accepted_by_round: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    lossless: bool | None = None
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def emitted(self) -> int:
        """Tokens of the output; equals len(tokens)."""
        return self.accepted + self.corrected + self.bonus

    @property
    def seconds(self) -> float:
        """All time of the generation."""
        return self.prefill_seconds + self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def acceptance_rate(self) -> float:
        """Accepted over *tested*: an estimate of Leviathan's alpha. 0 where nothing was tested."""
        return self.accepted / self.tested if self.tested else 0.0

    @property
    def accepted_per_drafted(self) -> float:
        """Accepted over drafted: a smaller number than the acceptance rate. 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a target pass, the one that the target adds included. 0 where there was no round."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def accepted_per_round(self) -> float:
        """Accepted drafts a target pass, *without* the token that the target adds. 0 where there was no round."""
        return self.accepted / self.rounds if self.rounds else 0.0

    def count(self, drafted: int, verdict: Verdict, kept: int) -> None:
        """Enter a round of which `kept` emitted tokens stay (fewer than the verdict's where a stop cut it)."""
        accepted = min(verdict.accepted, kept)
        whole = kept == verdict.accepted + 1
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.drafted_by_round.append(drafted)
        self.accepted_by_round.append(accepted)
        tested = accepted + (whole and verdict.origin == "corrected")
        self.tested += tested
        for counts, n in ((self.tested_by_position, tested), (self.accepted_by_position, accepted)):
            counts.extend([0] * (drafted - len(counts)))
            for i in range(n):
                counts[i] += 1
        self.origins += ["accepted"] * accepted
        if whole:
            self.origins.append(verdict.origin)
            self.corrected += verdict.origin == "corrected"
            self.bonus += verdict.origin == "bonus"
