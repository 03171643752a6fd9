"""Greedy speculation writes exactly what plain decoding writes, in float64, where rounding can flip nothing."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine
from specdec_ref.interfaces import Drafter, Proposal

TARGET, DRAFT = tiny_llama(1), tiny_llama(2, n_layers=1)


class Wrong(Drafter):
    """Always proposes what greedy decoding would not: every draft is rejected."""

    def __init__(self, plain):
        self.plain = plain

    def propose(self, tokens, gamma, source):
        n = len(tokens) - 3
        return Proposal([(self.plain[n] + 1) % 13] * gamma if n < len(self.plain) else [])


class Right(Drafter):
    """Knows the answer."""

    def __init__(self, plain):
        self.plain = plain

    def propose(self, tokens, gamma, source):
        n = len(tokens) - 3
        return Proposal(self.plain[n : n + gamma])


PROMPT = [3, 1, 4]


@cache
def plain(n=24):
    return SpeculativeEngine(TARGET).generate(PROMPT, n)


DRAFTERS = {
    "lookup": lambda: NGramDrafter(),
    "model": lambda: DraftModelDrafter(DRAFT),
    "itself": lambda: DraftModelDrafter(TARGET),
    "wrong": lambda: Wrong(plain(40).tokens),
    "right": lambda: Right(plain(40).tokens),
    "silent": lambda: Silent(),
}


class Silent(Drafter):
    def propose(self, tokens, gamma, source):
        return Proposal([])


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", range(9))
def test_every_drafter_and_gamma(drafter, gamma):
    engine = SpeculativeEngine(TARGET, DRAFTERS[drafter](), gamma)
    for budget in (0, 1, 2, gamma, gamma + 1, gamma + 2, 24):
        got = engine.generate(PROMPT, budget)
        assert got.tokens == plain().tokens[:budget]
        assert got.finish_reason == "length"
        assert got.stats.emitted == len(got.tokens) == len(got.stats.origins)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_an_end_of_sequence_at_every_place(drafter, gamma):
    engine = SpeculativeEngine(TARGET, DRAFTERS[drafter](), gamma)
    reference = plain(20).tokens
    for token in set(reference):
        first = reference.index(token)
        got = engine.generate(PROMPT, 20, eos_token_id=[token])
        assert got.tokens == reference[: first + 1]
        assert got.finish_reason == "eos"
        assert got.stats.emitted == len(got.tokens)


def test_plain_decoding_equals_recomputing_everything():
    tokens = list(PROMPT)
    for _ in range(24):
        logits = TARGET(torch.tensor(tokens), TARGET.new_cache(len(tokens)))
        tokens.append(int(logits[-1].argmax()))
    assert plain().tokens == tokens[3:]


@given(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=12), gamma=st.integers(1, 8), budget=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_any_prompt(prompt, gamma, budget):
    want = SpeculativeEngine(TARGET).generate(prompt, budget)
    for drafter in (NGramDrafter(max_ngram=4), DraftModelDrafter(DRAFT)):
        assert SpeculativeEngine(TARGET, drafter, gamma).generate(prompt, budget).tokens == want.tokens


def test_gamma_may_change_from_round_to_round():
    seen = []

    def gamma(stats):
        seen.append(stats.rounds)
        return stats.rounds % 4

    got = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), gamma).generate(PROMPT, 24)
    assert got.tokens == plain().tokens
    assert seen == list(range(got.stats.rounds))


def test_counts_of_a_perfect_and_of_a_hopeless_drafter():
    perfect = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), 5).generate(PROMPT, 24).stats
    assert (perfect.rounds, perfect.drafted, perfect.tested, perfect.accepted) == (4, 20, 20, 20)
    assert (perfect.bonus, perfect.corrected, perfect.acceptance_rate, perfect.tokens_per_round) == (4, 0, 1.0, 6.0)
    assert perfect.accepted_by_position == perfect.tested_by_position == [4] * 5
    hopeless = SpeculativeEngine(TARGET, Wrong(plain(40).tokens), 5).generate(PROMPT, 24).stats
    assert (hopeless.rounds, hopeless.tested, hopeless.accepted, hopeless.tokens_per_round) == (24, 23, 0, 1.0)
    assert hopeless.drafted == 5 * 19 + 4 + 3 + 2 + 1  # the budget leaves room for fewer at the end
    assert set(hopeless.origins[:-1]) == {"corrected"}


def test_accepted_is_not_counted_past_a_rejection():
    """Right, wrong, right, right: one is accepted, two are tested."""
    answer = plain(40).tokens

    class Gap(Drafter):
        def propose(self, tokens, gamma, source):
            right = answer[len(tokens) - 3 :][:4]
            return Proposal([right[0], (right[1] + 1) % 13, right[2], right[3]][:gamma])

    first = []

    def note(run, round_):
        if not first:
            stats = run.stats
            first.extend([round_.verdict.accepted, stats.tested_by_position[:], stats.accepted_by_position[:]])

    SpeculativeEngine(TARGET, Gap(), 4).generate(PROMPT, 5, on_round=note)
    assert first == [1, [1, 1, 0, 0], [1, 0, 0, 0]]
