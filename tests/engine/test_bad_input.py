"""Bad input gets a clear error or the sane result, and the engine stays usable."""

import math

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import NGramDrafter, Proposal, SpeculativeEngine
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.sampling import Sampling

TARGET = tiny_llama(1)
ENGINE = SpeculativeEngine(TARGET, NGramDrafter(), 3)


@pytest.fixture(autouse=True)
def engine_stays_usable():
    before = ENGINE.generate([1, 2], 5).tokens
    yield
    assert ENGINE.generate([1, 2], 5).tokens == before


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], ValueError, "prompt is empty"),
        (torch.tensor([], dtype=torch.long), ValueError, "prompt is empty"),
        ([13], ValueError, "id 13 is outside the vocabulary, 0 to 12"),
        ([-1], ValueError, "id -1 is outside"),
        ([1] * 96, ValueError, "96 tokens and the model's context 96"),
        ([[1, 2], [3, 4]], ValueError, "one prompt at a time"),
        (torch.ones(2, 3, dtype=torch.long), ValueError, "one prompt at a time"),
        (["a", "b"], ValueError, "one prompt at a time"),
        ([1.5, 2.0], TypeError, "text, chat messages or token ids"),
        (torch.tensor([1.0]), TypeError, "whole numbers"),
        (None, TypeError, "text, chat messages or token ids"),
        (7.0, TypeError, "text, chat messages or token ids"),
        ("text", ValueError, "no tokenizer"),
        ([{"role": "user", "content": "x"}], ValueError, "no tokenizer"),
    ],
)
def test_prompts_that_make_no_sense(prompt, error, message):
    with pytest.raises(error, match=message):
        ENGINE.generate(prompt, 4)


@pytest.mark.parametrize(
    "prompt", [[1, 2], (1, 2), torch.tensor([1, 2]), torch.tensor([[1, 2]]), [[1, 2]], np.array([1, 2])]
)
def test_every_sane_form_of_ids_is_the_same_prompt(prompt):
    assert ENGINE.generate(prompt, 5).tokens == ENGINE.generate([1, 2], 5).tokens


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "hot", None])
def test_temperature(bad):
    with pytest.raises(ValueError, match="temperature is"):
        ENGINE.generate([1], 4, temperature=bad)


@pytest.mark.parametrize(
    ("name", "bad"), [("top_k", -1), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1), ("top_p", math.nan)]
)
def test_filters(name, bad):
    with pytest.raises(ValueError, match=name):
        ENGINE.generate([1], 4, temperature=1.0, **{name: bad})


@pytest.mark.parametrize("bad", [-1, 2.5, "3", True])
def test_gamma_and_budget(bad):
    with pytest.raises(ValueError, match="gamma is"):
        SpeculativeEngine(TARGET, NGramDrafter(), bad)
    with pytest.raises(ValueError, match="max_new_tokens is"):
        ENGINE.generate([1], bad)


def test_a_budget_of_zero_is_an_empty_output():
    got = ENGINE.generate([1], 0)
    assert (got.tokens, got.text, got.finish_reason, got.stats.rounds) == ([], "", "length", 0)


def test_an_unknown_rule_names_those_there_are():
    with pytest.raises(ValueError, match="no rule 'best': there are token"):
        SpeculativeEngine(TARGET, rule="best")


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ValueError, match="stop strings need a model with a tokenizer"):
        ENGINE.generate([1], 4, stop="x")
    with pytest.raises(ValueError, match="not empty"):
        ENGINE.generate([1], 4, stop="")


@pytest.mark.parametrize("row", [[math.nan] * 3, [0.0, math.nan, 1.0], [-math.inf] * 3, [math.inf, 0.0, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_logits_never_becomes_a_token(row, temperature):
    with pytest.raises(ValueError, match="NaN or infinity"):
        Sampling(temperature).probs(torch.tensor([[0.0, 1.0, 2.0], row]))


def test_a_drafted_token_that_its_own_distribution_forbids_is_an_error():
    class Liar(NGramDrafter):
        def propose(self, tokens, gamma, source):
            return Proposal([0], torch.tensor([[0.0, 1.0]], dtype=torch.float64))

    model = ScriptedModel(lambda tokens: [0.5, 0.5], 2)
    with pytest.raises(ValueError, match="report the distribution it was drawn from"):
        SpeculativeEngine(model, Liar(), 1).generate([0], 3, temperature=1.0)


def test_a_proposal_needs_a_distribution_for_each_token():
    with pytest.raises(ValueError, match=r"\[2, vocab\]"):
        Proposal([1, 2], torch.ones(1, 3))
