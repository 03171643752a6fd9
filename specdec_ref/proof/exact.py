"""The exact suite: the production loop, enumerated, against the target's autoregressive distribution.

A `Scenario` is a scripted target, a drafter, a rule and options. Its distributions depend on every token of the
context, so a cache that was rolled back wrongly, or a distribution from the wrong row, changes the result. Equal
means within 1e-12 for the probability of every whole output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from specdec_ref.interfaces import Proposal
from specdec_ref.proof.enumeration import ReplaySource, enumerate_branches
from specdec_ref.proof.reference import (
    Tokens,
    expected_accepted,
)
from specdec_ref.proof.scenario import DRAFT_DISTRIBUTIONS, DRAFTERS, OPTIONS, Scenario, depending_on_all, moody
from specdec_ref.sampling import Sampling
from specdec_ref.verify import verify_block, verify_tokenwise
from specdec_ref.verify.batch import verify_block_batch, verify_tokenwise_batch

TOLERANCE = 1e-12


class Check(NamedTuple):
    """A statement and the size of its violation: 0, up to TOLERANCE, where it holds."""

    name: str
    deviation: Callable[[], float]


# Prompts after which a draft is accepted and one rejected, where the usual one would lead to one of them alone.
PROMPTS: dict[tuple[str, str], Tokens] = {
    ("lookup", "bad words"): (2, 0, 2),
    ("lookup", "greedy"): (0, 2, 0),
    ("larger", "greedy"): (1, 1),
    ("suffix", "greedy"): (0, 1),
    ("combined", "greedy"): (0, 0),
    ("controlled", "greedy"): (0, 0),
    ("model", "greedy"): (0, 1, 0),
    ("mapped", "greedy"): (0, 1),
    ("smaller", "bad words"): (0,),
    ("mapped", "bad words"): (1, 1),
}


def matrix() -> Iterator[tuple[str, Scenario]]:
    """Every lossless rule x drafter x option that go together, and configurations that a single factor misses."""
    for rule in ("token", "block", "match"):
        for drafter in DRAFTERS:
            for name, options in OPTIONS.items():
                # Sample and match draws once more for each draft: its branches multiply fastest.
                gamma = 1 if rule == "match" else 2
                # After this prompt a block's residual holds several tokens while rho < 1; lookup needs more to find.
                usual = (0,) if rule == "block" and drafter != "lookup" else (0, 1)
                prompt = PROMPTS.get((drafter, name), usual)
                yield f"{rule}, {drafter}, {name}", Scenario(rule, drafter, options, gamma=gamma, prompt=prompt)
    for rule in ("token-batched", "block-batched"):
        # Every draft of a round is tested, needed or not: more branches.
        for drafter in DRAFTERS:
            prompt = (0, 1, 0) if drafter == "lookup" else (0,)
            yield f"{rule}, {drafter}", Scenario(rule, drafter, budget=2, prompt=prompt)
        yield f"{rule}, long", Scenario(rule, vocab=2, gamma=3, budget=4, prompt=(0,))
        yield f"{rule}, top-p", Scenario(rule, options=OPTIONS["top-p"], prompt=(0,))
        yield f"{rule}, eos", Scenario(rule, eos=(1,), prompt=(0,), shows=("rejected", "eos"))
    for drafter in DRAFTERS:
        prompt = PROMPTS.get((drafter, "greedy"), (0, 1)) if drafter == "larger" else (0, 1)
        yield f"greedy, {drafter}", Scenario("greedy", drafter, OPTIONS["greedy"], budget=5, gamma=3, prompt=prompt)
    for rule in ("token", "block", "match"):
        yield f"{rule}, eos inside a block", Scenario(rule, eos=(1,), gamma=3, shows=("rejected", "cut", "eos"))
        yield f"{rule}, two eos, lookup", Scenario(rule, "lookup", eos=(0, 2), gamma=3, budget=4, shows=("eos",))
        yield f"{rule}, eos held back", Scenario(rule, options={"min_new_tokens": 2}, eos=(1,), gamma=3)
        yield f"{rule}, changing gamma", Scenario(rule, gamma=moody, vocab=2, budget=5)
        yield f"{rule}, long block of two tokens", Scenario(rule, vocab=2, gamma=4, budget=5)
        yield f"{rule}, lookup that runs on", Scenario(rule, "lookup", vocab=2, gamma=4, budget=5, prompt=(0, 1, 0, 1))
        yield f"{rule}, four tokens", Scenario(rule, vocab=4, budget=2)
        yield f"{rule}, four tokens, top-p", Scenario(rule, options={"top_p": 0.9}, vocab=4, budget=2)
        yield f"{rule}, prompt of one token", Scenario(rule, prompt=(2,), gamma=1)
        yield f"{rule}, budget of one", Scenario(rule, budget=1, shows=("plain",))
        yield f"{rule}, everything at once", Scenario(rule, options=EVERYTHING, gamma=moody, budget=4, eos=(2,))


BOTH = ("accepted", "rejected", "copied", "guessed", "draft rolled back")
EVERYTHING = {
    "temperature": 0.8,
    "top_k": 2,
    "top_p": 0.95,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.1,
    "min_new_tokens": 1,
    "logit_bias": {0: -0.5},
}


def acceptance_deviation(rule: str, options: Mapping[str, Any], gamma: int = 3) -> float:
    """|accepted drafts by enumeration - by formula|. Shows faults of the draft that the output hides."""
    scenario = Scenario(rule, options=options, gamma=gamma, budget=gamma + 1)
    draft_distribution = depending_on_all(DRAFT_DISTRIBUTIONS[scenario.vocab])
    options = {"temperature": 1.0, **options}
    expected = expected_accepted(
        rule, scenario.target_distribution, draft_distribution, scenario.prompt, gamma, **options
    )
    return abs(scenario.accepted() - expected)


def rejected_though_equal(gamma: int) -> float:
    """Expected number of rejected drafts in a generation in which draft and target are one model: 0."""
    scenario = Scenario(drafter="same", vocab=2, gamma=gamma, budget=2 * gamma + 2)
    engine, total = scenario.engine(), 0.0
    for branch in enumerate_branches(lambda source: scenario.generate(engine, source).stats.corrected):
        total += branch.probability * branch.outcome
    return total


def short_rounds_though_equal(gamma: int) -> float:
    """The same, for the number of rounds: each of them emits gamma + 1 tokens, the bonus included."""
    scenario = Scenario(drafter="same", vocab=2, gamma=gamma, budget=2 * (gamma + 1))
    engine, total = scenario.engine(), 0.0
    for branch in enumerate_branches(lambda source: scenario.generate(engine, source).stats.rounds):
        total += branch.probability * abs(branch.outcome - 2)
    return total


def zero_uniform() -> float:
    """How many answers of RandomSource are wrong where its uniform is exactly 0, or nearly 1."""
    distribution = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    low, high = ReplaySource([0.0] * 3, [0.0]), ReplaySource([1 - 2**-53] * 3, [1 - 2**-53])
    wrong = [
        low.bernoulli(0.0),
        not low.bernoulli(1e-300),
        low.categorical(distribution) != 1,
        high.bernoulli(1 - 2**-53),
        not high.bernoulli(1.0),
        high.categorical(distribution) != 2,
    ]
    return float(sum(wrong))


def broken_logits() -> float:
    """How many kinds of broken logits become a distribution without a word."""
    silent = 0.0
    for bad in (math.nan, math.inf):
        try:
            Sampling(1.0).probs(torch.tensor([[0.0, bad, 1.0]]))
            silent += 1
        except ValueError:
            pass
    return silent


def batch_disagreements(rows: int = 2000) -> float:
    """Rows in which a batched rule answers differently from the plain one on the same uniforms."""
    generator = torch.Generator().manual_seed(7)
    g, vocab = 3, 4
    p = torch.softmax(2 * torch.randn(rows, g + 1, vocab, generator=generator, dtype=torch.float64), -1)
    q = torch.softmax(2 * torch.randn(rows, g, vocab, generator=generator, dtype=torch.float64), -1)
    q[: rows // 4] = p[: rows // 4, :g]
    tokens = torch.multinomial(q.reshape(-1, vocab), 1, generator=generator).reshape(rows, g)
    keep = torch.rand(rows, g, generator=generator, dtype=torch.float64)
    last = torch.rand(rows, generator=generator, dtype=torch.float64)
    wrong = 0
    for plain, batched in ((verify_tokenwise, verify_tokenwise_batch), (verify_block, verify_block_batch)):
        accepted, token = batched(tokens, q, p, keep, last)
        for b in range(rows):
            coins = keep[b].tolist() if plain is verify_tokenwise else keep[b].tolist()[::-1]
            verdict = plain(Proposal(tokens[b].tolist(), q[b]), p[b], ReplaySource(coins, [last[b].item()]))
            wrong += (verdict.accepted, verdict.token) != (int(accepted[b]), int(token[b]))
    return float(wrong)


def core_checks() -> list[Check]:
    """The checks that plant-a-bug tests run: each looks for another kind of fault, the fastest first."""
    checks = [
        Check("generator at u = 0 and u -> 1", zero_uniform),
        Check("broken logits are refused", broken_logits),
    ]
    first = (0,)
    distributions = {
        "distribution: token, model": Scenario(),
        "distribution: token, lookup": Scenario(drafter="lookup", prompt=(0, 1, 0)),
        "distribution: token-batched": Scenario("token-batched", budget=2),
        "distribution: block-batched": Scenario("block-batched", vocab=2, gamma=3, budget=4, prompt=first),
        "distribution: block, model": Scenario("block", prompt=first),
        "distribution: match, model": Scenario("match", budget=2),
        "distribution: token, ties at temperature 0": Scenario(
            options=OPTIONS["greedy"], prompt=(1, 0), shows=("rejected",)
        ),
        "distribution: token, blocks at temperature 0": Scenario(
            options=OPTIONS["greedy"], vocab=2, gamma=3, budget=5, prompt=(1, 1)
        ),
        "distribution: token, top-k": Scenario(options=OPTIONS["top-k"]),
        "distribution: token, top-p": Scenario(options={"top_p": 0.9}, vocab=4, budget=2),
        "distribution: token, min-p": Scenario(options=OPTIONS["min-p"], prompt=first),
        "distribution: token, filters": Scenario(options=OPTIONS["filters"]),
        "distribution: token, repetition": Scenario(options=OPTIONS["repetition"], vocab=2, budget=4, prompt=first),
        "distribution: token, frequency": Scenario(options=OPTIONS["frequency"], vocab=2, budget=4, prompt=first),
        "distribution: token, eos": Scenario(eos=(1,), gamma=3),
        "distribution: token, eos held back": Scenario(options={"min_new_tokens": 2}, eos=(1,)),
        "distribution: token, smaller draft vocabulary": Scenario(drafter="smaller"),
        "distribution: token, larger draft vocabulary": Scenario(drafter="larger", budget=2),
        "distribution: block, long": Scenario("block", vocab=2, gamma=3, budget=4),
        "distribution: token, changing gamma": Scenario(gamma=moody),
    }
    both = Scenario(drafter="combined", vocab=2, budget=4, prompt=(1, 1), shows=BOTH)
    distributions["distribution: token, lookup or model"] = both
    checks += [Check(name, scenario.deviation) for name, scenario in distributions.items()]
    checks.insert(7, Check("batched rules equal plain ones", lambda: batch_disagreements(300)))
    for rule, gamma in (("token", 2), ("block", 2), ("match", 1)):
        for name in ("plain", "filters"):
            checks.append(
                Check(f"acceptance: {rule}, {name}", partial(acceptance_deviation, rule, OPTIONS[name], gamma))
            )
    both = replace(both, budget=5, prompt=(0, 1, 1), eos=(0,), shows=(*BOTH, "cut", "eos"))
    checks.append(Check("invariants: lookup or model", both.broken_invariants))
    chosen = Scenario(drafter="controlled", vocab=2, gamma=3, budget=4, prompt=(0, 0, 1), shows=BOTH[:4])
    checks += [
        Check("distribution: token, controller", chosen.deviation),
        Check("invariants: controller", chosen.broken_invariants),
    ]
    checks += [
        Check("acceptance: draft = target, nothing rejected", lambda: rejected_though_equal(2)),
        Check("acceptance: draft = target, gamma + 1 tokens per round", lambda: short_rounds_though_equal(2)),
        Check("two runs in one step", lambda: Scenario(vocab=2, budget=2).side_by_side((1,))),
        Check(
            "invariants: caches, counts, length",
            Scenario(prompt=(0,), budget=4, shows=("rolled back", "draft rolled back")).broken_invariants,
        ),
        Check("invariants: eos", Scenario(eos=(1,), gamma=3, shows=("rolled back", "cut", "eos")).broken_invariants),
        # A draft model ends its drafts at an end token, lookup goes on after it.
        Check(
            "invariants: eos inside a block",
            Scenario(drafter="lookup", eos=(1,), gamma=3, prompt=(0, 1, 0)).broken_invariants,
        ),
    ]
    return checks
