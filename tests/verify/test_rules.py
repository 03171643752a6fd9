"""The rules one by one: what they accept, what they emit, what they refuse."""

from __future__ import annotations

import functools

import pytest
import torch

from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.interfaces import Proposal
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof import (
    completed_distribution,
    emitted_distribution,
    enumerate_distribution,
    fractions,
    round_distribution,
    total_variation,
)
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES, block, verify_lossy_leniency, verify_lossy_typical
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


@pytest.mark.parametrize("rule", ["token", "block", "onehot", "match"])
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
    assert RULES["onehot"].expected_acceptance(FLOAT["p"], one_hot) == pytest.approx(0.6)
    assert RULES["greedy"].expected_acceptance(one_hot, FLOAT["q"]) == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["onehot", "greedy"])
def test_acceptance_of_rules_for_certain_distributions(name):
    p, q = ([0.3, 0.7], [0.0, 1.0]) if name == "onehot" else ([0.0, 1.0], [0.4, 0.6])
    distribution = round_distribution(name, lambda _: p, lambda _: q)
    measured = sum(w for (accepted, _), w in distribution.items() if accepted == 1)
    assert measured == pytest.approx(RULES[name].expected_acceptance(torch.tensor(p), torch.tensor(q)))


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


def test_onehot_refuses_a_drawn_draft():
    proposal = Proposal([0], torch.tensor([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="rule='token'"):
        RULES["onehot"](proposal, torch.tensor([[0.5, 0.5]] * 2), RandomSource(0))


def test_onehot_with_a_residual_that_rounding_emptied():
    class Unlucky(RandomSource):
        def bernoulli(self, p):
            return False

    p = torch.tensor([[1 - 1e-16, 0.0], [0.5, 0.5]], dtype=torch.float64)
    assert RULES["onehot"](Proposal([0]), p, Unlucky(0)).token == 0


def test_greedy_refuses_a_distribution_that_is_not_one_hot():
    with pytest.raises(ValueError, match="temperature=0"):
        RULES["greedy"](Proposal([0]), torch.tensor([[0.6, 0.4]] * 2), RandomSource(0))


@pytest.mark.parametrize("drafted", [[1, 0, 1], [1, 1, 1], [0, 0, 0], []])
def test_every_lossless_rule_agrees_at_temperature_0(drafted):
    p = torch.nn.functional.one_hot(torch.tensor([1, 0, 1, 1]), 2).double()[: len(drafted) + 1]
    verdicts = {rule(Proposal(drafted), p, RandomSource(0)) for rule in RULES.values() if rule.lossless}
    assert len(verdicts) == 1


@pytest.mark.parametrize("name", ["token", "block", "lossy-leniency"])
def test_a_draft_that_its_distribution_excludes_is_refused(name):
    proposal = Proposal([1], torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ValueError, match=r"q\(x\) = 0"):
        RULES[name](proposal, torch.tensor([[0.5, 0.5]] * 2), RandomSource(0))


@pytest.mark.parametrize("name", ["token", "block", "match", "lossy-typical"])
def test_a_token_of_probability_0_is_never_kept(name):
    distribution = round_distribution(name, lambda _: [0.0, 0.5, 0.5], lambda _: [1.0, 0.0, 0.0])
    assert all(0 not in tokens for _, tokens in distribution)


def test_one_tenth_accepts_one_tenth():
    distribution = round_distribution("token", lambda _: fractions([".1", ".9"]), lambda _: fractions(["1", "0"]))
    assert sum(w for (accepted, _), w in distribution.items() if accepted) == fractions("1/10")


def test_equal_distributions_in_float32_draw_from_p_where_the_residual_is_empty():
    """p from softmax, q from log_softmax().exp(): equal on paper, not to the last digit."""
    logits = torch.tensor([0.3, -1.2, 2.1, 0.05])
    p, q = logits.softmax(-1), logits.log_softmax(-1).exp()
    for name in ("token", "block"):
        outcomes = enumerate_distribution(
            lambda source, rule=RULES[name]: rule(Proposal([2], q[None]), torch.stack([p, p]), source).token
        )
        assert sum(outcomes.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["token", "block", "match", "lossy-typical", "lossy-leniency"])
def test_the_engine_takes_each_rule_by_name(name):
    target = ScriptedModel(lambda tokens: (0.6, 0.3, 0.1), 3)
    draft = ScriptedModel(lambda tokens: (0.1, 0.3, 0.6), 3)
    out = SpeculativeEngine(target, DraftModelDrafter(draft), rule=name).generate([0], 20, temperature=1.0, seed=1)
    assert len(out.tokens) == 20 and out.stats.emitted == 20


@pytest.mark.parametrize(
    ("rule", "lossless"), [("token", True), ("lossy-typical", False), (RULES["match"].verify, None)]
)
def test_statistics_say_whether_the_distribution_was_kept(rule, lossless):
    engine = SpeculativeEngine(ScriptedModel(lambda tokens: (0.5, 0.5), 2), rule=rule)
    assert engine.generate([0], 3).stats.lossless is lossless
