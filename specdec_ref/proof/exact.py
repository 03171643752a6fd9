"""The exact suite: the production loop, enumerated, against the target's autoregressive distribution.

A `Scenario` is a scripted target, a drafter, a rule and options. Its distributions depend on every token of the
context, so a cache that was rolled back wrongly, or a distribution from the wrong row, changes the result. Equal
means within 1e-12 for the probability of every whole output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from specdec_ref.draft import DraftModelDrafter, NGramDrafter
from specdec_ref.engine import Round, Run, SpeculativeEngine, Stats
from specdec_ref.interfaces import Drafter, Proposal, Rule
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof.enumeration import ReplaySource, enumerate_branches, enumerate_distribution
from specdec_ref.proof.reference import (
    Conditional,
    Tokens,
    autoregressive_distribution,
    difference,
    expected_accepted,
    total_variation,
)
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify import verify_block, verify_tokenwise
from specdec_ref.verify.batch import verify_block_batch, verify_tokenwise_batch

TOLERANCE = 1e-12

DISTRIBUTIONS: dict[int, list[tuple[float, ...]]] = {
    2: [(0.7, 0.3), (0.2, 0.8), (0.5, 0.5), (1.0, 0.0), (0.45, 0.55)],
    3: [(0.6, 0.3, 0.1), (0.1, 0.2, 0.7), (0.25, 0.5, 0.25), (0.0, 0.7, 0.3), (0.45, 0.1, 0.45)],
    4: [(0.5, 0.35, 0.1, 0.05), (0.1, 0.2, 0.3, 0.4), (0.0, 0.6, 0.0, 0.4), (0.25, 0.25, 0.25, 0.25)],
}
DRAFT_DISTRIBUTIONS: dict[int, list[tuple[float, ...]]] = {
    2: [(0.4, 0.6), (0.9, 0.1), (0.0, 1.0)],
    3: [(0.1, 0.3, 0.6), (0.5, 0.5, 0.0), (0.3, 0.4, 0.3), (0.2, 0.1, 0.7)],
    4: [(0.2, 0.2, 0.2, 0.4), (0.7, 0.0, 0.3, 0.0), (0.05, 0.15, 0.55, 0.25)],
}


def depending_on_all(distributions: Sequence[Sequence[float]]) -> Conditional:
    """A distribution that picks one of `distributions` by all tokens so far and their places."""
    return lambda tokens: distributions[sum((i + 1) * (t + 1) for i, t in enumerate(tokens)) % len(distributions)]


def model_drafter(vocab: int) -> Drafter:
    """Another model over the same vocabulary."""
    return DraftModelDrafter(ScriptedModel(depending_on_all(DRAFT_DISTRIBUTIONS[vocab]), vocab))


def same_drafter(vocab: int) -> Drafter:
    """The target's own distribution: everything it drafts is accepted."""
    return DraftModelDrafter(ScriptedModel(depending_on_all(DISTRIBUTIONS[vocab]), vocab))


def smaller_drafter(vocab: int) -> Drafter:
    """A draft that lacks the target's last token."""
    return model_drafter(vocab - 1)


def larger_drafter(vocab: int) -> Drafter:
    """A draft with one token that the target lacks."""
    return model_drafter(vocab + 1)


def mapped_drafter(vocab: int) -> Drafter:
    """Over all tokens but one, which it numbers the other way round."""
    draft = ScriptedModel(depending_on_all(DRAFT_DISTRIBUTIONS[vocab - 1]), vocab - 1)
    return DraftModelDrafter(draft, token_map=list(range(vocab - 1, 0, -1)))


def lookup_drafter(vocab: int) -> Drafter:
    """One-hot distributions, from the text itself."""
    return NGramDrafter(max_ngram=2, trust=None)  # the longest blocks, whatever they are worth


DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "model": model_drafter,
    "same": same_drafter,
    "smaller": smaller_drafter,
    "larger": larger_drafter,
    "mapped": mapped_drafter,
    "lookup": lookup_drafter,
}
"""Drafters by name, for a target's vocabulary: another model, the target itself, one with a token fewer,
one more, one that numbers a part of the tokens its own way, and lookup."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.3},
    "filters": {"temperature": 1.3, "top_k": 2, "top_p": 0.8},
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"presence_penalty": 0.3, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {0: 0.7, 1: -0.4}},
    "bad words": {"bad_words": [[1], [0, 0]]},
    "greedy": {"temperature": 0.0},
}
"""Sampling options by name, as `generate` takes them; temperature 1 where none is named."""


def moody(stats: Stats) -> int:
    """A gamma that changes from round to round, by what was accepted so far."""
    return (1 + 2 * stats.rounds + stats.accepted) % 3


@dataclass(frozen=True)
class Scenario:
    """One configuration of the production loop, on scripted models, small enough to enumerate.

    distribution: of the target, over `vocab` tokens; None picks one of DISTRIBUTIONS by the whole context.
    """

    rule: str | Rule = "token"
    drafter: str = "model"
    options: Mapping[str, Any] = field(default_factory=dict)
    vocab: int = 3
    gamma: int | Callable[[Stats], int] = 2
    budget: int = 3
    prompt: Tokens = (0, 1)
    eos: tuple[int, ...] = ()

    @property
    def target_distribution(self) -> Conditional:
        return depending_on_all(DISTRIBUTIONS[self.vocab])

    def engine(self) -> SpeculativeEngine:
        """The production engine on fresh models."""
        target = ScriptedModel(self.target_distribution, self.vocab, self.eos)
        return SpeculativeEngine(target, DRAFTERS[self.drafter](self.vocab), self.gamma, self.rule)

    def generate(self, engine: SpeculativeEngine, source: RandomSource, **more: Any) -> Any:
        """One production generation, all its choices made by `source`."""
        options = {"temperature": 1.0, **self.options}
        return engine.generate(list(self.prompt), self.budget, source=source, **options, **more)

    def distribution(self) -> dict[Tokens, float]:
        """The joint distribution of whole outputs, by enumeration of the production loop."""
        engine = self.engine()
        return enumerate_distribution(lambda source: tuple(self.generate(engine, source).tokens))

    def expected(self) -> dict[Tokens, float]:
        """The joint distribution that the target alone has under these options, in plain Python."""
        options = {"temperature": 1.0, **self.options}
        return autoregressive_distribution(self.target_distribution, self.prompt, self.budget, self.eos, **options)

    def deviation(self) -> float:
        """Largest difference of the two distributions; 0 up to rounding for a lossless rule."""
        return difference(self.distribution(), self.expected())

    def total_variation(self) -> float:
        """TV between what is emitted and what should be: the exact price of a lossy rule."""
        return total_variation(self.distribution(), self.expected())

    def side_by_side(self, other: Tokens) -> float:
        """Largest difference between what two runs, on this prompt and on `other`, write when their rounds are made in
        one step, and what they should write: the product of the two expected distributions.
        """
        engine = self.engine()

        def both(source: RandomSource) -> tuple[Tokens, ...]:
            options = {"temperature": 1.0, **self.options}
            runs = [engine.start(list(p), self.budget, source=source, **options) for p in (self.prompt, other)]
            while going := [run for run in runs if run.finish_reason is None]:
                engine.step(going)
            return tuple(tuple(run.output) for run in runs)

        one, two = self.expected(), replace(self, prompt=other).expected()
        return difference(enumerate_distribution(both), {(a, b): one[a] * two[b] for a in one for b in two})

    def accepted(self) -> float:
        """E[accepted drafts] of the first round, before a stop or the budget cuts anything."""
        engine, total = self.engine(), 0.0
        rounds: list[Round] = []
        for branch in enumerate_branches(lambda source: self._first_round(engine, source, rounds)):
            total += branch.probability * branch.outcome
        return total

    def _first_round(self, engine: SpeculativeEngine, source: RandomSource, rounds: list[Round]) -> int:
        rounds.clear()
        self.generate(engine, source, on_round=lambda run, round_: rounds.append(round_))
        return rounds[0].verdict.accepted

    def broken_invariants(self) -> float:
        """Probability of the branches on which a round leaves a cache, a count or the output's length wrong."""
        engine, total = self.engine(), 0.0
        for branch in enumerate_branches(lambda source: self._sound(engine, source)):
            total += 0.0 if branch.outcome else branch.probability
        return total

    def _sound(self, engine: SpeculativeEngine, source: RandomSource) -> bool:
        sound: list[bool] = []

        def look(run: Run, round_: Round) -> None:
            committed = run.tokens[:-1]
            sound.append(run.cache.tokens == committed)
            if isinstance(run.drafter, DraftModelDrafter) and run.drafter.cache.tokens:
                held = run.drafter.cache.tokens
                lacks = len(committed) - len(held)
                sound.append(held == committed[: len(held)] and lacks <= (round_.verdict.origin == "bonus"))

        out = self.generate(engine, source, on_round=look)
        stats: Stats = out.stats
        ended = out.finish_reason == ("eos" if out.tokens and out.tokens[-1] in self.eos else "length")
        counted = (
            stats.emitted == len(out.tokens) == len(stats.origins) and stats.accepted <= stats.tested <= stats.drafted
        )
        return all(sound) and ended and counted and len(out.tokens) <= self.budget


class Check(NamedTuple):
    """A statement and the size of its violation: 0, up to TOLERANCE, where it holds."""

    name: str
    deviation: Callable[[], float]


def matrix() -> Iterator[tuple[str, Scenario]]:
    """Every lossless rule x drafter x option that go together, and configurations that a single factor misses."""
    for rule in ("token", "block", "match"):
        for drafter in DRAFTERS:
            for name, options in OPTIONS.items():
                # Sample and match draws once more for each draft: its branches multiply fastest.
                gamma = 1 if rule == "match" else 2
                # After this prompt a block's residual holds several tokens while rho < 1.
                prompt = (0,) if rule == "block" else (0, 1)
                yield f"{rule}, {drafter}, {name}", Scenario(rule, drafter, options, gamma=gamma, prompt=prompt)
    for rule in ("token-batched", "block-batched"):
        # Every draft of a round is tested, needed or not: more branches.
        for drafter in DRAFTERS:
            yield f"{rule}, {drafter}", Scenario(rule, drafter, budget=2, prompt=(0,))
        yield f"{rule}, long", Scenario(rule, vocab=2, gamma=3, budget=4, prompt=(0,))
        yield f"{rule}, top-p", Scenario(rule, options=OPTIONS["top-p"], prompt=(0,))
        yield f"{rule}, eos", Scenario(rule, eos=(1,), prompt=(0,))
    for drafter in DRAFTERS:
        yield f"greedy, {drafter}", Scenario("greedy", drafter, OPTIONS["greedy"], budget=5, gamma=3)
    for rule in ("token", "block", "match"):
        yield f"{rule}, eos inside a block", Scenario(rule, eos=(1,), gamma=3)
        yield f"{rule}, two eos, lookup", Scenario(rule, "lookup", eos=(0, 2), gamma=3, budget=4)
        yield f"{rule}, eos held back", Scenario(rule, options={"min_new_tokens": 2}, eos=(1,), gamma=3)
        yield f"{rule}, changing gamma", Scenario(rule, gamma=moody, vocab=2, budget=5)
        yield f"{rule}, long block of two tokens", Scenario(rule, vocab=2, gamma=4, budget=5)
        yield f"{rule}, lookup that runs on", Scenario(rule, "lookup", vocab=2, gamma=4, budget=5, prompt=(0, 1, 0, 1))
        yield f"{rule}, four tokens", Scenario(rule, vocab=4, budget=2)
        yield f"{rule}, four tokens, top-p", Scenario(rule, options={"top_p": 0.9}, vocab=4, budget=2)
        yield f"{rule}, prompt of one token", Scenario(rule, prompt=(2,), gamma=1)
        yield f"{rule}, budget of one", Scenario(rule, budget=1)
        yield f"{rule}, everything at once", Scenario(rule, options=EVERYTHING, gamma=moody, budget=4, eos=(2,))


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
        "distribution: token, ties at temperature 0": Scenario(options=OPTIONS["greedy"], prompt=(1, 0)),
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
    checks += [Check(name, scenario.deviation) for name, scenario in distributions.items()]
    checks.insert(7, Check("batched rules equal plain ones", lambda: batch_disagreements(300)))
    for rule, gamma in (("token", 2), ("block", 2), ("match", 1)):
        for name in ("plain", "filters"):
            checks.append(
                Check(f"acceptance: {rule}, {name}", partial(acceptance_deviation, rule, OPTIONS[name], gamma))
            )
    checks += [
        Check("acceptance: draft = target, nothing rejected", lambda: rejected_though_equal(2)),
        Check("acceptance: draft = target, gamma + 1 tokens a round", lambda: short_rounds_though_equal(2)),
        Check("two runs in one step", lambda: Scenario(vocab=2, budget=2).side_by_side((1,))),
        Check("invariants: caches, counts, length", Scenario(eos=(1,), gamma=3).broken_invariants),
        # A draft model ends its drafts at an end token, lookup goes on behind it.
        Check(
            "invariants: eos inside a block",
            Scenario(drafter="lookup", eos=(1,), gamma=3, prompt=(0, 1, 0)).broken_invariants,
        ),
    ]
    return checks
