"""SmolLM2 through the production loop, enumerated: its own distributions, and a draft that sees its last two tokens
only.
"""

from __future__ import annotations

import pytest
import torch
from support.memoised_model import MemoisedModel
from support.packed_models import divisible_llama, stored
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, SpeculativeEngine, load_model
from specdec_ref.models.layout import keep_stored
from specdec_ref.proof import autoregressive_distribution, difference, enumerate_distribution


def compare(model, prompt, rule, **options):
    """(deviation of the joint distribution, number of outputs) of the loop with a short-sighted draft."""
    target, draft = MemoisedModel(model), MemoisedModel(model, window=2)
    engine = SpeculativeEngine(target, DraftModelDrafter(draft), gamma=2, rule=rule)
    distribution = enumerate_distribution(
        lambda source: tuple(engine.generate(prompt, 3, source=source, eos_token_id=None, **options).tokens)
    )
    expected = autoregressive_distribution(target.distribution, prompt, 3, **options)
    return difference(distribution, expected), len(expected)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_tiny_llama(rule):
    deviation, outputs = compare(tiny_llama(1), [3, 1, 4], rule, temperature=0.9, top_k=2)
    assert deviation <= 1e-12 and outputs == 8


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_smollm2(smollm, rule):
    prompt = smollm.tokenizer.encode("The capital of France is")
    deviation, outputs = compare(smollm, prompt, rule, temperature=0.8, top_k=3)
    assert deviation <= 1e-12 and outputs >= 27


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_tiny_llama_in_four_bits(rule):
    blocks, exact = stored(divisible_llama())
    model = keep_stored(exact.to(torch.bfloat16), blocks)
    deviation, outputs = compare(model, [3, 1, 4], rule, temperature=0.9, top_k=2)
    assert deviation <= 1e-12 and outputs == 8


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_smollm2_in_four_bits(rule):
    model = load_model(weights="q4")
    deviation, outputs = compare(
        model, model.tokenizer.encode("The capital of France is"), rule, temperature=0.8, top_k=3
    )
    assert deviation <= 1e-12 and outputs >= 27
