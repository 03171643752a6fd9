"""After every round the caches are what a fresh prefill of the committed tokens would give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, RandomSource, SpeculativeEngine
from specdec_ref.interfaces import Drafter, Proposal, Verdict

TARGET, DRAFT = tiny_llama(1), tiny_llama(2, n_layers=1)
PROMPT = [3, 1, 4, 1]


def assert_fresh(model, cache, tokens):
    """`cache` equals a prefill of tokens[:cache.length]."""
    fresh = model.new_cache(max(cache.length, 1))
    if cache.length:
        model(torch.tensor(tokens[: cache.length]), fresh, slice(0))
    n = cache.length
    torch.testing.assert_close(cache.keys[:, :, :n], fresh.keys[:, :, :n], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cache.values[:, :, :n], fresh.values[:, :, :n], rtol=1e-9, atol=1e-9)


def check_round(run, round_):
    assert run.tokens[: len(PROMPT)] == PROMPT
    assert run.cache.length == len(run.tokens) - 1
    assert_fresh(TARGET, run.cache, run.tokens)
    if isinstance(run.drafter, DraftModelDrafter):
        # A drafter that was asked holds all but the pending token; where everything was accepted the last draft
        # comes in with the next pass.
        behind = len(run.tokens) - 1 - run.drafter.cache.length
        if round_.proposal.tokens:
            assert behind == (round_.verdict.accepted == len(round_.proposal.tokens))
        assert behind >= 0
        assert_fresh(DRAFT if run.drafter.model is DRAFT else TARGET, run.drafter.cache, run.tokens)


def scripted_rule(pattern):
    """A rule that accepts as many tokens as `pattern` says, round by round, whatever the distributions are."""
    counts = iter(pattern)

    def rule(proposal, p, source):
        accepted = min(next(counts, 0), len(proposal.tokens))
        origin = "bonus" if accepted == len(proposal.tokens) else "corrected"
        return Verdict(accepted, source.categorical(p[accepted]), origin)

    return rule


@given(
    pattern=st.lists(st.integers(0, 8), max_size=12),
    gammas=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    own=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_pattern_of_acceptance(pattern, gammas, own, seed):
    engine = SpeculativeEngine(
        TARGET,
        DraftModelDrafter(TARGET if own else DRAFT),
        gamma=lambda stats: gammas[stats.rounds % len(gammas)],
        rule=scripted_rule(pattern),
    )
    engine.generate(PROMPT, 25, temperature=1.0, seed=seed, on_round=check_round)


@pytest.mark.parametrize("accepted", range(5))
def test_gamma_four_with_each_number_accepted(accepted):
    rule = scripted_rule([accepted] * 20)
    SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 4, rule).generate(PROMPT, 20, on_round=check_round)


@pytest.mark.parametrize("gamma", range(1, 9))
def test_draft_equal_to_target_is_always_accepted(gamma):
    """Greedy and sampled: a draft cache without the last accepted token would show as a rejection."""
    for temperature in (0.0, 1.0):
        engine = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), gamma)
        stats = engine.generate(PROMPT, 40, temperature=temperature, seed=gamma, on_round=check_round).stats
        assert stats.accepted == stats.tested == stats.drafted
        assert stats.corrected == 0


def test_a_one_token_prompt():
    plain = SpeculativeEngine(TARGET).generate([5], 12)
    assert SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 4).generate([5], 12).tokens == plain.tokens


def test_an_all_rejecting_drafter_grows_the_sequence_by_one_a_round():
    class Never(Drafter):
        def propose(self, tokens, gamma, source):
            return Proposal([0] * gamma)

    sizes = []
    SpeculativeEngine(TARGET, Never(), 4, scripted_rule([])).generate(
        PROMPT, 9, on_round=lambda run, r: sizes.append(len(run.tokens))
    )
    assert sizes == list(range(5, 14))


def test_a_long_prompt_is_prefilled_in_chunks_without_a_seam(monkeypatch):
    import specdec_ref.engine.engine as module

    prompt = [i * 7 % 13 for i in range(50)]
    whole = SpeculativeEngine(TARGET).generate(prompt, 10)
    monkeypatch.setattr(module, "PREFILL_CHUNK", 16)
    assert SpeculativeEngine(TARGET).generate(prompt, 10).tokens == whole.tokens


def test_draft_context_shorter_than_the_targets_goes_on_without_drafting():
    short = tiny_llama(2, n_layers=1, max_context=12)
    plain = SpeculativeEngine(TARGET).generate(PROMPT, 30)
    drafted_at = {}

    def note(run, round_):
        before = len(run.tokens) - len(round_.kept)
        drafted_at[before] = len(round_.proposal.tokens)

    got = SpeculativeEngine(TARGET, DraftModelDrafter(short), 4).generate(PROMPT, 30, on_round=note)
    assert got.tokens == plain.tokens
    assert drafted_at[4] == 4
    assert all(n == 0 for before, n in drafted_at.items() if before > 12)
    assert max(drafted_at) > 20


def test_a_nearly_full_context_is_used_to_the_last_token():
    prompt = [i % 13 for i in range(92)]
    for drafter in (None, DraftModelDrafter(DRAFT)):
        got = SpeculativeEngine(TARGET, drafter, 5).generate(prompt, 100)
        assert len(got.tokens) == 4
        assert got.finish_reason == "length"


def test_two_generations_in_flight_do_not_disturb_each_other():
    engine = SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 3)
    want = [engine.generate(p, 12).tokens for p in ([1, 2], [7, 8, 9])]
    streams, got = [engine.stream(p, 12) for p in ([1, 2], [7, 8, 9])], [[], []]
    for _ in range(12):
        for out, stream in zip(got, streams, strict=True):
            out += next(stream, ([],))[0]
    assert got == want


def test_sampling_is_seeded():
    engine = SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 3)
    a, b, c = (engine.generate(PROMPT, 20, temperature=1.0, seed=s).tokens for s in (1, 1, 2))
    assert a == b != c
    d = engine.generate(PROMPT, 20, temperature=1.0, source=RandomSource(1)).tokens
    assert d == a
