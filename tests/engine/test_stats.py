"""Counts by round, and times that belong to their part."""

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import Proposal, SpeculativeEngine
from specdec_ref.cache import PagedKVPool
from specdec_ref.engine import stats as stats_module
from specdec_ref.engine.stats import Stats
from specdec_ref.interfaces import ORIGINS, Drafter, Verdict

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


class Clock:
    """Each part of a round takes a time of its own."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_times_belong_to_their_part_and_add_up(monkeypatch):
    clock, target = Clock(), tiny_llama(1)
    monkeypatch.setattr(stats_module, "perf_counter", clock)

    class Ticks(Drafter):
        def begin(self, *arguments):
            return self

        def propose(self, tokens, gamma, source):
            clock.now += 1
            return Proposal([0] * gamma)

        def commit(self, tokens, features=None):
            clock.now += 100

    forward = target.forward

    def slow(tokens, cache, rows=slice(None)):
        clock.now += 1000 if rows == slice(0) else 10
        return forward(tokens, cache, rows)

    monkeypatch.setattr(target, "forward", slow)
    stats = SpeculativeEngine(target, Ticks(), 2).generate(PROMPT, 9, eos_token_id=None).stats
    drafting = sum(r.drafted > 0 for r in stats.by_round)
    assert 0 < drafting < stats.rounds, "the last round has no room for drafts"
    assert stats.prefill_seconds == 1000 and stats.draft_seconds == drafting
    assert stats.verify_seconds == 10 * stats.rounds and stats.other_seconds == 100 * stats.rounds
    assert stats.seconds == clock.now


def test_the_time_of_a_part_that_breaks_off_counts(monkeypatch):
    clock, stats = Clock(), Stats()
    monkeypatch.setattr(stats_module, "perf_counter", clock)
    with pytest.raises(KeyError), stats.time("verify"):
        clock.now += 3
        raise KeyError
    assert stats.verify_seconds == 3 == stats.seconds


def test_a_round_without_drafts_is_plain_and_belongs_to_no_rate():
    stats = Stats()
    stats.count(0, Verdict(0, 5, "bonus"), 1)
    stats.count(2, Verdict(2, 5, "bonus"), 3)
    stats.count(3, Verdict(1, 5, "corrected"), 2)
    stats.count(3, Verdict(2, 5, "corrected"), 1)  # a stop cut it after its first draft
    assert stats.origins == ["plain", "accepted", "accepted", "bonus", "accepted", "corrected", "accepted"]
    assert (stats.plain, stats.bonus, stats.corrected, stats.accepted) == (1, 1, 1, 4)
    assert (stats.drafted, stats.tested, stats.emitted, stats.rounds) == (8, 5, 7, 4)
    assert stats.tested_by_position == [3, 2, 0] and stats.accepted_by_position == [3, 1, 0]
    assert set(stats.origins) <= set(ORIGINS)


def test_log_probabilities_of_a_target_in_16_bits_are_computed_in_float32():
    model = tiny_llama(1).to(torch.bfloat16)
    out = SpeculativeEngine(model).generate(PROMPT, 8, logprobs=True, eos_token_id=None)
    cache = model.new_cache(32)
    with torch.inference_mode():
        model.forward(torch.tensor(PROMPT[:-1]), cache, slice(0))
        for pending, token, got in zip([PROMPT[-1], *out.tokens], out.tokens, out.logprobs, strict=False):
            row = model.forward(torch.tensor([pending]), cache)[0]
            assert got == pytest.approx(torch.log_softmax(row.float(), -1)[token].item(), abs=1e-6)


@pytest.mark.parametrize("end", ["length", "eos", "stop"])
def test_an_answer_is_offered_for_reuse_however_it_ended(end, monkeypatch):
    target = tiny_llama(1)
    text = SpeculativeEngine(target).generate(PROMPT, 12, temperature=3.0, seed=1, eos_token_id=None).tokens
    last = max(i for i in range(12) if text[i] not in text[:i])
    pool = PagedKVPool(target, 40, 4)
    engine = SpeculativeEngine(target, pool=pool)
    options = {"length": dict(eos_token_id=None), "eos": dict(eos_token_id=text[last])}.get(end)
    if end == "stop":
        from support.spelling import Pieces

        letters = [bytes([97 + i]) for i in range(13)]
        monkeypatch.setattr(target, "tokenizer", Pieces(letters))
        options = dict(eos_token_id=None, stop=letters[text[last]].decode())
    out = engine.generate(PROMPT, 12, temperature=3.0, seed=1, **options)
    assert out.finish_reason == end
    held = len(PROMPT) + len(out.tokens) - 1
    known = pool.new_sequence([*PROMPT, *out.tokens, 0, 0])
    assert known.length == held // 4 * 4 > len(PROMPT) // 4 * 4


def test_samples_begin_with_what_the_pool_knows(monkeypatch):
    target, fed = tiny_llama(1), []
    pool = PagedKVPool(target, 40, 2)
    engine = SpeculativeEngine(target, pool=pool)
    engine.generate(PROMPT, 2, eos_token_id=None)
    forward = target.forward

    def counted(tokens, cache, rows=slice(None)):
        fed.append(len(tokens))
        return forward(tokens, cache, rows)

    monkeypatch.setattr(target, "forward", counted)
    engine.generate_many(PROMPT, 3, 2, temperature=1.0, seed=1, eos_token_id=None)
    assert max(fed) == 1, "a prompt that the pool knows was taken in again"


def test_counts_are_ready_for_json():
    import json

    stats = SpeculativeEngine(tiny_llama(1)).generate(PROMPT, 3, eos_token_id=None).stats
    data = json.loads(json.dumps(stats.as_dict()))
    assert data["rounds"] == data["plain"] == 3 == len(data["by_round"]) and data["origins"] == ["plain"] * 3
