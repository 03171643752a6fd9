"""The mechanism of the checks: which case fails, which mistake is named, and what counts as rounding."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from specdec_course.checks import Check, CheckFailed, ps01_roofline, ps02_kv_sizing
from specdec_course.checks.distributions import same_distribution
from specdec_course.checks.mistakes import Judge, Mistake, judged, mistakes, unchanged
from specdec_course.checks.numbers import as_number, as_numbers
from specdec_ref.arithmetic import kv_bytes_per_token

SUM = Judge(
    "The sum",
    lambda values: sum(values),
    [
        Mistake("the largest alone is no sum.", lambda values: max(values)),
        Mistake("the first is left out.", lambda values: sum(values[1:])),
        Mistake(
            lambda values: f"the mean of {len(values)} is no sum.", lambda values: Fraction(sum(values), len(values))
        ),
    ],
)


def message(judge, learner, *cases):
    with pytest.raises(CheckFailed) as failed:
        judge(learner, cases)
    return str(failed.value)


def test_a_right_function_passes_whatever_type_it_returns():
    for kind in (int, float, Fraction, np.float32, np.int64, torch.tensor, np.array, lambda x: np.array([x])):
        SUM(lambda values, kind=kind: kind(sum(values)), [([1, 2, 3],), ([5],)])


def test_the_first_case_that_differs_is_shown_with_the_mistake():
    text = message(SUM, lambda values: sum(values[1:]), ([0, 2],), ([1, 2, 3],), ([4],))
    assert text.splitlines() == [
        "The sum came out wrong.",
        "  given     values=[1, 2, 3]",
        "  got       5",
        "  expected  6",
        "  likely    the first is left out.",
    ]


def test_a_mistake_that_fits_every_case_goes_before_one_that_fits_the_failing_one_alone():
    """On [2, 3] both give 3; that the largest of [0, 1, 1] is not 2 rules it out."""
    assert "first is left out" in message(SUM, lambda values: sum(values[1:]), ([0, 1, 1],), ([2, 3],))


def test_where_no_mistake_fits_every_case_one_that_fits_the_failing_one_is_named():
    assert "largest" in message(SUM, lambda values: 3 if len(values) == 3 else sum(values), ([2, 2],), ([1, 2, 3],))


def test_a_mistake_may_speak_of_the_arguments():
    assert "the mean of 2 is no sum" in message(SUM, lambda values: sum(values) / len(values), ([4, 5],))


def test_a_mistake_that_cannot_be_made_with_these_arguments_is_passed_over():
    assert "likely" not in message(SUM, lambda values: -1, ([],))


def test_arguments_that_are_changed_on_the_way_are_refused():
    def sorts(values):
        values.sort()
        return sum(values)

    SUM(sorts, [([1, 2],)])
    assert "changed what it was given" in message(SUM, sorts, ([2, 1],))


@pytest.mark.parametrize(
    "before, after",
    [([1, 2], (1, 2)), ([1], [1.0]), ([1], [True]), ({"a": None}, {}), ({"a": [1]}, {"a": [2]}), ((1,), (1, 1))],
)
def test_a_change_of_value_or_type_is_a_change(before, after):
    assert unchanged(before, before) and not unchanged(before, after)


def test_an_error_that_is_due_has_to_come_and_no_other_one():
    def half(number):
        if number % 2:
            raise ValueError("odd")
        return number // 2

    judge = Judge(
        "The half", half, [Mistake("an odd number has none.", lambda number: number // 2)], refuses=(ValueError,)
    )
    judge(half, [(2,), (3,)])
    text = message(judge, lambda number: number // 2, (2,), (3,))
    assert "should be refused" in text and "ValueError: odd" in text and "an odd number has none" in text
    assert "should be refused" in message(judge, lambda number: "none" if number % 2 else number // 2, (2,), (3,))
    assert "raised ValueError" in message(judge, lambda number: half(number + 1), (2,))
    assert "raised TypeError" in message(judge, lambda number: half(str(number)), (3,))


@pytest.mark.parametrize("tolerance, same", [(1e-6, SUM.answer.same), (1e-12, ps02_kv_sizing.BYTES.same)])
def test_a_number_just_within_the_rounding_passes_and_one_just_beyond_does_not(tolerance, same):
    assert same(1e9 * (1 + 0.9 * tolerance), 10**9) and not same(1e9 * (1 + 1.1 * tolerance), 10**9)


def test_a_distribution_just_within_the_rounding_passes_and_one_just_beyond_does_not():
    p = [0.25, 0.75]
    assert same_distribution([0.25 + 0.9e-5, 0.75 - 0.9e-5], p)
    assert not same_distribution([0.25 + 1.1e-5, 0.75 - 1.1e-5], p)


class EqualToAll(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__
    __lt__ = __gt__ = __le__ = __ge__ = __eq__


class AllNumbers(list):
    def __eq__(self, other):
        return True

    __hash__ = None


def test_a_number_that_says_it_equals_all_others_is_read_as_what_it_is():
    assert type(as_number(EqualToAll(3), "it")) is int
    assert [type(x) for x in as_numbers(AllNumbers([EqualToAll(3), np.float64(2)]), ["a", "b"])] == [int, float]
    assert "came out wrong" in message(SUM, lambda values: EqualToAll(3), ([1],))


@pytest.mark.parametrize(
    "odd", [None, "3", True, float("nan"), [1, 2], np.array([1, 2]), torch.ones(2), np.array([]), object(), {}]
)
def test_what_is_no_number_is_refused(odd):
    with pytest.raises(CheckFailed, match=r"The sum (must be a number|came out as NaN)"):
        as_number(odd, "The sum")


INTEGERS = st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=8))


def found(learner, seed=5):
    with pytest.raises(CheckFailed) as failed:
        SUM.search(learner, INTEGERS, random.Random(seed))
    return str(failed.value)


def test_a_search_shows_the_smallest_case_and_tells_mistakes_apart_by_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = found(lambda values: sum(values[1:]))
    assert "values=[1]\n" in text and "the first is left out" in text
    assert "the largest" in found(lambda values: max(values))
    assert list(tmp_path.iterdir()) == []


def test_a_search_is_repeated_by_its_seed_and_finds_nothing_in_a_right_function():
    def wrong_for_some(values):
        return sum(values) + (sum(values) % 7 == 6)

    assert found(wrong_for_some) == found(wrong_for_some)
    SUM.search(sum, INTEGERS, random.Random(5))


def test_a_search_ends_with_a_function_that_goes_another_way_each_time():
    source = random.Random(1)
    found(lambda values: sum(values) + source.randrange(3))


def test_the_packages_own_function_is_refused(monkeypatch):
    check = Check("bytes", [lambda learner, rng: None])
    with pytest.raises(CheckFailed, match="the package's own function kv_bytes_per_token; write yours"):
        check(kv_bytes_per_token)
    monkeypatch.setenv("SPECDEC_GRADING_SEED", "1")
    assert check(kv_bytes_per_token, points=4) == 0 and check(lambda shape: 0, points=4) == 4


@pytest.mark.parametrize("odd", [float("inf"), -float("inf"), 0.5, -1, pytest.param(10**400, id="10**400")])
def test_an_odd_number_is_wrong_and_no_error(odd):
    for check in (ps01_roofline.free_drafts, ps01_roofline.compute_bound_batch, ps02_kv_sizing.sequences_that_fit):
        with pytest.raises(CheckFailed, match=r"came out wrong|far too large"):
            check(lambda *arguments: odd, seed=1)


def test_parts_share_their_cases_and_have_names():
    seen = []
    judge = Judge("It", lambda number: number)
    check = judged(
        "it", judge, judge, small=lambda rng: seen.append(rng.random()) or [(1,)], large=lambda rng: [(10**9,)]
    )
    assert [part.__name__ for part in check.parts] == ["small", "large"]
    assert check(lambda number: number, points=3) == 3 and len(seen) == 1


def test_a_table_of_formulas_becomes_mistakes():
    twice, _ = mistakes(
        lambda formula: lambda a, b: formula(a + b), {"twice": lambda n: 2 * n, "half": lambda n: n / 2}
    )
    assert twice.says == "twice" and twice.function(1, 2) == 6
