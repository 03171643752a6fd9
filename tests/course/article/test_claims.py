"""Every claim of the article: the record is complete, and a computation or a named lesson settles it."""

import dataclasses
import inspect
import re
import string
from decimal import Decimal

import pytest

from specdec_course.article import computations
from specdec_course.article.claims import Claim, claims
from specdec_course.article.settle import claims_html, settle

COMPUTED = [claim for claim in claims() if claim.computation]
SETTLED_ELSEWHERE = {11, 18, 19, 20, 34, 35, 38}


def test_all_41_claims_are_there_once_and_in_order() -> None:
    assert [claim.number for claim in claims()] == list(range(1, 42))


@pytest.mark.parametrize("claim", COMPUTED, ids=lambda claim: f"{claim.number}-{claim.computation}")
def test_recorded_values_are_those_computed(claim: Claim) -> None:
    assert settle(claim).differences == []


@pytest.mark.parametrize("claim", COMPUTED, ids=lambda claim: str(claim.number))
def test_the_text_is_filled_with_computed_numbers_only(claim: Claim) -> None:
    fields = {name.split("[")[0] for _, name, _, _ in string.Formatter().parse(claim.holds) if name}
    assert fields <= claim.values.keys()
    assert "{" not in settle(claim).text


def test_claims_that_no_calculation_settles_say_what_does() -> None:
    elsewhere = {claim.number for claim in claims() if claim.computation is None}
    assert elsewhere == SETTLED_ELSEWHERE
    for claim in claims():
        assert claim.settled_by and claim.says and claim.holds and claim.verdict and claim.where
        assert all(re.fullmatch(r"calculation|reading|lesson \d\d", way) for way in claim.settled_by)
        assert ("calculation" in claim.settled_by) == (claim.computation is not None) == bool(claim.values)


def test_every_computation_belongs_to_one_claim() -> None:
    here = {name: f for name, f in inspect.getmembers(computations, inspect.isfunction) if not name.startswith("_")}
    public = sorted(name for name, f in here.items() if f.__module__ == computations.__name__)
    assert sorted(claim.computation or "" for claim in COMPUTED) == public


def test_a_claim_settled_elsewhere_is_not_settled_here() -> None:
    with pytest.raises(ValueError, match="claim 19 is settled by lesson 07, not here"):
        settle(claims()[18])


@pytest.mark.parametrize(
    ("number", "name", "wrong"),
    [
        (3, "ridge", Decimal("591")),
        (10, "gb", Decimal("42.95")),
        (10, "tokens_for_the_claim", 8192),
        (14, "bound", "compute"),
        (15, "exists", True),
        (21, "emitted", [Decimal("0.6"), Decimal("0.3"), Decimal("0.1")]),
        (30, "right", Decimal("2.15")),
    ],
)
def test_a_wrong_record_is_found(number: int, name: str, wrong: object) -> None:
    claim = claims()[number - 1]
    changed = dataclasses.replace(claim, values={**claim.values, name: wrong})
    (difference,) = settle(changed).differences
    assert difference.startswith(f"{name}: recorded")


def test_a_missing_or_surplus_value_is_found() -> None:
    claim = claims()[2]
    assert settle(dataclasses.replace(claim, values={})).differences
    assert settle(dataclasses.replace(claim, values={**claim.values, "more": 1})).differences


def test_a_change_in_the_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The article's own numerator in place of ours: claim 30 no longer agrees."""
    monkeypatch.setattr(
        computations, "speedup", lambda alpha, gamma, c: computations.mean_accepted(alpha, gamma) / (1 + gamma * c)
    )
    assert settle(claims()[29]).differences


def test_recorded_digits_decide_the_tolerance() -> None:
    claim = claims()[27]
    (exact,) = [v for k, v in settle(claim).values.items() if k != "alpha"]
    close = dataclasses.replace(claim, values={**claim.values, "accepted_over_drafted": Decimal("0.5379")})
    off = dataclasses.replace(claim, values={**claim.values, "accepted_over_drafted": Decimal("0.5380")})
    assert exact == pytest.approx(0.537856)
    assert settle(close).differences == [] and settle(off).differences != []


def test_the_distribution_with_a_zeroed_draft_agrees_with_drawing_from_it() -> None:
    """Runs the faulty rule itself, 20,000 times; the tolerance is 5 standard errors."""
    import random

    rng, p, q, n = random.Random(3), (0.6, 0.3, 0.1), (0.1, 0.3, 0.6), 20_000
    counts = [0, 0, 0]
    for _ in range(n):
        x = rng.choices(range(3), q)[0]
        counts[x if rng.random() < p[x] / q[x] else rng.choices(range(3), p)[0]] += 1
    distribution = settle(claims()[20]).values["emitted"]
    for count, share in zip(counts, distribution, strict=True):
        assert abs(count / n - share) < 5 * (share * (1 - share) / n) ** 0.5


def test_claims_are_shown_with_what_is_computed_now():
    table = claims_html(3, 10)
    assert table.count("<tr>") == 3 and "989 TFLOP/s" in table and "<b>wrong</b>" in table and "2.68 GB" in table
    with pytest.raises(KeyError):
        claims_html(999)
