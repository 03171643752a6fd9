"""Suffix drafting: the most frequent follower of the longest match, as far as the counts make it likely."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_llama

from specdec_ref import NGramDrafter, RandomSource, SpeculativeEngine, SuffixDrafter
from specdec_ref.draft.suffix import SuffixCounts

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def propose(tokens, gamma=8, answers=(), **options):
    drafter = SuffixDrafter(**options)
    for answer in answers:
        drafter.learn(answer)
    return drafter.begin(None, None, 0).propose(tokens, gamma, RandomSource(0)).tokens


def followers(texts, context):
    """What came after `context` in each of `texts`, in order."""
    n = len(context)
    return [text[i] for text in texts for i in range(n, len(text)) if text[i - n : i] == context]


def most_frequent(tokens):
    """(token, times): of equally frequent ones the one that got there last."""
    best, seen = (-1, 0), Counter()
    for token in tokens:
        seen[token] += 1
        if seen[token] >= best[1]:
            best = token, seen[token]
    return best


def by_hand(tokens, gamma, answers, depth, trust, least):
    """The same by search, without an index."""
    drafted, survival = [], 1.0
    while len(drafted) < gamma:
        text = [*tokens, *drafted]
        for n in range(min(depth, len(text)), 0, -1):
            context = text[-n:]
            own, others = followers([tokens], context), followers(answers, context)
            if own or others:
                break
        else:
            break
        token, times = most_frequent(own)
        seen = len(own)
        if most_frequent(others)[1] > times:
            (token, times), seen = most_frequent(others), len(others)
        survival *= times / seen
        if survival < least:
            break
        if not drafted and trust is not None and n < depth:
            gamma = min(gamma, int(trust * n) or 1)
        drafted.append(token)
    return drafted


@given(
    tokens=TEXT,
    answers=st.lists(TEXT, max_size=3),
    gamma=st.integers(1, 12),
    depth=st.integers(1, 5),
    trust=st.sampled_from([None, 0.5, 1.0, 2.0]),
    least=st.sampled_from([0.0, 0.3, 0.9]),
)
@settings(max_examples=300, deadline=None)
def test_equals_a_search_by_hand(tokens, answers, gamma, depth, trust, least):
    got = propose(tokens, gamma, answers, depth=depth, trust=trust, least=least)
    assert got == by_hand(tokens, gamma, answers, depth, trust, least)


@given(tokens=TEXT, cuts=st.lists(st.integers(1, 40), max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_text_that_comes_in_pieces_is_the_same_text(tokens, cuts):
    drafter = SuffixDrafter().begin(None, None, 0)
    for end in sorted({*(c for c in cuts if c < len(tokens)), len(tokens)}):
        proposal = drafter.propose(tokens[:end], 8, RandomSource(0))
    assert proposal.tokens == propose(tokens)


def test_the_more_frequent_continuation_wins_where_lookup_copies_the_latest():
    text = [1, 2, 7, 3, 1, 2, 7, 4, 1, 2, 9, 6, 1, 2]
    assert propose(text, 1) == [7]
    assert NGramDrafter().begin(None, None, 0).propose(text, 1, RandomSource(0)).tokens == [9]


def test_it_stops_where_the_text_went_on_in_too_many_ways():
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2]
    assert propose(text, least=0.5) == [3]
    assert propose(text, least=0.3)[:2] == [3, 6]


def test_earlier_answers_are_continued_until_they_are_cleared():
    model = tiny_llama(1)
    drafter = SuffixDrafter()
    engine = SpeculativeEngine(model, drafter, gamma=4)
    first = engine.generate([1, 2, 3], 30, eos_token_id=None)
    again = engine.generate([1, 2, 3], 30, eos_token_id=None)
    assert again.tokens == first.tokens == SpeculativeEngine(model).generate([1, 2, 3], 30, eos_token_id=None).tokens
    assert drafter.answers.tokens == 60
    assert again.stats.rounds < first.stats.rounds
    drafter.clear()
    assert engine.generate([1, 2, 3], 30, eos_token_id=None).stats.rounds == first.stats.rounds


@pytest.mark.parametrize("gamma", [0, 4, lambda stats: stats.rounds % 2])
def test_what_is_remembered_is_the_answer_without_the_prompt(gamma):
    drafter = SuffixDrafter()
    engine = SpeculativeEngine(tiny_llama(1), drafter, gamma)
    learned = []
    drafter.answers.add = lambda answer: learned.append(list(answer))
    tokens = engine.generate([1, 2, 3], 20, eos_token_id=None).tokens
    assert learned == [tokens]


def test_a_seed_gives_the_same_text_again_only_where_nothing_is_learned():
    """What was learned in between changes the drafts, and so which random numbers decide what."""

    def texts(**options):
        engine = SpeculativeEngine(tiny_llama(1), SuffixDrafter(**options), gamma=4)
        return [engine.generate([1, 2, 3], 60, temperature=1.0, seed=5, eos_token_id=None).tokens for _ in range(2)]

    first, again = texts(remember=False)
    assert first == again
    first, again = texts()
    assert first != again


def test_memory_is_bounded_and_keeps_the_newest():
    drafter = SuffixDrafter(memory=100)
    for i in range(200):
        drafter.learn([i, i + 1, i + 2, 1000 + i] * 5)
        assert drafter.answers.tokens <= 100
    counts = drafter.answers.counts
    assert counts.likeliest(counts.step([0], 199), 1)[0] == 200
    assert counts.likeliest(counts.step([0], 50), 1)[1] == 0
    drafter.learn(list(range(5000, 5300)))
    assert drafter.answers.tokens == 100
    counts = drafter.answers.counts
    assert counts.likeliest(counts.step([0], 5298), 1)[0] == 5299


def test_an_answer_does_not_continue_the_one_before():
    assert propose([9, 4], answers=[[3, 4], [5, 6]]) == []


def test_a_token_costs_the_same_in_a_long_text_and_memory_is_what_is_said():
    def cost(n):
        tokens = [(i * i) % 97 for i in range(n)]
        counts = SuffixCounts()
        start = time.thread_time()
        for token in tokens:
            counts.add(token)
        return (time.thread_time() - start) / n

    short, long = (min(cost(n) for _ in range(3)) for n in (4000, 16000))
    assert long < 3 * short
    tracemalloc.start()
    counts = SuffixCounts()
    for i in range(4000):
        counts.add(i * i * i % 49999)
    used = tracemalloc.get_traced_memory()[0] / 4000
    tracemalloc.stop()
    assert used < 2048


@pytest.mark.parametrize("bad", [{"trust": 0}, {"memory": -1}, {"depth": 0}, {"least": 1.5}])
def test_options_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"give a number|need a memory"):
        SuffixDrafter(**bad)
