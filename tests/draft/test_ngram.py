"""Lookup: what followed the latest match, as many tokens as the match is long, in linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref import NGramDrafter, RandomSource


def propose(tokens, gamma=8, **options):
    return NGramDrafter(**options).begin(None, None, 0).propose(tokens, gamma, RandomSource(0)).tokens


def by_hand(tokens, gamma, max_ngram, min_ngram, trust):
    """The same by search, without an index."""
    for n in range(min(max_ngram, len(tokens)), min_ngram - 1, -1):
        places = [i for i in range(n, len(tokens)) if tokens[i - n : i] == tokens[-n:]]
        if places:
            follower = places[-1]
            shared = n
            while shared < follower and tokens[follower - shared - 1] == tokens[-shared - 1]:
                shared += 1
            if trust is not None:
                gamma = min(gamma, int(trust * shared) or 1)
            text = list(tokens)
            for i in range(gamma):
                text.append(text[follower + i])
            return text[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    gamma=st.integers(1, 12),
    ngrams=st.sampled_from([(3, 1), (2, 2), (5, 1), (1, 1)]),
    trust=st.sampled_from([None, 0.5, 1.0, 2.0]),
)
@settings(max_examples=300, deadline=None)
def test_equals_a_search_by_hand(tokens, gamma, ngrams, trust):
    got = propose(tokens, gamma, max_ngram=ngrams[0], min_ngram=ngrams[1], trust=trust)
    assert got == by_hand(tokens, gamma, *ngrams, trust)


def test_a_short_match_is_trusted_little_and_a_long_one_more():
    tail = [20, 21, 22, 23, 24, 25, 26]
    one_word = [1, 2, 3, *tail, 9, 3]
    sentence = [1, 2, 3, 4, 5, *tail, 9, 1, 2, 3, 4, 5]
    assert propose(one_word) == tail[:1]
    assert propose(sentence) == tail[:5]
    assert propose(one_word, trust=None) == [*tail, 9]
    assert propose(sentence, gamma=2) == tail[:2]


@pytest.mark.parametrize("trust", [0, -1.0, float("nan")])
def test_a_trust_that_makes_no_sense_is_refused(trust):
    with pytest.raises(ValueError, match="trust is"):
        NGramDrafter(trust=trust)


def test_time_grows_with_length_and_not_with_its_square():
    """4 times the text takes about 4 times as long; the counted work is the measure, not the clock alone."""

    def seconds(n):
        drafter = NGramDrafter().begin(None, None, 0)
        tokens = [(i * i) % 97 for i in range(n)]
        start = time.thread_time()
        for end in range(10, n, 4):
            drafter.propose(Prefix(tokens, end), 8, RandomSource(0))
        return time.thread_time() - start

    short, long = (min(seconds(n) for _ in range(3)) for n in (4000, 16000))
    assert long < 8 * short


class Prefix(list):
    """A list that answers as its own first `end` tokens without copying them."""

    def __init__(self, tokens, end):
        super().__init__()
        self.tokens, self.end = tokens, end

    def __len__(self):
        return self.end

    def __getitem__(self, i):
        if isinstance(i, slice):
            start, stop, step = i.indices(self.end)
            return self.tokens[start:stop:step]
        return self.tokens[i if i >= 0 else self.end + i]
