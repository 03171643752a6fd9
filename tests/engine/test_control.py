"""Drafting stops where it does not pay: on a scripted clock, without a model's noise."""

import random

import pytest
from support.tiny_models import tiny_llama

from specdec_ref import AdaptiveGamma, NGramDrafter, Proposal, SpeculativeEngine
from specdec_ref.engine.control import LOSS, PRIOR, WINDOW
from specdec_ref.engine.stats import RoundCounts, Stats
from specdec_ref.interfaces import Drafter
from specdec_ref.measure import adaptive_gamma

FREE = {n: 1.0 for n in range(1, 17)}
DEAR = {n: float(n) for n in range(1, 17)}
TYPICAL = {1: 1.0, 2: 1.15, 4: 1.4, 8: 2.2, 16: 4.0}


def stats(rounds):
    """Stats after rounds of (drafted, accepted)."""
    return Stats([RoundCounts(d, a + (a < d), a, "corrected" if a < d else "bonus") for d, a in rounds])


def time_of(policy, alpha, rounds, seed=0, offered=99):
    """Tokens and scripted time of `rounds` rounds in which each draft is accepted with probability alpha."""
    chance, history, tokens, time = random.Random(seed), [], 0, 0.0
    for _ in range(rounds):
        drafted = min(policy(stats(history)), offered)
        accepted = 0
        while accepted < drafted and chance.random() < alpha:
            accepted += 1
        history.append((drafted, accepted))
        tokens += accepted + 1
        time += policy.curve(drafted)
    return tokens, time


@pytest.mark.parametrize("cost", [TYPICAL, {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.3, 16: 1.8}, DEAR])
@pytest.mark.parametrize("seed", range(3))
def test_no_worse_than_plain_where_nothing_is_accepted(cost, seed):
    tokens, time = time_of(AdaptiveGamma(cost), 0.0, 3000, seed)
    assert tokens / time > 0.98


def test_a_fixed_gamma_would_fail_that():
    class Always(AdaptiveGamma):
        def __call__(self, stats):
            return 7

    tokens, time = time_of(Always(TYPICAL), 0.0, 500)
    assert tokens / time < 0.5


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.9])
def test_near_the_best_fixed_gamma(alpha):
    """Against each fixed gamma in expectation, with the same costs."""
    policy = AdaptiveGamma(TYPICAL)

    def fixed(g):
        return sum(alpha**i for i in range(g + 1)) / policy.curve(g)

    best = max(fixed(g) for g in range(policy.most + 1))
    tokens, time = time_of(policy, alpha, 4000)
    assert tokens / time > 0.93 * best


def test_it_comes_back_when_drafting_pays_again():
    policy, history = AdaptiveGamma(TYPICAL), [(3, 0)] * 40
    assert policy(stats(history)) == 0
    asked = []
    for _ in range(400):
        drafted = policy(stats(history))
        asked.append(drafted)
        history.append((drafted, drafted))  # from now on everything is accepted
    assert asked[:5] == [0] * 5 and max(asked) > 1
    assert min(asked[-20:]) > 1


def test_looks_are_as_rare_as_their_cost_demands():
    policy, history = AdaptiveGamma(TYPICAL), [(3, 0)] * 40
    for _ in range(1000):
        drafted = policy(stats(history))
        history.append((drafted, 0))
    looks = sum(d > 0 for d, _ in history[40:])
    assert looks > 0
    assert looks * (TYPICAL[2] - 1) <= LOSS * 1000 + (TYPICAL[2] - 1)


@pytest.mark.parametrize(("cost", "rest"), [(TYPICAL, 15), ({1: 1.0, 2: 1.5}, 50), ({1: 1.0, 2: 1.0, 3: 9.0}, 0)])
def test_between_two_looks_lie_exactly_the_rounds_that_pay_for_one(cost, rest):
    """A draft in vain costs v(1) - 1 plain passes: after that many hundreds of rounds it is 1% of them."""
    policy, history = AdaptiveGamma(cost, most=1), [(1, 0)] * 200
    for _ in range(4 * rest + 4):
        history.append((policy(stats(history)), 0))
    asked = [d for d, _ in history[200:]]
    assert asked == ([0] * rest + [1]) * 4


def test_free_passes_draft_all_and_dear_ones_nothing():
    assert AdaptiveGamma(FREE)(stats([(5, 5)] * WINDOW)) == 11
    assert AdaptiveGamma(DEAR)(stats([(5, 3)] * WINDOW)) == 0
    assert AdaptiveGamma({1: 1.0})(Stats()) == 0


def test_acceptance_counts_tested_drafts_and_forgets():
    policy = AdaptiveGamma(TYPICAL)
    assert policy.acceptance(Stats()) == pytest.approx(PRIOR)
    old = [(4, 0)] * 100
    recent = [(4, 4)] * WINDOW
    assert policy.acceptance(stats(old + recent)) > 0.95
    # Rounds without drafts say nothing, and what comes after a rejection was never tested.
    assert policy.acceptance(stats(recent + [(0, 0)] * 50)) == policy.acceptance(stats(recent))
    half = policy.acceptance(stats([(4, 1)] * WINDOW))
    assert half == pytest.approx((WINDOW + PRIOR) / (2 * WINDOW + 1))


def test_a_pass_between_measured_sizes_is_interpolated():
    policy = AdaptiveGamma({1: 1.0, 4: 2.5, 8: 3.0})
    assert policy.curve(1) == pytest.approx(1.5) and policy.curve(5) == pytest.approx(2.75)
    assert policy.most == 7


def test_draft_cost_lowers_gamma():
    likely = stats([(8, 6)] * WINDOW)
    assert AdaptiveGamma(TYPICAL, draft_cost=0.3)(likely) < AdaptiveGamma(TYPICAL)(likely)


@pytest.mark.parametrize("bad", [{}, {2: 1.0}, {1: 0.0}, {1: 1.0, 2: -1.0}, {0: 1.0, 1: 1.0}])
def test_costs_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="times of passes"):
        AdaptiveGamma(bad)
    with pytest.raises(ValueError, match="below 0"):
        AdaptiveGamma(TYPICAL, draft_cost=-0.1)


class Clock:
    """Time that passes as a model runs: a pass over n tokens takes as the script says."""

    def __init__(self, model, cost):
        self.now = 0.0
        real = model.forward

        def forward(tokens, cache, rows=slice(None)):
            self.now += cost(len(tokens))
            return real(tokens, cache, rows)

        model.forward = forward

    def __call__(self):
        return self.now


def test_measured_costs_are_those_of_the_clock():
    model = tiny_llama(1)
    policy = adaptive_gamma(model, most=7, clock=Clock(model, lambda n: 2 + 0.5 * n))
    assert policy.cost[1] == 1 and policy.cost[8] == pytest.approx(6 / 2.5)


class Useless(Drafter):
    """Proposes what the target never writes."""

    def propose(self, tokens, gamma, source):
        return Proposal([(tokens[-1] + 7) % 13] * gamma)


@pytest.mark.parametrize("drafter", [Useless(), NGramDrafter()], ids=["useless", "lookup"])
def test_the_engine_with_it_writes_what_plain_decoding_writes(drafter):
    model = tiny_llama(1)
    plain = SpeculativeEngine(model).generate([1, 2, 3], 60, eos_token_id=None)
    engine = SpeculativeEngine(model, drafter, AdaptiveGamma(TYPICAL))
    result = engine.generate([1, 2, 3], 60, eos_token_id=None)
    assert result.tokens == plain.tokens
    time = sum(AdaptiveGamma(TYPICAL).curve(r.drafted) for r in result.stats.by_round)
    if isinstance(drafter, Useless):
        assert time < 60 * 1.35  # the first rounds find out


def test_two_generations_at_once_do_not_share_what_they_learnt():
    model = tiny_llama(1)
    engine = SpeculativeEngine(model, Useless(), AdaptiveGamma(TYPICAL))
    first = engine.stream([1, 2, 3], 40, eos_token_id=None)
    for _ in range(20):
        next(first)
    fresh = engine.generate([1, 2, 3], 4, eos_token_id=None)
    assert fresh.stats.by_round[0].drafted > 0
