"""The early exit: a whole model of the first layers, exact as a draft, with a cache that equals the target's own."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import EarlyExitDrafter, SpeculativeEngine
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof import MUTANTS, difference, enumerate_distribution, planted
from specdec_ref.sampling import Sampling

PROMPT = [1, 5, 2, 7, 3]


def outputs(engine, seen=None):
    """The exact distribution of three tokens; `seen` collects the accepted, rejected and cut drafts of all branches."""

    def look(run, round_):
        if seen is not None:
            seen["accepted"] += round_.verdict.accepted
            seen["rejected"] += round_.verdict.origin == "corrected"
            seen["cut"] += len(round_.kept) < round_.verdict.accepted + 1

    return enumerate_distribution(
        lambda source: tuple(
            engine.generate([1, 2], 3, temperature=1.2, source=source, eos_token_id=0, on_round=look).tokens
        )
    )


@pytest.mark.parametrize("rule", ["token", "block"])
def test_every_output_has_the_targets_probability(rule):
    target = tiny_llama(3, vocab_size=3, n_layers=3)
    seen = {"accepted": 0, "rejected": 0, "cut": 0}
    found = outputs(SpeculativeEngine(target, EarlyExitDrafter(1), 2, rule), seen)
    assert difference(found, outputs(SpeculativeEngine(target))) < 1e-9
    assert all(seen.values())


@pytest.mark.parametrize("name", ["an unsure token dropped", "draft rolled back one short", "q before filtering"])
def test_bugs_of_a_draft_model_are_noticed_here_too(name):
    target = tiny_llama(3, vocab_size=3, n_layers=3)
    want = outputs(SpeculativeEngine(target))
    with planted(next(m for m in MUTANTS if m.name == name)):
        try:
            found = outputs(SpeculativeEngine(target, EarlyExitDrafter(1), 2))
            broken = broken_rounds(target)
        except (ValueError, RuntimeError):
            return
    assert difference(found, want) > 1e-4 or broken


def broken_rounds(target) -> int:
    """Rounds after which the draft's cache is not the first layers' part of what a fresh pass over the text gives."""
    wrong = 0

    def look(run, round_):
        nonlocal wrong
        cache, whole = run.drafter.cache, target.new_cache(len(run.tokens))
        target.forward(torch.tensor(run.tokens[:-1]), whole)
        held = cache.length
        same = held <= len(run.tokens) - 1 and all(
            torch.allclose(mine[:1, :, :held], its[:1, :, :held])
            for mine, its in ((cache.keys, whole.keys), (cache.values, whole.values))
        )
        wrong += not same

    engine = SpeculativeEngine(target, EarlyExitDrafter(1), 3)
    engine.generate([1, 2, 0], 30, temperature=1.0, seed=2, eos_token_id=None, on_round=look)
    return wrong


def test_between_rounds_its_cache_is_the_targets_own():
    assert broken_rounds(tiny_llama(3, vocab_size=3, n_layers=3)) == 0


def test_it_is_the_first_layers_with_the_targets_norm_and_head():
    target = tiny_llama(1, n_layers=3)
    short = target.first_layers(2)
    ids = torch.tensor(PROMPT)
    states = target.forward_pass(ids, target.new_cache(8), layers=(2,)).features[0]
    torch.testing.assert_close(short(ids, short.new_cache(8)), target.head(target.norm(states)))
    assert short.head.weight is target.head.weight and len(target.layers) == 3 == target.config.n_layers
    assert short.new_cache(8).keys.shape[0] == 2


def test_what_the_last_layers_do_not_change_is_all_accepted():
    target = tiny_llama(1, n_layers=3)
    for layer in target.layers[1:]:
        layer.out.weight.zero_()
        layer.down.weight.zero_()
    result = SpeculativeEngine(target, EarlyExitDrafter(1), 3).generate(PROMPT, 40, eos_token_id=None)
    assert result.stats.accepted == result.stats.tested > 20


def test_one_drafter_serves_two_targets():
    drafter = EarlyExitDrafter(1)
    engines = [SpeculativeEngine(tiny_llama(seed), drafter, 3) for seed in (1, 2)]
    streams = [engine.stream(PROMPT, 20) for engine in engines]
    for stream in streams:
        next(stream)
    for engine, stream in zip(engines, streams, strict=True):
        assert drafter.begin(engine.target, Sampling(), 8).model.embed is engine.target.embed
        assert stream.read().tokens == SpeculativeEngine(engine.target).generate(PROMPT, 20).tokens


def test_targets_that_cannot_be_left_early_are_refused():
    with pytest.raises(ValueError, match="needs a target with first_layers"):
        SpeculativeEngine(ScriptedModel(lambda tokens: [0.5, 0.5], 2), EarlyExitDrafter(1))
    with pytest.raises(ValueError, match="give 1 to 1"):
        SpeculativeEngine(tiny_llama(1), EarlyExitDrafter(2))
    with pytest.raises(ValueError, match="n_layers is 0"):
        EarlyExitDrafter(0)


@pytest.mark.model
def test_untrained_the_default_model_is_left_too_early(smollm):
    """SmolLM2 was never trained to be read in the middle: half its layers guess hardly ever right, nearly all often."""
    message = [{"role": "user", "content": "Name three fruits."}]
    rate = {}
    for n in (15, 29):
        stats = SpeculativeEngine(smollm, EarlyExitDrafter(n), 2).generate(message, 24).stats
        assert stats.tested > 10
        rate[n] = stats.acceptance_rate
    assert rate[15] < 0.3 < rate[29]
