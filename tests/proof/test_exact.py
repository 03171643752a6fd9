"""The production loop, enumerated: whole outputs follow the target's autoregressive distribution to 1e-12."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
import torch

from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof import (
    EnumeratingSource,
    Scenario,
    autoregressive_distribution,
    difference,
    enumerate_branches,
    enumerate_distribution,
    fractions,
    identity,
    one_step_proof,
    total_variation,
)
from specdec_ref.proof.exact import (
    DRAFTERS,
    EVERYTHING,
    OPTIONS,
    PROMPTS,
    TOLERANCE,
    acceptance_deviation,
    core_checks,
    matrix,
    moody,
    rejected_though_equal,
    short_rounds_though_equal,
)
from specdec_ref.proof.reference import filtered, penalised
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES

MATRIX = dict(matrix())


# The enumeration itself


def test_every_branch_once_with_its_probability():
    def program(source):
        x = source.categorical([Fraction(1, 2), Fraction(0), Fraction(1, 2)])
        return x, source.bernoulli(Fraction(1, 3)) if x else None

    branches = {b.outcome: (b.probability, b.choices) for b in enumerate_branches(program)}
    assert branches == {
        (0, None): (Fraction(1, 2), (0,)),
        (2, True): (Fraction(1, 6), (2, True)),
        (2, False): (Fraction(1, 3), (2, False)),
    }


def test_what_is_certain_is_no_choice():
    source = EnumeratingSource()
    assert source.bernoulli(1.0) and not source.bernoulli(0.0)
    assert source.categorical(torch.tensor([0.0, 2.0])) == 1
    assert source.choices == () and not source.next_branch()


def test_an_unnormalised_distribution_is_normalised():
    assert enumerate_distribution(lambda source: source.categorical([1, 3])) == {0: 0.25, 1: 0.75}


@pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0], [1.0, float("inf")], [-1.0, 2.0]])
def test_distributions_that_nothing_can_be_drawn_from(weights):
    with pytest.raises(ValueError, match="cannot draw"):
        EnumeratingSource().categorical(torch.tensor(weights))


def test_a_coin_of_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        EnumeratingSource().bernoulli(float("nan"))


def test_a_program_with_chance_of_its_own_is_noticed():
    asked = iter([0.3, 0.7, 0.2])
    with pytest.raises(RuntimeError, match="something else"):
        enumerate_distribution(lambda source: source.bernoulli(next(asked)))


def test_too_many_branches_is_an_error():
    with pytest.raises(RuntimeError, match="more than 100 branches"):
        enumerate_distribution(lambda source: tuple(source.bernoulli(0.5) for _ in range(7)), max_branches=100)


# The reference that the engine is compared with


def test_reference_filters_known_values():
    assert filtered([0.5, 0.35, 0.1, 0.05], top_p=0.9) == pytest.approx([10 / 19, 7 / 19, 2 / 19, 0])
    assert filtered([0.2, 0.4, 0.4], top_k=1) == [0, 0.5, 0.5]
    assert filtered([0.2, 0.4, 0.4], temperature=0) == [0, 1, 0]
    assert filtered([0.8, 0.2], temperature=0.5) == pytest.approx([16 / 17, 1 / 17])
    assert filtered([0.6, 0.3, 0.1], min_p=0.4) == pytest.approx([2 / 3, 1 / 3, 0])
    assert penalised([0.25, 0.75], (0,), (), repetition_penalty=2.0) == [0.0625, 0.75]
    assert penalised([0.5, 0.5], (), (1,), eos=(0,), bad_words=[[1, 1]], min_new_tokens=2) == [0.0, 0.0]


def test_reference_distribution_by_hand():
    distribution = autoregressive_distribution(lambda tokens: [(0.9, 0.1), (0.4, 0.6)][tokens[-1]], [0], 2, eos=(1,))
    assert distribution == pytest.approx({(0, 0): 0.81, (0, 1): 0.09, (1,): 0.1})


def test_distances():
    a, b = {0: 0.5, 1: 0.5}, {0: 0.75, 2: 0.25}
    assert (difference(a, b), total_variation(a, b)) == (0.5, 0.5)


# One step on paper


def test_sympy_finds_the_identity():
    assert identity() == 0


@pytest.mark.parametrize("vocab", [2, 3])
def test_sympy_proves_one_step(vocab):
    proof = one_step_proof(vocab)
    assert len(proof) == 2**vocab - 2
    assert all(rest == sympy.Integer(0) for case in proof.values() for rest in case)


def test_fractions_refuse_floats():
    assert fractions([".1", ["1/3", 1]]) == [Fraction(1, 10), [Fraction(1, 3), Fraction(1)]]
    with pytest.raises(TypeError, match=r"'0\.1'"):
        fractions([0.1])


# The loop


@pytest.mark.parametrize("name", MATRIX)
def test_joint_distribution(name):
    assert MATRIX[name].deviation() <= TOLERANCE


def test_matrix_holds_every_lossless_rule_drafter_and_option():
    held = {(s.rule, s.drafter) for s in MATRIX.values()}
    assert {rule for rule, _ in held} == {name for name, rule in RULES.items() if rule.lossless}
    for rule in ("token", "block", "match"):
        assert {drafter for r, drafter in held if r == rule} == set(DRAFTERS)
    used = {name for s in MATRIX.values() for name in s.options}
    assert used == {name for options in (*OPTIONS.values(), EVERYTHING) for name in options}


def test_the_distribution_is_not_trivial():
    """Distributions with one outcome, or drafts that are never rejected, would prove nothing."""
    for name in ("token, model, plain", "block, model, plain", "match, model, plain", "token, lookup, plain"):
        scenario = MATRIX[name]
        engine = scenario.engine()
        origins = set()
        for branch in enumerate_branches(
            lambda source, s=scenario, e=engine: tuple(s.generate(e, source).stats.origins)
        ):
            origins.update(branch.outcome)
        assert origins >= {"accepted", "corrected", "bonus"}
        assert len(scenario.expected()) > 8


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("options", ["plain", "filters", "repetition"])
def test_acceptance_is_the_formula(rule, options):
    assert acceptance_deviation(rule, OPTIONS[options], gamma=2) <= TOLERANCE


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_draft_equal_to_target_is_never_rejected(gamma):
    assert rejected_though_equal(gamma) == 0
    assert short_rounds_though_equal(gamma) <= TOLERANCE


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_caches_counts_and_length_on_every_branch(rule, drafter):
    assert Scenario(rule, drafter, eos=(1,), gamma=3).broken_invariants() == 0


def test_core_checks_hold():
    assert {check.name: d for check in core_checks() if not (d := check.deviation()) <= TOLERANCE} == {}


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.lossless])
def test_lossy_rules_have_a_price(rule):
    prices = {name: Scenario(rule, options=OPTIONS[name]).total_variation() for name in ("plain", "cold", "top-k")}
    assert all(0.01 < price < 1 for price in prices.values())


def test_lossy_prices_grow_with_the_output():
    """A joint distribution is at least as far off as the distribution of a part of it."""
    for rule in ("lossy-typical", "lossy-leniency"):
        short, long = (
            Scenario(rule, budget=budget, prompt=(0,), shows=("accepted",)).total_variation() for budget in (2, 3)
        )
        assert long >= short > 0


def test_generation_needs_no_drafter():
    scenario = Scenario()
    plain = SpeculativeEngine(ScriptedModel(scenario.target_distribution, scenario.vocab))
    distribution = enumerate_distribution(lambda source: tuple(scenario.generate(plain, source).tokens))
    assert difference(distribution, scenario.expected()) <= TOLERANCE


def test_a_smaller_draft_of_which_everything_is_forbidden():
    """Nothing is proposed then; the target goes on alone."""
    distribution = (0.25, 0.25, 0.5)
    target, draft = ScriptedModel(lambda tokens: distribution, 3), ScriptedModel(lambda tokens: (0.5, 0.5), 2)
    engine = SpeculativeEngine(target, DraftModelDrafter(draft), gamma=2)
    for temperature in (0.0, 1.0):
        out = engine.generate([2], 4, temperature=temperature, bad_words=[[0], [1]], source=RandomSource(0))
        assert out.tokens == [2, 2, 2, 2] and out.stats.drafted == 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("options", OPTIONS)
def test_joint_distribution_of_longer_outputs(rule, options):
    prompt = PROMPTS["model", "greedy"] if options == "greedy" else (0,)
    assert Scenario(rule, options=OPTIONS[options], gamma=3, budget=4, prompt=prompt).deviation() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_joint_distribution_of_five_tokens_in_changing_blocks(rule, drafter):
    scenario = Scenario(rule, drafter, vocab=2, gamma=moody, budget=5, options={"temperature": 0.8}, eos=(1,))
    assert scenario.deviation() <= TOLERANCE
