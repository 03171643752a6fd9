"""The statistical suite: counts from the production generator against exact distributions, with stated size and power.

Enumeration replaces the generator, so it can't see a broken one, and a batched rule on a device is too wide to
enumerate. Here both are sampled. The whole suite blames correct code in less than `SIZE` of its runs (Holm over all
checks), and each check says with which probability it finds a named fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.proof.goodness import GTest, g_test, holm, mixture, power
from specdec_ref.proof.scenario import Scenario
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import RULES, acceptance_probability
from specdec_ref.verify.batch import draw, verify_block_batch, verify_tokenwise_batch

SIZE = 1e-6
"""Probability that a run of the whole suite blames correct code."""

MILLION = 1_100_000
"""Draws of a batched check: enough to find the article's distribution mixed in at 2% with 99% power."""

FEWER = 300_000
"""Draws of the other batched checks."""

# Distributions of two drafted places and the one after them, [3] after nothing and [3, 3] after each token. The
# first pair is the one with which the article's rule emits ARTICLE.
P1, Q1 = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
P2 = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]], dtype=torch.float64)
Q2 = torch.tensor([[0.5, 0.25, 0.25], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], dtype=torch.float64)
P3 = torch.tensor([[0.3, 0.4, 0.3], [0.7, 0.2, 0.1], [0.15, 0.25, 0.6]], dtype=torch.float64)
ARTICLE = [0.4, 0.45, 0.15]
"""What is emitted if a rejection is followed by a draw from p itself: min(p, q) + (1 - sum min(p, q)) p."""

Sampler = Callable[[int, int], "Iterable[Any] | Counter[Any]"]
"""draws, seed -> outcomes, or their counts: as many as draws, fewer where a check looks at a part of them."""


@dataclass(frozen=True)
class StatisticalCheck:
    """Outcomes that should follow `distribution`, the sampler that gives them, and faults that should be noticed.

    faults: name -> the distribution that a program with this fault has.
    share: the expected part of the draws that the check looks at; less than 1 where it is about a condition.
    """

    name: str
    distribution: Mapping[Any, float]
    sample: Sampler
    draws: int
    faults: Mapping[str, list[float]] = field(default_factory=dict)
    share: float = 1.0

    def test(self, seed: int = 0) -> GTest:
        """The G test of one run. An outcome that the distribution does not know settles it."""
        sampled = self.sample(self.draws, seed)
        counts = sampled if isinstance(sampled, Counter) else Counter(sampled)
        if set(counts) - set(self.distribution):
            return GTest(float("inf"), len(self.distribution) - 1, 0.0)
        return g_test([counts[x] for x in self.distribution], list(self.distribution.values()))

    def power(self, size: float) -> dict[str, float]:
        """For each named fault the probability that it is found by `draws` draws at this size."""
        draws = int(self.draws * self.share)
        return {
            name: power(distribution, list(self.distribution.values()), draws, size)
            for name, distribution in self.faults.items()
        }


class Finding(NamedTuple):
    """What a check said in a run of the suite: `failed` only where Holm's procedure rejects."""

    name: str
    p_value: float
    failed: bool


def run_suite(seed: int = 0, checks: list[StatisticalCheck] | None = None, size: float = SIZE) -> list[Finding]:
    """All checks, judged together: correct code fails anywhere with probability below `size`."""
    checks = suite() if checks is None else checks
    p_values = [check.test(seed).p_value for check in checks]
    return [
        Finding(check.name, p, failed) for check, p, failed in zip(checks, p_values, holm(p_values, size), strict=True)
    ]


def pairs(first: Tensor, second: Tensor) -> dict[tuple[int, int], float]:
    """Joint distribution of two tokens: `first` `[V]`, `second` `[V, V]` given the first."""
    joint = first.unsqueeze(1) * second
    return {(a, b): joint[a, b].item() for a in range(len(first)) for b in range(joint.shape[1])}


# The generator


def coin_pairs(draws: int, seed: int) -> Iterable[Any]:
    """Two coins after each other."""
    source = RandomSource(seed)
    return ((source.bernoulli(0.3), source.bernoulli(0.3)) for _ in range(draws))


def token_pairs(draws: int, seed: int) -> Iterable[Any]:
    """Two tokens after each other."""
    source = RandomSource(seed)
    return ((source.categorical(P1), source.categorical(P1)) for _ in range(draws))


def coin_then_token(draws: int, seed: int) -> Iterable[Any]:
    """A coin, then a token."""
    source = RandomSource(seed)
    return ((source.bernoulli(0.3), source.categorical(P1)) for _ in range(draws))


def token_then_coin(draws: int, seed: int) -> Iterable[Any]:
    """A token, then a coin."""
    source = RandomSource(seed)
    return ((source.categorical(P1), source.bernoulli(0.3)) for _ in range(draws))


def seed_pairs(draws: int, seed: int) -> Iterable[Any]:
    """The first coin under a seed and under the next one."""
    first = seed * 4 * draws
    return (
        (RandomSource(s).bernoulli(0.3), RandomSource(s + 1).bernoulli(0.3)) for s in range(first, first + 2 * draws, 2)
    )


def fault(name: str, share: float, distribution: Mapping[Any, float], wrong: Iterable[float]) -> dict[str, list[float]]:
    """A named fault that happens in a `share` of the draws: its name, and the distribution that a program with it
    has.
    """
    return {f"{name}, {share:.0%}": mixture(list(distribution.values()), list(wrong), share)}


def generator_checks() -> list[StatisticalCheck]:
    """The seeded generator: every answer has its distribution, and none depends on the one before."""
    coins = {(True, True): 0.09, (True, False): 0.21, (False, True): 0.21, (False, False): 0.49}
    same_coin = [0.3, 0.0, 0.0, 0.7]
    tokens = pairs(P1, P1.expand(3, 3))
    same_token = [P1[a].item() if a == b else 0.0 for a, b in tokens]
    mixed = {(c, x): (0.3 if c else 0.7) * P1[x].item() for c in (True, False) for x in range(3)}
    shared = [0.3, 0.0, 0.0, 0.3, 0.3, 0.1]  # one uniform for both: u < .3 is the coin and a part of token 0
    turned = {(x, c): p for (c, x), p in mixed.items()}
    return [
        StatisticalCheck(
            f"generator: {name}", distribution, sample, draws, fault(wrong, share, distribution, wrong_distribution)
        )
        for name, distribution, sample, draws, wrong, share, wrong_distribution in (
            ("coin after coin", coins, coin_pairs, 100_000, "same uniform", 0.05, same_coin),
            ("token after token", tokens, token_pairs, 10_000, "same uniform", 0.10, same_token),
            ("token after coin", mixed, coin_then_token, 10_000, "same uniform", 0.20, shared),
            ("coin after token", turned, token_then_coin, 10_000, "same uniform", 0.20, shared),
            ("seed after seed", coins, seed_pairs, 20_000, "seed ignored", 0.10, same_coin),
        )
    ]


# The plain rules and the whole loop, through the production generator


def rule_pairs(rule: str) -> Sampler:
    """The first two tokens after rounds of two drafts; where a round emits one, the target gives the second."""

    def sample(draws: int, seed: int) -> Iterable[Any]:
        source, verify = RandomSource(seed), RULES[rule]
        for _ in range(draws):
            a = source.categorical(Q1)
            b = source.categorical(Q2[a])
            verdict = verify(Proposal([a, b], torch.stack([Q1, Q2[a]])), torch.stack([P1, P2[a], P3[b]]), source)
            emitted = verdict.emitted([a, b])
            if len(emitted) == 1:
                emitted.append(source.categorical(P2[emitted[0]]))
            yield emitted[0], emitted[1]

    return sample


def loop_tokens(scenario: Scenario) -> Sampler:
    """Whole outputs of the production loop, one seed after the other."""

    def sample(draws: int, seed: int) -> Iterable[Any]:
        engine = scenario.engine()
        first = seed * 4 * draws
        return (tuple(scenario.generate(engine, RandomSource(s)).tokens) for s in range(first, first + draws))

    return sample


def verify_article(proposal: Proposal, p: Tensor, source: RandomSource) -> Verdict:
    """The article's rule: right acceptance, but after a rejection a draw from p itself. A fault to be found."""
    for i, x in enumerate(proposal.tokens):
        q_i = proposal.distribution(i, like=p[i])
        if not source.bernoulli(acceptance_probability(p[i, x].item(), q_i[x].item())):
            return Verdict(i, source.categorical(p[i]), "corrected")
    return Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")


def plain_checks() -> list[StatisticalCheck]:
    """The rules as the engine calls them, and the engine: thousands of draws, so only larger faults show."""
    distribution = pairs(P1, P2)
    wrong = pairs(torch.tensor(ARTICLE, dtype=torch.float64), P2)
    checks = [
        StatisticalCheck(
            f"rule {rule}: first two tokens",
            distribution,
            rule_pairs(rule),
            5_000,
            fault("the article's distribution", 0.35, distribution, wrong.values()),
        )
        for rule in ("token", "block", "match")
    ]
    loop, right = Scenario(budget=2, prompt=(0,)), Scenario(budget=2, prompt=(0,)).expected()
    article = Scenario(verify_article, budget=2, prompt=(0,)).distribution()
    found = fault("the article's rule", 0.5, right, [article[x] for x in right])
    return [*checks, StatisticalCheck("whole loop: two tokens", right, loop_tokens(loop), 2_000, found)]


# The batched rules


class Rounds(NamedTuple):
    """Rounds of two drafts: what was drafted `[B, 2]`, how much of it was kept `[B]`, and the token after it `[B]`."""

    drafted: Tensor
    accepted: Tensor
    token: Tensor


def batched_rounds(rule: Callable[..., tuple[Tensor, Tensor]], draws: int, generator: torch.Generator) -> Rounds:
    """`draws` independent rounds of a batched rule, from uniforms of a seeded generator."""
    u = torch.rand(5, draws, generator=generator, dtype=torch.float64)
    a = draw(Q1.expand(draws, 3), u[0])
    b = draw(Q2[a], u[1])
    q = torch.stack([Q1.expand(draws, 3), Q2[a]], 1)
    p = torch.stack([P1.expand(draws, 3), P2[a], P3[b]], 1)
    drafted = torch.stack([a, b], 1)
    return Rounds(drafted, *rule(drafted, q, p, u[2:4].T, u[4]))


def batched_pairs(rule: Callable[..., tuple[Tensor, Tensor]]) -> Sampler:
    """First two tokens; where a round emits one, the target gives the second."""

    def sample(draws: int, seed: int) -> Counter[Any]:
        generator = torch.Generator().manual_seed(seed)
        rounds = batched_rounds(rule, draws, generator)
        first = torch.where(rounds.accepted > 0, rounds.drafted[:, 0], rounds.token)
        after = draw(P2[first], torch.rand(draws, generator=generator, dtype=torch.float64))
        second = torch.where(
            rounds.accepted > 1, rounds.drafted[:, 1], torch.where(rounds.accepted > 0, rounds.token, after)
        )
        return _counted(first, second)

    return sample


def batched_first(rule: Callable[..., tuple[Tensor, Tensor]]) -> Sampler:
    """The first emitted token alone: fewer cells, more power."""

    def sample(draws: int, seed: int) -> Counter[Any]:
        rounds = batched_rounds(rule, draws, torch.Generator().manual_seed(seed))
        return _counted(torch.where(rounds.accepted > 0, rounds.drafted[:, 0], rounds.token))

    return sample


def batched_bonus(rule: Callable[..., tuple[Tensor, Tensor]]) -> Sampler:
    """The bonus token given that the drafts 0, 0 were both kept."""

    def sample(draws: int, seed: int) -> Counter[Any]:
        rounds = batched_rounds(rule, draws, torch.Generator().manual_seed(seed))
        whole = (rounds.accepted == 2) & (rounds.drafted == 0).all(1)
        return _counted(rounds.token[whole])

    return sample


def batched_correction(rule: Callable[..., tuple[Tensor, Tensor]]) -> Sampler:
    """The correction of the second place, given that the first draft was a 0 and was kept."""

    def sample(draws: int, seed: int) -> Counter[Any]:
        rounds = batched_rounds(rule, draws, torch.Generator().manual_seed(seed))
        return _counted(rounds.token[(rounds.accepted == 1) & (rounds.drafted[:, 0] == 0)])

    return sample


def batched_accepted(rule: Callable[..., tuple[Tensor, Tensor]]) -> Sampler:
    """How many drafts a round keeps."""

    def sample(draws: int, seed: int) -> Iterable[Any]:
        return _counted(batched_rounds(rule, draws, torch.Generator().manual_seed(seed)).accepted)

    return sample


def accepted_distribution(rule: str) -> dict[int, float]:
    """Distribution of the accepted drafts in those rounds: a prefix is kept with prod min(1, p/q), or with rho
    ("block").
    """
    at_least = [1.0, 0.0, 0.0]
    for a in range(3):
        first = min(1.0, (P1[a] / Q1[a]).item())
        at_least[1] += Q1[a].item() * first
        for b in range(3):
            r = (P2[a, b] / Q2[a, b]).item()
            kept = min(1.0, first * r) if rule == "block" else first * min(1.0, r)
            at_least[2] += (Q1[a] * Q2[a, b]).item() * kept
    return {0: 1 - at_least[1], 1: at_least[1] - at_least[2], 2: at_least[2]}


def batched_checks() -> list[StatisticalCheck]:
    """The rules on many rows: the first token, pairs, the bonus, the correction, and how much is accepted."""
    first, second, bonus = dict(enumerate(P1.tolist())), pairs(P1, P2), dict(enumerate(P3[0].tolist()))
    residual = (P2[0] - Q2[0]).clamp(min=0)
    correction = dict(enumerate((residual / residual.sum()).tolist()))
    wrong_pairs = pairs(torch.tensor(ARTICLE, dtype=torch.float64), P2).values()
    both_zero = (Q1[0] * P2[0, 0]).item()  # drafts 0, 0 kept: the first for certain, p > q there, then q min(1, p/q)
    corrected = (Q1[0] * residual.sum()).item()
    checks: list[StatisticalCheck] = []
    for name, rule in (("token", verify_tokenwise_batch), ("block", verify_block_batch)):
        kept = accepted_distribution(name)
        for part, distribution, sample, draws, share, found in (
            (
                "first token",
                first,
                batched_first,
                MILLION,
                1.0,
                fault("the article's distribution", 0.02, first, ARTICLE),
            ),
            (
                "pairs",
                second,
                batched_pairs,
                FEWER,
                1.0,
                fault("the article's distribution", 0.06, second, wrong_pairs),
            ),
            ("accepted", kept, batched_accepted, FEWER, 1.0, fault("everything is kept", 0.02, kept, [0, 0, 1])),
            ("bonus", bonus, batched_bonus, FEWER, both_zero, fault("row before", 0.5, bonus, P2[0].tolist())),
        ):
            checks.append(StatisticalCheck(f"batched {name}: {part}", distribution, sample(rule), draws, found, share))
    found = fault("a draw from p", 0.02, correction, P2[0].tolist())
    on_rejection = batched_correction(verify_tokenwise_batch)
    return [*checks, StatisticalCheck("batched token: correction", correction, on_rejection, FEWER, found, corrected)]


def _counted(*columns: Tensor) -> Counter[Any]:
    """Outcomes of many rows, grouped: a token, or a tuple of tokens, with its count."""
    shape = [3] * len(columns)
    code = sum(column * 3**i for i, column in enumerate(reversed(columns)))
    counts = torch.bincount(code, minlength=3 ** len(columns)).reshape(shape)
    return Counter(
        {(x[0] if len(x) == 1 else x): int(counts[x]) for x in product(range(3), repeat=len(shape)) if counts[x]}
    )


def suite() -> list[StatisticalCheck]:
    """All checks: the generator, the plain rules and the loop on it, the batched rules."""
    return [*generator_checks(), *plain_checks(), *batched_checks()]
