"""Numerical flips are distinguished from errors."""

from __future__ import annotations

import math

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import NGramDrafter, SpeculativeEngine
from specdec_ref.measure import compare_greedy
from specdec_ref.measure.neartie import logits_by_shape
from specdec_ref.models.scripted import ScriptedModel

PROMPT = [3, 1, 4, 1, 5]


def plain(model, n=12):
    return SpeculativeEngine(model).generate(PROMPT, n, eos_token_id=None).tokens


def test_same_tokens():
    found = compare_greedy([1, 2], [1, 2], tiny_llama(1), PROMPT)
    assert found.kind == "same" and str(found) == "same tokens"


def test_a_wrong_token_in_float64_is_an_error():
    model = tiny_llama(1)
    a = plain(model)
    second = logits_by_shape(model, PROMPT, a[:4])[0].topk(2).indices[1].item()
    b = [*a[:4], second, *a[5:]]
    found = compare_greedy(a, b, model, PROMPT)
    assert (found.kind, found.position, found.tokens) == ("error", 4, (a[4], second))
    assert found.gap > 100 * found.rounding and "error" in str(found)


def test_the_order_of_the_outputs_does_not_matter():
    model = tiny_llama(1)
    a = plain(model)
    b = [*a[:2], (a[2] + 1) % model.vocab_size]
    one, other = compare_greedy(a, b, model, PROMPT), compare_greedy(b, a, model, PROMPT)
    assert (one.kind, one.gap, one.rounding) == (other.kind, other.gap, other.rounding)


@pytest.mark.parametrize(("a", "b"), [([1, 2], [1, 2, 3]), ([], [5]), ([1, 2, 3], [1])])
def test_another_length_is_an_error(a, b):
    found = compare_greedy(a, b, tiny_llama(1), PROMPT)
    assert found.kind == "error" and "ends" in str(found)


class Rounded(ScriptedModel):
    """Its logits depend on the number of tokens in the pass, as rounding makes them."""

    def forward(self, tokens, cache, rows=slice(None)):
        noise = 1e-3 * (len(tokens) % 3)
        return super().forward(tokens, cache, rows) + torch.tensor([noise, -noise, 0.0]).double()


def test_two_tokens_within_the_rounding_are_a_near_tie():
    model = Rounded(lambda tokens: (0.45, 0.4501, 0.0999), 3)
    found = compare_greedy([1, 0, 0], [1, 1, 0], model, [0, 1])
    assert (found.kind, found.position) == ("near-tie", 1)
    assert 0 < found.gap < found.rounding < 0.01 and "near-tie" in str(found)


@pytest.mark.parametrize(("roundings", "kind"), [(0.1, "near-tie"), (3.9, "near-tie"), (4.1, "error"), (10, "error")])
def test_a_gap_of_more_than_four_roundings_is_an_error(roundings, kind):
    """Passes move either logit by up to 2e-3, in opposite directions: twice that for both, and twice for safety."""
    scale = 2e-3
    gap_of_the_pass_over_all = roundings * scale + 2 * scale
    low = 0.9 / (1 + math.exp(gap_of_the_pass_over_all))
    model = Rounded(lambda tokens: (low, 0.9 - low, 0.1), 3)
    found = compare_greedy([1, 0, 0], [1, 1, 0], model, [0, 1])
    assert (found.rounding, found.gap) == pytest.approx((scale, roundings * scale))
    assert found.kind == kind


def test_a_third_token_is_an_error_even_where_two_are_tied():
    model = Rounded(lambda tokens: (0.45, 0.4501, 0.0999), 3)
    assert compare_greedy([1, 0, 0], [1, 2, 0], model, [0, 1]).kind == "error"


def test_rounding_scale_follows_the_precision():
    scales = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = tiny_llama(1).to(dtype)
        a = plain(model)
        wrong = [*a[:9], (a[9] + 1) % model.vocab_size]
        scales[dtype] = compare_greedy(a, wrong, model, PROMPT).rounding
    assert 0 < scales[torch.float64] < 1e-12 < scales[torch.float32] < 1e-4 < scales[torch.bfloat16] < 0.1


@pytest.mark.model
def test_speculation_in_bfloat16_differs_by_near_ties_only(smollm):
    """Lookup on a rewrite and on open text; what differs at all lies within the rounding of the pass."""
    for prompt in ("Repeat: the cat sat on the mat. The cat sat on", "The three laws of robotics are"):
        a = SpeculativeEngine(smollm).generate(prompt, 48, eos_token_id=None).tokens
        b = SpeculativeEngine(smollm, NGramDrafter(), gamma=6).generate(prompt, 48, eos_token_id=None).tokens
        assert compare_greedy(a, b, smollm, prompt).kind in ("same", "near-tie")


@pytest.mark.model
def test_a_wrong_token_in_bfloat16_is_an_error(smollm):
    prompt = "The capital of France is"
    a = SpeculativeEngine(smollm).generate(prompt, 8, eos_token_id=None).tokens
    tenth = logits_by_shape(smollm, smollm.tokenizer.encode(prompt), a[:3])[0].topk(10).indices[-1].item()
    found = compare_greedy(a, [*a[:3], tenth, *a[4:]], smollm, prompt)
    assert found.kind == "error" and found.rounding > 0
