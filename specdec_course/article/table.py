"""What the article that the course grew out of says, beside what holds, as a table."""

from __future__ import annotations

import html

from specdec_course.article.claims import claims, settle


def claims_html(*numbers: int) -> str:
    """The claims of these numbers: what is said, the verdict, and what the computation gives, computed now."""
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
