"""The speed model, against published values, a simulation of the process itself, and its own inverses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.arithmetic import (
    accepted_per_drafted,
    alpha_for_speedup,
    batch_crossover,
    best_gamma,
    break_even_accepted_per_drafted,
    break_even_alpha,
    expected_tokens,
    mean_accepted,
    measured_curve,
    speedup,
)

ALPHA = st.floats(0, 1)
GAMMA = st.integers(0, 30)
COST = st.floats(0.001, 0.9)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "gain"),
    [
        (0.6, 0.01, 7, 2.30),
        (0.6, 0.05, 4, 1.92),
        (0.6, 0.10, 3, 1.67),
        (0.8, 0.01, 14, 4.23),
        (0.8, 0.05, 8, 3.09),
        (0.8, 0.10, 6, 2.47),
        (0.9, 0.01, 24, 7.49),
        (0.9, 0.05, 13, 4.67),
        (0.9, 0.10, 10, 3.43),
    ],
)
def test_published_best_gammas(alpha: float, c: float, gamma: int, gain: float) -> None:
    found, best = best_gamma(lambda g: speedup(alpha, g, c))
    assert found == gamma
    assert best == pytest.approx(gain, abs=0.006)


def test_published_speedup_of_a_weak_draft() -> None:
    assert round(speedup(0.44, 5, 0.11), 3) == 1.144


def test_poor_drafts_lose() -> None:
    assert speedup(0.2, 5, 0.2) < 1
    assert best_gamma(lambda g: speedup(0.2, g, 0.3)) == (0, 1.0)


def test_values_of_the_claims() -> None:
    assert accepted_per_drafted(0.8, 5) == pytest.approx(0.538, abs=0.0005)
    assert speedup(0.8, 5, 0.05) == pytest.approx(2.95, abs=0.005)
    assert mean_accepted(0.8, 5) / (1 + 5 * 0.05) == pytest.approx(2.15, abs=0.005)
    assert [round(break_even_alpha(5, c) or -1, 2) for c in (0.01, 0.05, 0.10, 0.20)] == [0.05, 0.20, 0.33, 0.51]


def test_expected_tokens_against_a_simulation_of_rounds() -> None:
    """Draws each draft token's fate; the seed is fixed and 4 standard errors allowed."""
    rng, alpha, gamma, rounds = random.Random(1), 0.7, 4, 20_000
    accepted = []
    for _ in range(rounds):
        run = 0
        while run < gamma and rng.random() < alpha:
            run += 1
        accepted.append(run)
    mean = sum(accepted) / rounds
    error = (sum((a - mean) ** 2 for a in accepted) / rounds / rounds) ** 0.5
    assert mean_accepted(alpha, gamma) == pytest.approx(mean, abs=4 * error)
    assert expected_tokens(alpha, gamma) == 1 + mean_accepted(alpha, gamma)
    assert accepted_per_drafted(alpha, gamma) == pytest.approx(mean / gamma, abs=4 * error / gamma)


@given(st.floats(0, 0.999), GAMMA)
def test_expected_tokens_equal_the_closed_form(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha), rel=1e-9)


def test_a_perfect_draft_gives_gamma_plus_one_and_a_useless_one_gives_one() -> None:
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert accepted_per_drafted(1.0, 5) == 1


def test_nothing_drafted_has_defined_rates() -> None:
    assert accepted_per_drafted(0.8, 0) == 0
    assert mean_accepted(0.8, 0) == 0
    assert expected_tokens(0.8, 0) == 1
    assert speedup(0.8, 0, 0.1) == 1


@given(ALPHA, GAMMA, COST)
def test_speedup_grows_with_alpha_and_falls_with_cost(alpha: float, gamma: int, c: float) -> None:
    assert speedup(min(1, alpha + 0.01), gamma, c) >= speedup(alpha, gamma, c)
    assert speedup(alpha, gamma, c + 0.01) <= speedup(alpha, gamma, c)
    assert speedup(alpha, gamma, c, 1.5) < speedup(alpha, gamma, c, 1.0)
    assert expected_tokens(alpha, gamma + 1) >= expected_tokens(alpha, gamma)
    assert accepted_per_drafted(alpha, gamma) <= alpha + 1e-12


@given(st.integers(1, 30), COST, st.floats(1, 3))
def test_break_even_is_where_the_speedup_is_one(gamma: int, c: float, v: float) -> None:
    alpha = break_even_alpha(gamma, c, v)
    if alpha is None:
        assert speedup(1.0, gamma, c, v) < 1
    else:
        assert speedup(alpha, gamma, c, v) == pytest.approx(1)
        r = break_even_accepted_per_drafted(gamma, c, v)
        assert r == pytest.approx(accepted_per_drafted(alpha, gamma))


@given(st.integers(1, 30), COST)
def test_with_a_free_verification_break_even_in_drafted_terms_is_c_whatever_gamma_is(gamma: int, c: float) -> None:
    assert break_even_accepted_per_drafted(gamma, c) == pytest.approx(c)


@given(st.floats(0, 0.99), st.floats(0.001, 0.99))
def test_some_gamma_gains_exactly_if_alpha_exceeds_c(alpha: float, c: float) -> None:
    """Corollary 3.9 of the paper, and its bound on the gain."""
    gamma, gain = best_gamma(lambda g: speedup(alpha, g, c))
    if alpha > c:
        assert gain >= (1 + alpha) / (1 + c) * (1 - 1e-12) and gamma >= 1
    else:
        assert gamma == 0


@given(ALPHA, COST, st.integers(1, 20))
def test_best_gamma_is_the_best_of_all(alpha: float, c: float, most: int) -> None:
    tried = [speedup(alpha, g, c, lambda gamma: 1 + 0.02 * gamma) for g in range(most + 1)]
    gamma, gain = best_gamma(tried.__getitem__, most)
    assert gain == max(tried) and tried[gamma] == gain


def test_three_times_faster_needs_three_times_the_cost_in_tokens() -> None:
    alpha = alpha_for_speedup(3, 8, 0.05)
    assert alpha is not None and expected_tokens(alpha, 8) == pytest.approx(3 * (1 + 8 * 0.05))
    assert alpha_for_speedup(3, 2, 0.05) is None


def test_measured_times_interpolate_and_are_never_extrapolated() -> None:
    """Milliseconds of all layers of SmolLM2 in int4 and bf16, seen on two cores: 4 bits spend the same slack."""
    int4 = measured_curve({1: 3.8, 2: 4.8, 4: 7.4, 8: 11.6, 16: 24.3})
    bf16 = measured_curve({1: 18.4, 2: 16.6, 4: 19.7, 8: 21.2, 16: 27.9})
    assert int4(0) == bf16(0) == 1
    assert int4(7) == pytest.approx(11.6 / 3.8)
    assert int4(4) == pytest.approx((7.4 + (11.6 - 7.4) / 4) / 3.8)
    gains = [best_gamma(lambda g, v=v: speedup(0.7, g, 0.1, v), 15)[1] for v in (int4, bf16)]
    assert gains[0] < 1.5 < gains[1]
    with pytest.raises(ValueError, match=r"gamma 16 needs T\(17\)"):
        int4(16)
    with pytest.raises(ValueError, match="n = 1 too"):
        measured_curve({2: 1.0})
    with pytest.raises(ValueError, match="give positive ones"):
        measured_curve({1: 0.0})


def test_batch_crossover_is_the_first_batch_that_does_not_gain() -> None:
    assert batch_crossover(lambda batch: 2 - batch / 10) == 10
    assert batch_crossover(lambda batch: 1.1, 50) is None
    dips_and_recovers = {1: 1.5, 2: 0.9, 3: 1.2}
    assert batch_crossover(lambda batch: dips_and_recovers[batch], 3) == 2


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_outside_0_to_1_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha is a probability"):
        expected_tokens(alpha, 3)


def test_other_impossible_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="gamma must not be negative"):
        expected_tokens(0.5, -1)
    with pytest.raises(ValueError, match="c must not be negative"):
        speedup(0.5, 3, -0.1)
    with pytest.raises(ValueError, match="more than nothing"):
        speedup(0.5, 3, 0.1, 0.0)
    with pytest.raises(ValueError, match="gamma must be at least 1"):
        break_even_accepted_per_drafted(0, 0.1)
