"""Claims settled: their values computed now, compared with the recorded ones, and shown as a table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from specdec_course.article import computations
from specdec_course.article.claims import Claim, Recorded, claims
from specdec_course.article.computations import Value


@dataclass(frozen=True)
class Settled:
    """A claim, the values computed now, and the claim's text with these values filled in."""

    claim: Claim
    values: Mapping[str, Value]
    text: str

    @property
    def differences(self) -> list[str]:
        """Recorded values that differ from the computed ones, to the digits recorded; empty if all agree."""
        recorded, found = self.claim.values, []
        for name in sorted(recorded.keys() | self.values.keys()):
            old, new = recorded.get(name), self.values.get(name)
            if old is None or new is None or not _agree(old, new):
                found.append(f"{name}: recorded {old}, computed {new}")
        return found


def settle(claim: Claim) -> Settled:
    """Compute what the claim's record states. Raises ValueError for a claim that no computation settles."""
    if claim.computation is None:
        raise ValueError(f"claim {claim.number} is settled by {' and '.join(claim.settled_by)}, not here")
    values = getattr(computations, claim.computation)()
    return Settled(claim, values, claim.holds.format(**values))


def claims_html(*numbers: int) -> str:
    """A table of the claims of these numbers: what is said, the verdict, and what holds, computed now.

    Raises KeyError for a number that no claim has.
    """
    by_number = {claim.number: claim for claim in claims()}
    rows = []
    for number in numbers:
        claim = by_number[number]
        holds = settle(claim).text if claim.computation else claim.holds
        rows.append(
            f"<tr><td>{number}</td><td style='text-align: left'>{html.escape(claim.says)}</td>"
            f"<td style='text-align: left'><b>{html.escape(claim.verdict)}</b>. {html.escape(holds)}</td></tr>"
        )
    head = "<tr><th></th><th style='text-align: left'>it says</th><th style='text-align: left'>what holds</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _agree(recorded: Recorded | Decimal | int, computed: Value) -> bool:
    if isinstance(recorded, list) and isinstance(computed, Sequence):
        return len(recorded) == len(computed) and all(map(_agree, recorded, computed))
    if isinstance(recorded, Decimal) and isinstance(computed, (int, float)) and not isinstance(computed, bool):
        last_digit = float(recorded.as_tuple().exponent)
        return abs(float(computed) - float(recorded)) <= 0.5 * 10**last_digit * (1 + 1e-9)
    return type(recorded) is type(computed) and bool(recorded == computed)
