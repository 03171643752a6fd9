"""Configurations of the production loop that are small enough to enumerate, and what has to happen in each.

A `Scenario` is a scripted target, a drafter, a rule and options. Its distributions depend on every token of the
context, so a cache that was rolled back wrongly, or a distribution from the wrong row, changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

from specdec_ref.draft import CombinedDrafter, DraftModelDrafter, NGramDrafter, SuffixDrafter
from specdec_ref.draft.combined import Several
from specdec_ref.draft.tree import Candidates, DynamicTreeDrafter, TreeDrafter
from specdec_ref.engine import Controller, Round, Run, SpeculativeEngine, Stats
from specdec_ref.interfaces import Drafter, Rule
from specdec_ref.models.scripted import ScriptedModel, TokenCache
from specdec_ref.proof.enumeration import enumerate_branches, enumerate_distribution
from specdec_ref.proof.reference import Conditional, Tokens, autoregressive_distribution, difference, total_variation
from specdec_ref.sampling import RandomSource

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


def suffix_drafter(vocab: int) -> Drafter:
    """One-hot distributions, from the text and from two earlier answers; of its own it keeps none, so that every branch
    begins with the same.
    """
    drafter = SuffixDrafter(trust=None, least=0.4, depth=2, remember=False)
    drafter.learn([0, 1, vocab - 1, 0, 1, vocab - 1])
    drafter.learn([vocab - 1, 0, 0])
    return drafter


def combined_drafter(vocab: int) -> Drafter:
    """Lookup after a match of two tokens or more, another model elsewhere."""
    return CombinedDrafter(NGramDrafter(max_ngram=3, trust=None), model_drafter(vocab), long=2)


def controlled_drafter(vocab: int) -> Drafter:
    """A controller of lookup and another model, by times that make several choices worth taking."""
    lookup = NGramDrafter(max_ngram=3, trust=None)
    times = {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.8}
    return Controller([lookup, model_drafter(vocab)], times, draft_seconds=[0.0, 0.1], clock=None)


DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "model": model_drafter,
    "same": same_drafter,
    "smaller": smaller_drafter,
    "larger": larger_drafter,
    "mapped": mapped_drafter,
    "lookup": lookup_drafter,
    "suffix": suffix_drafter,
    "combined": combined_drafter,
    "controlled": controlled_drafter,
}
"""Drafters by name, for a target's vocabulary: another model, the target itself, one with one token fewer,
one more, one that numbers a part of the tokens its own way, lookup, counts of what followed, and lookup
or a model by the length of the match, or by what a controller expects of them."""

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "two": [(0,), (1,)],
    "bush": [(0,), (1,), (0, 0), (1, 0), (0, 1)],
    "comb": [(0,), (1,), (1, 0), (1, 1)],
    "three": [(0,), (1,), (2,)],
    "deep": [(0,), (0, 0), (1,), (0, 0, 0), (1, 0)],
}
"""Shapes of trees by name, as paths of ranks."""


def tree_drafter(vocab: int, shape: str = "bush", candidates: Candidates = "distinct") -> Drafter:
    """A tree of guesses of another model."""
    draft = ScriptedModel(depending_on_all(DRAFT_DISTRIBUTIONS[vocab]), vocab)
    return TreeDrafter(draft, SHAPES[shape], candidates)


def dynamic_tree_drafter(vocab: int) -> Drafter:
    """A tree that grows where another model is sure."""
    return DynamicTreeDrafter(ScriptedModel(depending_on_all(DRAFT_DISTRIBUTIONS[vocab]), vocab), 5, 3, 2)


def same_tree_drafter(vocab: int) -> Drafter:
    """Two guesses of the target itself: the first is always accepted."""
    return TreeDrafter(ScriptedModel(depending_on_all(DISTRIBUTIONS[vocab]), vocab), SHAPES["two"])


TREE_DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    **{
        f"{shape}, {candidates}": partial(tree_drafter, shape=shape, candidates=candidates)
        for shape in SHAPES
        for candidates in get_args(Candidates)
    },
    "dynamic": dynamic_tree_drafter,
    "two of its own": same_tree_drafter,
}
"""Drafters of trees by name: a shape and how its guesses are found, and trees that grow."""

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


EVENTS = {
    "accepted": "a draft was accepted",
    "rejected": "a draft was rejected",
    "bonus": "all drafts of a round were accepted",
    "plain": "nothing was drafted",
    "cut": "the output ended inside a round's tokens",
    "eos": "an end token ended the output",
    "rolled back": "the target's cache was cut by drafts that were not kept",
    "draft rolled back": "a draft model's cache was",
    "copied": "of several drafters, lookup made the proposal",
    "guessed": "of several drafters, the model did",
    "second guess": "a draft was accepted after another for the same place was rejected",
    "deep": "two drafts or more were accepted",
    "moved": "the path that was kept lay apart in the target's cache",
    "draft moved": "the path that was kept lay apart in the draft's cache",
}
"""What can happen in a round, by the names that `Scenario.shows` uses."""


class NothingShown(AssertionError):
    """A scenario in which what it is about never happens."""


def events(run: Run, round_: Round) -> Iterator[str]:
    """What happened in this round, of EVENTS."""
    drafted, accepted = len(round_.proposal.tokens), round_.verdict.accepted
    yield "plain" if not drafted else "rejected" if round_.verdict.origin == "corrected" else "bonus"
    if accepted:
        yield "accepted"
    if len(round_.kept) < accepted + 1:
        yield "cut"
    if run.finish_reason == "eos":
        yield "eos"
    if drafted > len(round_.kept) - 1:
        yield "rolled back"
    model = draft_model(run.drafter)
    if round_.proposal.parents is not None:
        yield from tree_events(round_)
    elif model is not None and drafted:
        fed = len(run.tokens) - len(round_.kept) + drafted - 1  # all but the last draft
        if round_.proposal.match == 0 and model.cache.length < fed:
            yield "draft rolled back"
    if drafted and round_.proposal.drafter:
        yield "copied" if round_.proposal.match else "guessed"


def draft_model(drafter: Drafter) -> DraftModelDrafter | None:
    """The drafter that has a model, itself or one of several."""
    several = drafter.drafters if isinstance(drafter, Several) else [drafter]
    return next((each for each in several if isinstance(each, DraftModelDrafter)), None)


def tree_events(round_: Round) -> Iterator[str]:
    """What happened in a round whose proposal was a tree."""
    proposal, path = round_.proposal, round_.verdict.indices
    if len(path) > 1:
        yield "deep"
    if path != tuple(range(len(path))):
        yield "moved"
    if any(proposal.children(proposal.links[i])[0] != i for i in path):
        yield "second guess"
        # A draft model takes in a tree depth by depth: an elder sibling with children lies before.
        inner = set(proposal.links)
        if any(i in inner and any(j in inner for j in proposal.children(proposal.links[i]) if j < i) for i in path):
            yield "draft moved"


@dataclass(frozen=True)
class Scenario:
    """One configuration of the production loop, on scripted models, small enough to enumerate.

    The target's distributions are those of DISTRIBUTIONS, chosen by the whole context.
    shows: what has to happen on some branch (see EVENTS), or the scenario would prove nothing. None asks for an
        accepted and a rejected draft, or a bonus instead where draft and target are one model.
    """

    rule: str | Rule = "token"
    drafter: str = "model"
    options: Mapping[str, Any] = field(default_factory=dict)
    vocab: int = 3
    gamma: int | Callable[[Stats], int] = 2
    budget: int = 3
    prompt: Tokens = (0, 1)
    eos: tuple[int, ...] = ()
    shows: Collection[str] | None = None

    @property
    def target_distribution(self) -> Conditional:
        return depending_on_all(DISTRIBUTIONS[self.vocab])

    def engine(self) -> SpeculativeEngine:
        """The production engine on fresh models."""
        target = ScriptedModel(self.target_distribution, self.vocab, self.eos)
        return SpeculativeEngine(target, (DRAFTERS | TREE_DRAFTERS)[self.drafter](self.vocab), self.gamma, self.rule)

    def generate(self, engine: SpeculativeEngine, source: RandomSource, **more: Any) -> Any:
        """One production generation, all its choices made by `source`."""
        options = {"temperature": 1.0, **self.options}
        return engine.generate(list(self.prompt), self.budget, source=source, **options, **more)

    def distribution(self) -> dict[Tokens, float]:
        """The joint distribution of whole outputs, by enumeration of the production loop."""
        return self._observed()[0]

    def _observed(self) -> tuple[dict[Tokens, float], set[str]]:
        """The joint distribution, and what happened on some branch."""
        engine, happened = self.engine(), set[str]()

        def note(run: Run, round_: Round) -> None:
            happened.update(events(run, round_))

        found = enumerate_distribution(lambda source: tuple(self.generate(engine, source, on_round=note).tokens))
        return found, happened

    def require(self, happened: Collection[str]) -> None:
        """Raises NothingShown unless everything that the scenario is to show is among what happened."""
        shows = self.shows
        if shows is None:
            shows = ("accepted", "bonus") if self.drafter == "same" else ("accepted", "rejected")
        if missing := sorted(set(shows) - set(happened)):
            raise NothingShown(f"on no branch of {self} does this happen: {', '.join(missing)}")

    def expected(self) -> dict[Tokens, float]:
        """The joint distribution that the target alone has under these options, in plain Python."""
        options = {"temperature": 1.0, **self.options}
        return autoregressive_distribution(self.target_distribution, self.prompt, self.budget, self.eos, **options)

    def deviation(self) -> float:
        """Largest difference of the two distributions; 0 up to rounding for a lossless rule.

        Raises NothingShown where what the scenario is about happens on no branch.
        """
        found, happened = self._observed()
        self.require(happened)
        return difference(found, self.expected())

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
        engine, total, happened = self.engine(), 0.0, set[str]()
        for branch in enumerate_branches(lambda source: self._sound(engine, source, happened)):
            total += 0.0 if branch.outcome else branch.probability
        self.require(happened)
        return total

    def _sound(self, engine: SpeculativeEngine, source: RandomSource, happened: set[str]) -> bool:
        sound: list[bool] = []

        def look(run: Run, round_: Round) -> None:
            happened.update(events(run, round_))
            committed = run.tokens[:-1]
            sound.append(isinstance(run.cache, TokenCache) and run.cache.tokens == committed)
            model = draft_model(run.drafter)
            draft_cache = None if model is None else model.cache
            if isinstance(draft_cache, TokenCache) and draft_cache.tokens:
                held = draft_cache.tokens
                # Where nothing was drafted the draft took nothing in; after a bonus it lacks the last draft.
                drew = round_.proposal.tokens and not round_.proposal.match
                lacks = len(committed) - len(held) if drew else 0
                sound.append(held == committed[: len(held)] and lacks <= (round_.verdict.origin == "bonus"))

        out = self.generate(engine, source, on_round=look)
        stats: Stats = out.stats
        ended = out.finish_reason == ("eos" if out.tokens and out.tokens[-1] in self.eos else "length")
        counted = (
            stats.emitted == len(out.tokens) == len(stats.origins) and stats.accepted <= stats.tested <= stats.drafted
        )
        return all(sound) and ended and counted and len(out.tokens) <= self.budget
