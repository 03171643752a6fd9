"""The rules one by one: what they accept, what they emit, what they refuse."""

from __future__ import annotations

import functools

import pytest
import torch

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.proof import (
    completed_distribution,
    emitted_distribution,
    fractions,
    round_distribution,
    total_variation,
)
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES, as_rule, block, verify_lossy_leniency, verify_lossy_typical
from specdec_ref.verify.typical import typical_threshold


def doubles(distribution):
    return torch.tensor(distribution, dtype=torch.float64)


P = [".6", ".2", ".1", ".1"]
Q = [".7", ".2", ".05", ".05"]
FLOAT = {"p": doubles([0.6, 0.2, 0.1, 0.1]), "q": doubles([0.7, 0.2, 0.05, 0.05])}


def test_names_say_what_is_lossy():
    for name, rule in RULES.items():
        assert rule.name == name and rule.lossless == ("lossy" not in name)
        assert rule.lossless or "LOSSY" in (rule.verify.__doc__ or "")


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize(
    ("p", "q"),
    [
        (P, Q),
        ([".5", ".3", ".2"], [".6", ".1", ".3"]),
        ([".6", ".3", ".1"], [".1", ".3", ".6"]),
        (["1/3", "1/3", "1/3"], ["1/3", "1/3", "1/3"]),
        (["0", "1/2", "1/2"], ["1", "0", "0"]),
        (["1/7", "6/7"], ["1", "0"]),
    ],
)
def test_one_step_emits_exactly_p(rule, p, q):
    p, q = fractions(p), fractions(q)
    assert emitted_distribution(rule, p, q) == p


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_one_hot_draft_emits_exactly_p(rule):
    p, q = fractions([".6", ".4"]), fractions(["1", "0"])
    assert emitted_distribution(rule, p, q) == p


def test_after_a_rejection_the_known_corrections():
    distribution = round_distribution(
        "token", lambda _: fractions([".5", ".3", ".2"]), lambda _: fractions([".6", ".1", ".3"])
    )
    assert {tokens for (accepted, tokens) in distribution if accepted == 0} == {(1,)}
    distribution = round_distribution("token", lambda _: fractions(P), lambda _: fractions(Q))
    corrections = {tokens[0]: w for (accepted, tokens), w in distribution.items() if accepted == 0}
    assert corrections == {2: fractions(".05"), 3: fractions(".05")}


@pytest.mark.parametrize("name", ["token", "block", "match", "lossy-typical", "lossy-leniency"])
@pytest.mark.parametrize(("p", "q"), [(P, Q), ([".6", ".3", ".1"], [".1", ".3", ".6"]), (["0", "1"], [".5", ".5"])])
def test_acceptance_is_what_the_formula_says(name, p, q):
    p, q = [float(x) for x in fractions(p)], [float(x) for x in fractions(q)]
    distribution = round_distribution(name, lambda _: p, lambda _: q)
    measured = sum(w for (accepted, _), w in distribution.items() if accepted == 1)
    expected = RULES[name].expected_acceptance(doubles(p), doubles(q))
    assert measured == pytest.approx(expected, abs=1e-12)


def test_acceptance_known_values():
    known = {"token": 0.90, "block": 0.90, "match": 0.47}
    for name, value in known.items():
        assert RULES[name].expected_acceptance(**FLOAT) == pytest.approx(value, abs=1e-12)
    one_hot = doubles([1.0, 0, 0, 0])
    assert RULES["token"].expected_acceptance(FLOAT["p"], one_hot) == pytest.approx(0.6)
    assert RULES["greedy"].expected_acceptance(one_hot, FLOAT["q"]) == pytest.approx(0.7)


def test_acceptance_of_the_greedy_rule():
    name, p, q = "greedy", [0.0, 1.0], [0.4, 0.6]
    distribution = round_distribution(name, lambda _: p, lambda _: q)
    measured = sum(w for (accepted, _), w in distribution.items() if accepted == 1)
    expected = RULES[name].expected_acceptance(doubles(p), doubles(q))
    assert measured == pytest.approx(expected, abs=1e-12)


def test_block_example_of_the_paper():
    """p = [1/3, 2/3], q = [2/3, 1/3], two drafts: 10/9 tokens accepted token-wise, 11/9 as a block (section 1)."""
    p, q = fractions(["1/3", "2/3"]), fractions(["2/3", "1/3"])
    for rule, expected in (("token", "10/9"), ("block", "11/9")):
        distribution = round_distribution(rule, lambda _: p, lambda _: q, gamma=2)
        assert sum(accepted * w for (accepted, _), w in distribution.items()) == fractions(expected)


def uneven(tokens):
    """A target that depends on what came before, in Fractions."""
    return fractions([[".6", ".3", ".1"], [".1", ".1", ".8"], [".25", ".5", ".25"]])[sum(tokens) % 3]


def uneven_draft(tokens):
    return fractions([[".1", ".3", ".6"], [".5", ".25", ".25"], [".4", ".3", ".3"]])[(len(tokens) + sum(tokens)) % 3]


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_joint_distribution_of_a_round_in_fractions(rule, gamma):
    """The emitted tokens, continued by the target to gamma + 1, have exactly the target's joint distribution."""
    joint = completed_distribution(round_distribution(rule, uneven, uneven_draft, gamma), uneven, gamma + 1)
    for tokens, probability in joint.items():
        expected = 1
        for i in range(gamma + 1):
            expected *= uneven(tokens[:i])[tokens[i]]
        assert probability == expected
    assert sum(joint.values()) == 1


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_block_never_keeps_fewer(gamma):
    """Prefix by prefix: P(accepted >= i) is never smaller, so no average over them can be."""

    def at_least(rule):
        distribution = round_distribution(rule, uneven, uneven_draft, gamma)
        return [sum(w for (accepted, _), w in distribution.items() if accepted >= i) for i in range(1, gamma + 1)]

    token, together = at_least("token"), at_least("block")
    assert token[0] == together[0]
    assert all(b >= t for t, b in zip(token, together, strict=True))
    assert gamma == 1 or sum(together) > sum(token)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_expected_accepted_of_a_block(gamma):
    p, q = [0.5, 0.2, 0.3], [0.2, 0.4, 0.4]
    distribution = round_distribution("block", lambda _: p, lambda _: q, gamma)
    measured = sum(accepted * w for (accepted, _), w in distribution.items())
    formula = block.expected_accepted(doubles(p), doubles(q), gamma)
    assert measured == pytest.approx(formula, abs=1e-12)


def test_block_asks_from_the_whole_block_downwards():
    asked = []

    class Asked(RandomSource):
        def bernoulli(self, p):
            asked.append(p)
            return False

    p, q = doubles([0.6, 0.4]), doubles([0.3, 0.7])
    proposal = Proposal([1, 1, 0], q.expand(3, 2))
    RULES["block"](proposal, p.expand(4, 2), Asked(0))
    rho = block.prefix_ratios(proposal, p.expand(4, 2))
    assert rho == pytest.approx([1, 4 / 7, 16 / 49, 32 / 49])
    h = [block.stop_probability(rho[i], p, q) for i in (2, 1)]
    assert asked == pytest.approx([rho[3], *h])


@pytest.mark.parametrize("leniency", [1.0, 0.8, 0.5, 0.1])
@pytest.mark.parametrize("p", [[0.6, 0.3, 0.1], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]])
def test_leniency_costs_exactly_the_acceptance_it_gains(leniency, p):
    q = [0.1, 0.3, 0.6]
    emitted = emitted_distribution(functools.partial(verify_lossy_leniency, leniency=leniency), p, q)
    as_tensors = doubles(p), doubles(q)
    lenient = RULES["lossy-leniency"].expected_acceptance
    gained = functools.partial(lenient, leniency=leniency)(*as_tensors) - RULES["token"].expected_acceptance(
        *as_tensors
    )
    assert total_variation(dict(enumerate(emitted)), dict(enumerate(p))) == pytest.approx(gained, abs=1e-12)
    # No token becomes more than 1/l times as likely.
    assert all(e <= x / leniency + 1e-12 for e, x in zip(emitted, p, strict=True))


@pytest.mark.parametrize("leniency", [0.0, -1.0, 1.5])
def test_leniency_out_of_range(leniency):
    with pytest.raises(ValueError, match="leniency"):
        emitted_distribution(functools.partial(verify_lossy_leniency, leniency=leniency), [0.5, 0.5], [0.5, 0.5])


def test_typical_acceptance_changes_the_distribution():
    p, q = [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]
    emitted = emitted_distribution("lossy-typical", p, q)
    threshold = typical_threshold(doubles(p))
    assert threshold == pytest.approx(min(0.09, 0.3 * 0.5**0.5 * 0.3**0.3 * 0.2**0.2), abs=1e-12)
    assert emitted == pytest.approx(q)  # every token of p is plausible, so the draft writes the text
    strict = emitted_distribution(functools.partial(verify_lossy_typical, epsilon=1.0, delta=10.0), p, q)
    assert strict == pytest.approx(p)  # nothing is kept, so the target does


def test_a_certain_draft_with_a_residual_that_rounding_emptied():
    class Unlucky(RandomSource):
        def bernoulli(self, p):
            return False

    p = torch.tensor([[1 - 1e-16, 0.0], [0.5, 0.5]], dtype=torch.float64)
    assert RULES["token"](Proposal([0]), p, Unlucky(0)).token == 0


def test_a_certain_draft_is_kept_with_the_targets_probability_of_it():
    p, q = torch.tensor([0.3, 0.7]), torch.tensor([0.0, 1.0])
    distribution = round_distribution("token", lambda _: p.tolist(), lambda _: q.tolist())
    assert sum(w for (accepted, _), w in distribution.items() if accepted == 1) == pytest.approx(0.7)


def test_a_rule_of_ones_own_is_known_by_its_name_alone():
    def everything(proposal, p, source):
        return Verdict(len(proposal.tokens), 0, "bonus")

    rule = as_rule(everything)
    assert (rule.name, rule.lossless, rule.expected_acceptance) == ("everything", None, None)
    assert as_rule(rule) is rule and as_rule("block") is RULES["block"]
    with pytest.raises(ValueError, match="there are token"):
        as_rule("tokens")
    with pytest.raises(TypeError, match="name or a function"):
        as_rule(3)


def test_a_verdict_says_which_drafts_stay():
    assert Verdict(2, 9, "corrected").emitted([5, 6, 7]) == [5, 6, 9]
    assert Verdict(2, 9, "corrected", (0, 2)).emitted([5, 6, 7]) == [5, 7, 9]
    with pytest.raises(ValueError, match="agree"):
        Verdict(2, 9, "corrected", (0,))


@pytest.mark.parametrize("gamma", [6, 8, 11])
def test_block_ratios_of_long_blocks(gamma):
    p, q = doubles([0.6, 0.4]), doubles([0.45, 0.55])
    tokens = [1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0][:gamma]
    want = [1.0]
    for x in tokens:
        want.append(min(1, want[-1] * (p[x] / q[x]).item()))
    assert block.prefix_ratios(Proposal(tokens, q.expand(gamma, 2)), p.expand(gamma + 1, 2)) == pytest.approx(want)


def test_typical_acceptance_drops_a_draft_that_is_exactly_on_the_threshold():
    p = doubles([[0.25, 0.75], [0.25, 0.75]])
    rule = functools.partial(verify_lossy_typical, epsilon=0.25, delta=100.0)
    assert rule(Proposal([0]), p, RandomSource(0)).accepted == 0
    above = functools.partial(verify_lossy_typical, epsilon=0.2499, delta=100.0)
    assert above(Proposal([0]), p, RandomSource(0)).accepted == 1
