"""Lookup in long matches, a trained drafter elsewhere: the choice, and how both are kept in step."""

from __future__ import annotations

import pytest
from support.tiny_models import tiny_llama

from specdec_ref import (
    CombinedDrafter,
    DraftModelDrafter,
    EarlyExitDrafter,
    NGramDrafter,
    Proposal,
    RandomSource,
    SpeculativeEngine,
    SuffixDrafter,
)
from specdec_ref.interfaces import Drafter
from specdec_ref.proof import MUTANTS, difference, enumerate_distribution, kill
from specdec_ref.proof.exact import TOLERANCE, Check, core_checks

SEVERAL = ("one of two drafters is told", "the drafter chosen by what was drawn")


class Noting(Drafter):
    """Proposes token 12 and notes what it is told, and which hidden states it is handed."""

    def __init__(self, layers=()):
        self.layers, self.told, self.ended = layers, [], []

    def begin(self, target, sampling, capacity):
        return self

    def propose(self, tokens, gamma, source):
        return Proposal([12] * gamma)

    def commit(self, tokens, features=None):
        self.told.append((list(tokens), features))

    def end(self):
        self.ended.append(True)


@pytest.mark.parametrize("lookup", [NGramDrafter(), SuffixDrafter()])
def test_a_long_match_is_copied_and_a_short_one_left_to_the_other(lookup):
    drafter = CombinedDrafter(lookup, Noting(), long=3).begin(None, None, 0)
    short = drafter.propose([1, 2, 8, 5, 6, 1, 2], 2, RandomSource(0))
    assert (short.tokens, short.match, short.drafter) == ([12, 12], 0, "Noting")
    drafter = CombinedDrafter(lookup, Noting(), long=3).begin(None, None, 0)
    long = drafter.propose([1, 2, 3, 8, 5, 6, 1, 2, 3], 2, RandomSource(0))
    assert (long.tokens, long.match, long.drafter) == ([8, 5], 3, type(lookup).__name__)


@pytest.mark.parametrize("trust", [None, 1.0, 4.0])
@pytest.mark.parametrize("gamma", [1, 2, 8])
def test_the_match_is_that_of_the_text_whatever_is_asked_for(gamma, trust):
    text = [9, 1, 2, 3, 4, 5, 7, 8, 1, 2, 3, 4, 5]
    assert NGramDrafter(trust=trust).begin(None, None, 0).propose(text, gamma, RandomSource(0)).match == 5


def test_each_is_told_everything_and_handed_its_own_layers():
    target = tiny_llama(1)
    parts = [Noting((0, 2)), Noting((1,))]
    engine = SpeculativeEngine(target, CombinedDrafter(NGramDrafter(), CombinedDrafter(*parts)), 3)
    assert engine.drafter.layers == (0, 1, 2)
    engine.generate([1, 2, 3], 8)
    a, b = parts
    assert [tokens for tokens, _ in a.told] == [tokens for tokens, _ in b.told] and a.ended == b.ended == [True]
    for (tokens, one), (_, other) in zip(a.told, b.told, strict=True):
        assert len(one) == 2 and len(other) == 1
        embedded = target.embed.weight[tokens[-1 - len(one[0]) : -1]]
        assert one[0].equal(embedded) and not one[1].equal(embedded) and not other[0].equal(embedded)


def test_it_is_exact_where_both_drafters_draft_and_are_cut_and_rejected():
    checks = [check for check in core_checks() if "lookup or model" in check.name]
    assert len(checks) == 2 and all(check.deviation() <= TOLERANCE for check in checks)


@pytest.mark.parametrize("name", SEVERAL)
def test_its_own_checks_notice_its_bugs(name):
    def checks() -> list[Check]:
        return [check for check in core_checks() if "lookup or model" in check.name]

    assert kill(next(m for m in MUTANTS if m.name == name), exact=checks, statistical=list)


def test_a_model_and_early_exit_combine_on_real_layers():
    target = tiny_llama(3, vocab_size=3, n_layers=3)

    def outputs(drafter, gamma):
        engine = SpeculativeEngine(target, drafter, gamma)
        return enumerate_distribution(
            lambda source: tuple(engine.generate([1, 2, 1], 2, temperature=1.2, source=source).tokens)
        )

    draft = tiny_llama(4, vocab_size=3, n_layers=1)
    both = CombinedDrafter(NGramDrafter(), CombinedDrafter(DraftModelDrafter(draft), EarlyExitDrafter(1)), long=2)
    assert difference(outputs(both, 2), outputs(None, 0)) < 1e-9


def test_a_match_of_no_length_is_refused():
    with pytest.raises(ValueError, match="long is 0"):
        CombinedDrafter(NGramDrafter(), NGramDrafter(), long=0)
