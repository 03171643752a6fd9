"""Things that go wrong in the middle: the error is clear, and the next call is right."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from support.spelling import Knows, Pieces, Strict, speller

from specdec_ref import DraftModelDrafter, NGramDrafter, Proposal, SpeculativeEngine
from specdec_ref.engine.text import TextStream
from specdec_ref.interfaces import Drafter

VOCAB, PROMPT, LENGTH = 5, [0, 1, 0, 1], 14


def weights(tokens):
    """Positive weights from the whole history, so that a cache out of step changes the output."""
    seed = sum((i + 1) * (t + 2) for i, t in enumerate(tokens)) % 97
    return [1 + (seed * (i + 3)) % 11 for i in range(VOCAB)]


def distribution(tokens):
    w = weights(tokens)
    return [x / sum(w) for x in w]


def model(**options):
    return Strict(distribution, VOCAB, **options)


EXPECTED = SpeculativeEngine(model()).generate(PROMPT, LENGTH).tokens


class Broken(Exception):
    pass


class Fails:
    """Passes calls through, and raises at the n-th."""

    def __init__(self, function, at, error):
        self.function, self.at, self.error, self.calls = function, at, error, 0

    def __call__(self, *args):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*args)


class Streamer:
    def __init__(self):
        self.open, self.ids = False, []

    def put(self, value):
        if not self.open:
            self.open, self.ids = True, []
        else:
            self.ids += value.tolist()

    def end(self):
        self.open = False


WHERE = ["target.forward", "draft.forward", "propose", "commit", "put", "on_round", "gamma", "processor", "rule"]


@pytest.mark.parametrize("error", [Broken("no"), KeyboardInterrupt()], ids=["exception", "interrupt"])
@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("where", WHERE)
def test_an_error_anywhere_comes_out_as_it_is_and_the_next_call_is_right(where, at, error, monkeypatch):
    target, draft, streamer = model(), model(), Streamer()
    drafter = DraftModelDrafter(draft)
    engine = SpeculativeEngine(target, drafter, 3)
    options = {"streamer": streamer, "on_round": lambda run, round_: None, "processors": [lambda ids, scores: scores]}
    with monkeypatch.context() as patch:

        def break_(owner, name):
            patch.setattr(owner, name, Fails(getattr(owner, name), at, error))

        if where == "processor":
            options["processors"] = [Fails(options["processors"][0], at, error)]
        elif where == "on_round":
            options["on_round"] = Fails(options["on_round"], at, error)
        elif where == "gamma":
            patch.setattr(engine, "gamma", Fails(lambda stats: 3, at, error))
        elif where in ("propose", "commit"):
            fails = Fails(getattr(DraftModelDrafter, where), at, error)
            patch.setattr(DraftModelDrafter, where, lambda self, *a: fails(self, *a))
        elif where == "rule":
            verify = Fails(engine.rule.verify, at, error)
            patch.setattr(engine, "rule", dataclasses.replace(engine.rule, verify=verify, greedy_by_argmax=False))
        else:
            owner = {"target": target, "draft": draft, "put": streamer}[where.split(".")[0]]
            break_(owner, where.split(".")[-1])
        with pytest.raises(type(error)):
            engine.generate(PROMPT, LENGTH, **options)
    assert not streamer.open, "a thread that reads the streamer would wait for ever"
    options["processors"] = []
    assert engine.generate(PROMPT, LENGTH, **options).tokens == EXPECTED
    assert streamer.ids == EXPECTED


@pytest.mark.parametrize("drafter", [None, NGramDrafter(), DraftModelDrafter(model())], ids=["none", "lookup", "model"])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_closed_generator_leaves_the_engine_usable(drafter, rounds):
    engine, streamer = SpeculativeEngine(model(), drafter, 3), Streamer()
    stream = engine.stream(PROMPT, LENGTH, streamer=streamer)
    for _ in range(rounds):
        next(stream)
    stream.close()
    assert not streamer.open
    assert next(stream, "over") == "over"
    assert engine.generate(PROMPT, LENGTH).tokens == EXPECTED


def test_a_stream_that_failed_is_over():
    engine = SpeculativeEngine(model(), NGramDrafter(), 3)
    stream = engine.stream(PROMPT, LENGTH, on_round=Fails(lambda *_: None, 2, Broken()))
    next(stream)
    with pytest.raises(Broken):
        next(stream)
    assert next(stream, "over") == "over"


def test_wrong_input_is_refused_at_the_call_and_not_at_the_first_token():
    engine = SpeculativeEngine(model(), NGramDrafter())
    for arguments in (([], 3), ([9], 3), (PROMPT, -1), ("text", 3)):
        with pytest.raises(ValueError):
            engine.stream(*arguments)


@pytest.mark.parametrize("n_streams", [2, 3])
@pytest.mark.parametrize("make", [NGramDrafter, lambda: DraftModelDrafter(model()), lambda: Remembers()])
def test_interleaved_streams_do_not_disturb_each_other(n_streams, make):
    """Different prompts, seeds and lengths, one round of each in turn, give what each gives alone."""
    engine = SpeculativeEngine(model(), make(), 3)
    calls = [
        dict(prompt=[0, 1, i, 0, 1], max_new_tokens=12 + i, temperature=0.7 * (i % 2), seed=i, repetition_penalty=1 + i)
        for i in range(n_streams)
    ]
    alone = [engine.generate(**call).tokens for call in calls]
    streams = [engine.stream(**call) for call in calls]
    together = [[] for _ in calls]
    for round_ in itertools.zip_longest(*streams):
        for tokens, chunk in zip(together, round_, strict=True):
            tokens += chunk.tokens if chunk else []
    assert together == alone


# Drafters that break their contract.

FLAT = torch.full((3, VOCAB), 1 / VOCAB)


def changed(row, column, value):
    q = FLAT.clone()
    q[row, column] = value
    return q


JUNK = {
    "no proposal": (lambda: [1, 2], TypeError, r"list.*Proposal\(tokens, probs\)"),
    "nothing": (lambda: None, TypeError, "NoneType"),
    "token beyond the vocabulary": (lambda: Proposal([1, VOCAB]), ValueError, "proposed 5.*0 to 4"),
    "negative token": (lambda: Proposal([-1]), ValueError, "proposed -1"),
    "float token": (lambda: Proposal([1.0]), ValueError, "proposed 1.0"),
    "tensor for tokens": (lambda: Proposal(torch.tensor([1, 2])), ValueError, r"tensor\(1\)"),
    "too many": (lambda: Proposal([1] * 4), ValueError, "4 tokens where 3 were asked for"),
    "a parent that comes later": (lambda: Proposal([1, 2, 3], None, [-1, 2, 0]), ValueError, "each token needs one"),
    "too few parents": (lambda: Proposal([1, 2, 3], None, [-1, 0]), ValueError, "3 tokens with parents"),
    "logits for distributions": (
        lambda: Proposal([1, 2, 3], FLAT.log()),
        ValueError,
        "sum to .*probability distribution",
    ),
    "distributions that sum to less": (lambda: Proposal([1, 2, 3], FLAT * 0.98), ValueError, "0.98"),
    "distributions that sum to more": (lambda: Proposal([1, 2, 3], FLAT * 1.02), ValueError, "1.02"),
    "one distribution of three": (
        lambda: Proposal([1, 2, 3], changed(1, 2, 0.0)),
        ValueError,
        r"sum to \[1.0, 0.8, 1.0\]",
    ),
    "NaN": (lambda: Proposal([1, 2, 3], changed(2, 0, math.nan)), ValueError, "nan"),
    "negative probability": (
        lambda: Proposal([1, 2], torch.tensor([[-0.5, 1.0, 0.5, 0, 0], [0, 0, 1.0, 0, 0]])),
        ValueError,
        "least entry -0.5",
    ),
    "q(x) = 0": (
        lambda: Proposal([1, 2], torch.tensor([[0.5, 0.5, 0, 0, 0], [0.5, 0.5, 0, 0, 0]])),
        ValueError,
        "token 2 at place 1 has probability 0",
    ),
    "token outside its distribution": (
        lambda: Proposal([4], torch.tensor([[0.5, 0.5]])),
        ValueError,
        "token 4 at place 0",
    ),
    "vocabulary too large": (lambda: Proposal([1], torch.full((1, 8), 1 / 8)), ValueError, "8 tokens, the target 5"),
    "too few distributions": (lambda: Proposal([1, 2, 3], FLAT[:2]), ValueError, "one distribution per token"),
}


class Says(Drafter):
    """What a function says, once; then nothing."""

    def __init__(self, say):
        self.say = say

    def propose(self, tokens, gamma, source):
        return self.say() if len(tokens) < len(PROMPT) + 3 else Proposal([])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("name", JUNK)
def test_junk_from_a_drafter_is_an_error_that_says_what_is_wrong(name, rule, temperature):
    say, error, match = JUNK[name]
    engine = SpeculativeEngine(model(), Says(say), 3, rule=rule)
    with pytest.raises(error, match=match):
        engine.generate(PROMPT, LENGTH, temperature=temperature)
    engine.drafter.say = lambda: Proposal([1, 2, 3])
    assert engine.generate(PROMPT, LENGTH).tokens == EXPECTED


def test_what_only_looks_like_junk_is_welcome():
    """Fewer tokens than asked for, none, distributions over a smaller vocabulary, distributions with the error of
    float32.
    """
    wide = torch.softmax(torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)) * 9, -1)
    for proposal in (
        Proposal([]),
        Proposal([], torch.zeros(0, VOCAB)),
        Proposal([1]),
        Proposal([1, 0], torch.tensor([[0.5, 0.5], [1.0, 0.0]])),
        Proposal([1], wide + 1e-6),
        Proposal([1, 2], None, [-1, 0]),
    ):
        engine = SpeculativeEngine(model(), Says(lambda proposal=proposal: proposal), 3)
        assert engine.generate(PROMPT, LENGTH).tokens == EXPECTED


# Drafters of any class.


class Plain(Drafter):
    """Only propose and commit; the base class copies it for each generation."""

    def __init__(self):
        self.committed = 0

    def propose(self, tokens, gamma, source):
        return Proposal(EXPECTED[len(tokens) - len(PROMPT) :][:gamma])

    def commit(self, tokens):
        self.committed = len(tokens)


class Remembers(Plain):
    """Goes wrong unless commit came with each round of this very sequence."""

    def propose(self, tokens, gamma, source):
        assert self.committed in (0, len(tokens))
        return Proposal([len(tokens) % VOCAB] * gamma)


def test_a_drafter_with_propose_and_commit_alone_drafts():
    drafter = Plain()
    engine = SpeculativeEngine(model(), drafter, 3)
    for _ in range(2):
        result = engine.generate(PROMPT, LENGTH)
        assert result.tokens == EXPECTED
        assert result.stats.acceptance_rate == 1.0 and result.stats.rounds == math.ceil(LENGTH / 4)
    assert drafter.committed == 0, "each generation has its own copy"


@pytest.mark.parametrize("what", [object(), "lookup", 3, NGramDrafter.propose])
def test_what_cannot_draft_is_refused(what):
    with pytest.raises(TypeError, match=r"derive it from specdec_ref.interfaces.Drafter"):
        SpeculativeEngine(model(), what)


def test_a_model_given_as_a_drafter_is_told_how_it_becomes_one():
    with pytest.raises(TypeError, match=r"DraftModelDrafter\(Strict\)"):
        SpeculativeEngine(model(), model())


# Gamma.


@pytest.mark.parametrize("drafter", [NGramDrafter(), DraftModelDrafter(model())], ids=["lookup", "model"])
def test_gamma_may_change_from_round_to_round(drafter):
    asked = itertools.cycle([3, 0, 1, 5, np.int64(2)])
    rounds = []
    engine = SpeculativeEngine(model(), drafter, lambda stats: next(asked))
    result = engine.generate(PROMPT, LENGTH, on_round=lambda run, round_: rounds.append(round_))
    assert result.tokens == EXPECTED
    assert result.stats.drafted == sum(len(r.proposal.tokens) for r in rounds)
    assert result.stats.accepted == sum(result.stats.accepted_by_position)


def test_gamma_sees_the_counts_so_far():
    seen = []
    engine = SpeculativeEngine(model(), DraftModelDrafter(model()), lambda stats: seen.append(stats.rounds) or 2)
    assert engine.generate(PROMPT, 9).tokens == EXPECTED[:9]
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("gamma", [-1, 1.5, None, "3", True])
def test_a_gamma_without_meaning_is_refused(gamma):
    with pytest.raises(ValueError, match="gamma is"):
        SpeculativeEngine(model(), NGramDrafter(), gamma)
    with pytest.raises(ValueError, match="gamma is"):
        SpeculativeEngine(model(), None, gamma)
    with pytest.raises(ValueError, match="gamma is"):
        SpeculativeEngine(model(), NGramDrafter(), lambda stats: gamma).generate(PROMPT, 4)


def test_a_drafter_may_propose_nothing_now_and_then():
    class Hesitates(Knows):
        def propose(self, tokens, gamma, source):
            return super().propose(tokens, gamma, source) if len(tokens) % 3 else Proposal([])

    result = SpeculativeEngine(model(), Hesitates(EXPECTED, PROMPT), 3).generate(PROMPT, LENGTH)
    assert result.tokens == EXPECTED and 0 < result.stats.accepted == result.stats.drafted


def test_where_nothing_was_drafted_the_rates_are_defined():
    for drafter in (None, Says(lambda: Proposal([]))):
        stats = SpeculativeEngine(model(), drafter).generate(PROMPT, 5).stats
        assert (stats.acceptance_rate, stats.accepted_per_drafted, stats.tokens_per_round) == (0.0, 0.0, 1.0)
    stats = SpeculativeEngine(model()).generate(PROMPT, 0).stats
    assert (stats.rounds, stats.tokens_per_round, stats.emitted) == (0, 0.0, 0)


# Models that break.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_nan_in_the_middle_of_a_generation_is_an_error_and_the_next_call_is_right(broken, temperature):
    models = {"target": model(), "draft": model()}
    engine = SpeculativeEngine(models["target"], DraftModelDrafter(models["draft"]), 3)
    models[broken].distribution = lambda tokens: distribution(tokens) if len(tokens) < 9 else [math.nan] * VOCAB
    with pytest.raises(ValueError, match="NaN"):
        engine.generate(PROMPT, LENGTH, temperature=temperature, seed=1)
    models[broken].distribution = distribution
    assert engine.generate(PROMPT, LENGTH).tokens == EXPECTED


# Long texts.


def test_text_costs_the_same_for_each_token_however_long_it_is():
    """The tokenizer never decodes more than the last few tokens."""

    class Counts(Pieces):
        longest = 0

        def decode(self, ids, skip_special_tokens=False, **_):
            self.longest = max(self.longest, len(ids))
            return super().decode(ids, skip_special_tokens)

    tokenizer = Counts([b"ab ", b"\xf0\x9f", b"\x98\x80", b"c"])
    stream = TextStream(tokenizer, ["never"])
    for i in range(400):
        stream.push((0, 1, 2, 3)[i % 4])
        stream.show()
    stream.show(final=True)
    assert stream.text == "ab 😀c" * 100 and tokenizer.longest <= 4


def test_a_speller_with_a_wrong_cache_is_noticed():
    """The tests above lean on this: a model whose cache is out of step gives another output."""
    target = speller([2, 3, 4], 6, [0])
    cache = target.new_cache(5)
    target.forward(torch.tensor([0, 2]), cache)
    with pytest.raises(AssertionError, match="6 tokens in a cache for 5"):
        target.forward(torch.tensor([0, 0, 0, 0]), cache)
