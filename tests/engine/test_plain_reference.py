"""Random combinations of options: the engine against plain decoding written in a page, without tensors or caches.

`plain` computes every outcome (tokens, text, reason) with its probability. At temperature 0 there is one, and the
engine has to give it; above, every random choice of the engine is visited, and its outcomes have to have the same
probabilities to twelve digits.
"""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.spelling import Pieces, Strict

from specdec_ref import DraftModelDrafter, NGramDrafter, Proposal, RandomSource, SpeculativeEngine
from specdec_ref.interfaces import Drafter

PIECES = Pieces([b"a", b"b", b"\xc3", b"\xa9", b"ab", b""], special=(5,))


def history_distribution(seed, vocab):
    """A distribution that depends on every token before it."""

    def distribution(tokens):
        dice = random.Random(f"{seed} {tokens}")
        weights = [dice.random() ** 2 + 0.01 for _ in range(vocab)]
        return [w / sum(weights) for w in weights]

    return distribution


def next_distribution(tokens, start, distribution, o):
    """The distribution of the next token: the options one after the other, as the documentation of each says."""
    mu, output = [math.log(p) for p in distribution(tuple(tokens))], tokens[start:]
    for (*before, last), bias in o["logit_bias"].items():
        mu[last] += bias if tokens[len(tokens) - len(before) :] == before else 0
    for t in set(tokens):
        mu[t] *= o["repetition_penalty"] if mu[t] < 0 else 1 / o["repetition_penalty"]
    for t in set(output):
        mu[t] -= o["presence_penalty"] + o["frequency_penalty"] * output.count(t)
    for *before, last in o["bad_words"]:
        if tokens[len(tokens) - len(before) :] == before and (before or last not in o["eos_token_id"]):
            mu[last] = -math.inf
    if len(output) < o["min_new_tokens"]:
        mu = [-math.inf if t in o["eos_token_id"] else m for t, m in enumerate(mu)]
    if o["temperature"] == 0:
        return [float(t == mu.index(max(mu))) for t in range(len(mu))]
    for keep in (top_k, top_p, min_p, typical_p):
        if o[keep.__name__] is not None:
            kept = keep(softmax(mu, o["temperature"]), o[keep.__name__])
            mu = [m if t in kept else -math.inf for t, m in enumerate(mu)]
    return softmax(mu, o["temperature"])


def plain(tokens, start, budget, distribution, o):
    """{(output, text, reason): probability} of decoding on from `tokens`, of which the first `start` are the prompt."""
    output, text = tokens[start:], PIECES.decode(tokens[start:], skip_special_tokens=True)
    ends = [(text.index(s) + len(s), text.index(s)) for s in o["stop"] if s in text]
    reason = "eos" if output and output[-1] in o["eos_token_id"] else "stop" if ends else None
    if reason or len(output) == budget:
        return {(tuple(output), text[: min(ends)[1]] if ends else text, reason or "length"): 1.0}
    outcomes = Counter()
    for t, p in enumerate(next_distribution(tokens, start, distribution, o)):
        if p > 0:
            for outcome, q in plain([*tokens, t], start, budget, distribution, o).items():
                outcomes[outcome] += p * q
    return outcomes


def softmax(mu, temperature):
    weights = [math.exp((m - max(mu)) / temperature) for m in mu]
    return [w / sum(weights) for w in weights]


def top_k(p, k):
    return {t for t in range(len(p)) if p[t] >= sorted(p)[-min(k, len(p))]}


def top_p(p, mass):
    order = sorted(range(len(p)), key=lambda t: -p[t])
    return {t for i, t in enumerate(order) if sum(p[u] for u in order[:i]) < mass}


def min_p(p, share):
    return {t for t in range(len(p)) if p[t] >= share * max(p)}


def typical_p(p, mass):
    entropy = -sum(x * math.log(x) for x in p if x)
    order = sorted((t for t in range(len(p)) if p[t]), key=lambda t: abs(-math.log(p[t]) - entropy))
    return {t for i, t in enumerate(order) if sum(p[u] for u in order[:i]) < mass}


class Guesses(Drafter):
    """Proposes anything, end tokens and forbidden ones as well; sometimes less than asked for."""

    def propose(self, tokens, gamma, source):
        dice = random.Random(str(tokens))
        return Proposal([dice.randrange(self.vocab) for _ in range(dice.randint(0, gamma))])


def drafter(name, vocab, seed):
    if name == "guesses":
        guesses = Guesses()
        guesses.vocab = vocab
        return guesses
    if name == "lookup":
        return NGramDrafter(2)
    if name == "none":
        return None
    size = vocab - 1 if name == "smaller model" else vocab
    draft = Strict(history_distribution(seed if name == "same model" else "draft", size), size, max_context=6)
    draft.tokenizer = PIECES
    return DraftModelDrafter(draft)


def options(vocab, temperatures):
    token = st.integers(0, vocab - 1)
    words = st.lists(token, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        dict(
            temperature=st.sampled_from(temperatures),
            top_k=st.none() | st.integers(1, vocab),
            top_p=st.none() | st.floats(0.3, 0.95),
            min_p=st.none() | st.floats(0.05, 0.6),
            typical_p=st.none() | st.floats(0.3, 0.95),
            logit_bias=st.dictionaries(words.map(tuple), st.floats(-3, 3), max_size=2),
            repetition_penalty=st.sampled_from([1.0, 1.0, 0.6, 1.5]),
            presence_penalty=st.sampled_from([0.0, 0.0, 1.1, -0.7]),
            frequency_penalty=st.sampled_from([0.0, 0.0, 0.9, -0.4]),
            bad_words=st.lists(words.filter(lambda w: w[-1] > 0), max_size=2),  # token 0 is always allowed
            min_new_tokens=st.integers(0, 4),
            eos_token_id=st.lists(st.integers(1, vocab - 1), unique=True, max_size=2),
            stop=st.lists(st.sampled_from(["a", "ab", "ba", "bb", "é", "aé", "abab", "b"]), max_size=2),
        )
    )


def gammas():
    return st.integers(0, 6) | st.sampled_from([lambda stats: stats.rounds % 4])


@given(
    o=options(6, [0.0]),
    name=st.sampled_from(["none", "lookup", "guesses", "same model", "smaller model", "other model"]),
    rule=st.sampled_from(["token", "block", "match", "greedy"]),
    gamma=gammas(),
    budget=st.integers(0, 12),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    room=st.none() | st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=250, deadline=None)
def test_greedy_output_is_that_of_plain_decoding(o, name, rule, gamma, budget, prompt, room, seed):
    distribution = history_distribution(seed, 6)
    context = None if room is None else len(prompt) + room
    target = Strict(distribution, 6, max_context=context, tokenizer=PIECES)
    engine = SpeculativeEngine(target, drafter(name, 6, seed), gamma, rule)
    result = engine.generate(prompt, budget, logprobs=True, **o)
    (expected,) = plain(prompt, len(prompt), budget if room is None else min(budget, room), distribution, o)
    assert (tuple(result.tokens), result.text, result.finish_reason) == expected
    assert result.stats.emitted == len(result.tokens) == len(result.logprobs) == len(result.stats.origins)
    history = [*prompt, *result.tokens]
    bare = [math.log(distribution(tuple(history[:i]))[history[i]]) for i in range(len(prompt), len(history))]
    assert result.logprobs == pytest.approx(bare, abs=1e-9)


class EveryBranch(RandomSource):
    """Takes the choices in `path`, [index, number of answers] each, and the first answer of each new one."""

    def __init__(self, path):
        self.path, self.place, self.probability = path, 0, 1.0

    def choose(self, answers):
        answers = [(answer, p) for answer, p in answers if p > 0]
        if self.place == len(self.path):
            self.path.append([0, len(answers)])
        answer, p = answers[self.path[self.place][0]]
        self.place += 1
        self.probability *= p
        return answer

    def bernoulli(self, p):
        return self.choose([(True, min(p, 1.0)), (False, 1 - min(p, 1.0))])

    def categorical(self, probs):
        weights = probs.tolist()
        return self.choose([(i, w / sum(weights)) for i, w in enumerate(weights)])


def every_outcome(run):
    """{outcome of run(source): probability}, each random choice taken each way."""
    outcomes, path = Counter(), []
    while True:
        source = EveryBranch(path)
        outcome = run(source)
        outcomes[outcome] += source.probability
        while path and path[-1][0] == path[-1][1] - 1:
            path.pop()
        if not path:
            return outcomes
        path[-1][0] += 1


@given(
    o=options(3, [0.6, 1.0, 1.7]),
    name=st.sampled_from(["none", "lookup", "guesses", "same model", "smaller model", "other model"]),
    rule=st.sampled_from(["token", "block", "match"]),
    gamma=st.integers(0, 3),
    budget=st.integers(1, 4),
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_sampled_outputs_have_the_probabilities_of_plain_decoding(o, name, rule, gamma, budget, prompt, seed):
    distribution = history_distribution(seed, 3)
    engine = SpeculativeEngine(Strict(distribution, 3, tokenizer=PIECES), drafter(name, 3, seed), gamma, rule)

    def run(source):
        result = engine.generate(prompt, budget, source=source, **o)
        return tuple(result.tokens), result.text, result.finish_reason

    ours, expected = every_outcome(run), plain(prompt, len(prompt), budget, distribution, o)
    for outcome in ours.keys() | expected.keys():
        assert ours[outcome] == pytest.approx(expected.get(outcome, 0.0), abs=1e-12)
