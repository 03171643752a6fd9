"""The reference Llama against transformers', and against itself over every way to split a sequence."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_config, tiny_llama

from specdec_ref import load_model
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.llama import Llama, causal_mask, rotary_tables

SHAPES = {
    "grouped": dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=24),
    "multi-head": dict(num_attention_heads=4, num_key_value_heads=4, hidden_size=24),
    "multi-query": dict(num_attention_heads=4, num_key_value_heads=1, hidden_size=24),
    "head_dim apart": dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=24, head_dim=10),
    "tied": dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=24, tie_word_embeddings=True),
}


class ExactRMSNorm(torch.nn.Module):
    """transformers computes this norm in float32 whatever the model's dtype; here it keeps the dtype."""

    def __init__(self, theirs):
        super().__init__()
        self.weight, self.eps = theirs.weight, theirs.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def theirs(dtype=torch.float64, **changes):
    from transformers import LlamaConfig as HFConfig
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    config = HFConfig(
        vocab_size=31,
        intermediate_size=40,
        num_hidden_layers=3,
        max_position_embeddings=64,
        initializer_range=0.3,
        **changes,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    if dtype == torch.float64:
        for layer in model.model.layers:
            layer.input_layernorm = ExactRMSNorm(layer.input_layernorm)
            layer.post_attention_layernorm = ExactRMSNorm(layer.post_attention_layernorm)
        model.model.norm = ExactRMSNorm(model.model.norm)
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_logits_and_hidden_states_equal_transformers(shape):
    reference = theirs(**SHAPES[shape])
    ours = Llama.from_hf(json.loads(reference.config.to_json_string()), reference.state_dict(), torch.float64)
    ids = torch.randint(0, 31, (20,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        want = reference(ids[None], output_hidden_states=True)
        hidden = ours.forward_pass(ids, ours.new_cache(20), layers=range(ours.config.n_layers + 1)).features
        logits = ours.forward(ids, ours.new_cache(20))
    torch.testing.assert_close(logits, want.logits[0], rtol=1e-10, atol=1e-10)
    assert len(hidden) == len(want.hidden_states)
    for a, b in zip(hidden, want.hidden_states, strict=True):
        torch.testing.assert_close(a, b[0], rtol=1e-10, atol=1e-10)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_split_into_passes_gives_the_same_logits_and_cache(data):
    model = tiny_llama(4)
    n = data.draw(st.integers(1, 24))
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n)))
    whole_cache, cache = model.new_cache(n), model.new_cache(n + 8)
    whole = model(ids, whole_cache)
    rows, start = [], 0
    while start < n:
        step = data.draw(st.integers(1, n - start))
        junk = data.draw(st.integers(0, 8))
        if junk:  # tokens that are taken in and rolled back leave no trace
            model(torch.zeros(junk, dtype=torch.long), cache)
            cache.truncate(start)
        rows.append(model(ids[start : start + step], cache))
        start += step
    torch.testing.assert_close(torch.cat(rows), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cache.keys[:, :, :n], whole_cache.keys, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(cache.values[:, :, :n], whole_cache.values, rtol=1e-10, atol=1e-10)


def test_chosen_rows_are_those_rows():
    model, ids = tiny_llama(4), torch.arange(9)
    every = model(ids, model.new_cache(9))
    for rows in (slice(-1, None), slice(2, 5), slice(0)):
        torch.testing.assert_close(model(ids, model.new_cache(9), rows), every[rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_positions_are_exact_in_every_format(dtype):
    """A position counted in bfloat16 would be off from 257 on; at 5,000 its angle would be any."""
    config = tiny_config(max_context=5001, head_dim=64, hidden_size=256)
    exact, rounded = (rotary_tables(config, each) for each in (torch.float64, dtype))
    for table, other in zip(exact, rounded):
        assert (table - other.double()).abs().max() <= torch.finfo(dtype).eps
    frequency = 1 / config.rope_theta ** (torch.arange(32, dtype=torch.float64) / 32)
    torch.testing.assert_close(exact[0][5000, 0, :32], (5000 * frequency).cos(), rtol=0, atol=1e-3)


@pytest.mark.model
def test_rotation_at_position_5000_is_that_of_transformers(real_folder):
    """In the default model's bfloat16, far beyond what bfloat16 can count."""
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = load_model(dtype="bfloat16")
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(real_folder))
    at = torch.tensor([[5000]])
    cos, sin = theirs(torch.zeros(1, 1, 1, dtype=torch.bfloat16), at)
    torch.testing.assert_close(model.cos[5000, 0], cos[0, 0], rtol=0, atol=2**-7)
    torch.testing.assert_close(model.sin[5000, 0, 32:], sin[0, 0, 32:], rtol=0, atol=2**-7)


def test_causal_mask_lets_a_token_see_the_past_and_itself():
    assert causal_mask(1, 7) is None
    assert causal_mask(3, 2).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_the_last_place_of_a_context_can_be_filled():
    model = tiny_llama(4)
    cache = model.new_cache(96)
    model(torch.zeros(95, dtype=torch.long), cache)
    assert len(model(torch.zeros(1, dtype=torch.long), cache)) == 1 and cache.length == model.max_context == 96


def test_what_does_not_fit_is_refused_and_changes_nothing():
    model = tiny_llama(4)
    cache = model.new_cache(5)
    model(torch.arange(4), cache)
    with pytest.raises(ValueError, match=r"holds 4 of 5 tokens, 2 more"):
        model(torch.arange(2), cache)
    assert cache.length == 4
    with pytest.raises(ValueError, match="context of 96"):
        model(torch.zeros(97, dtype=torch.long), model.new_cache(200))
    for length in (-1, 5):
        with pytest.raises(ValueError, match="cannot truncate a cache of 4"):
            cache.truncate(length)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"partial_rotary_factor": 0.5},
        {"hidden_act": "gelu"},
    ],
)
def test_what_the_reference_does_not_implement_is_refused(changes):
    config = json.loads(theirs(**SHAPES["grouped"]).config.to_json_string())
    LlamaConfig.from_hf(config)
    config.pop("rope_parameters", None)
    with pytest.raises(ValueError, match="does not implement"):
        LlamaConfig.from_hf(config | changes)


@pytest.fixture(scope="module")
def real_folder():
    from specdec_ref.models.store.fetch import fetch

    return fetch()


IDS = [1, 4093, 198, 504, 3575, 282, 4649, 314, 7042, 30, 378, 2591, 314, 4412, 288, 260, 3814, 282, 260, 2809]


@pytest.mark.model
def test_smollm_float32_logits_equal_transformers(real_folder):
    from transformers import LlamaForCausalLM

    reference = LlamaForCausalLM.from_pretrained(real_folder, dtype=torch.float32)
    ours = load_model(dtype="float32")
    ids = torch.tensor(IDS)
    with torch.inference_mode():
        want, got = reference(ids[None]).logits[0], ours(ids, ours.new_cache(len(ids)))
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()


@pytest.mark.model
def test_smollm_bf16_is_as_near_to_float32_as_transformers_bf16(real_folder):
    """Reported, and bounded by what transformers' own bfloat16 loses."""
    from transformers import LlamaForCausalLM

    ids = torch.tensor(IDS)
    with torch.inference_mode():
        exact_model = load_model(dtype="float32")
        exact = exact_model(ids, exact_model.new_cache(len(ids)))
        ours_model = load_model(dtype="bfloat16")
        ours = ours_model(ids, ours_model.new_cache(len(ids))).float()
        theirs = LlamaForCausalLM.from_pretrained(real_folder, dtype=torch.bfloat16)(ids[None]).logits[0].float()
    ours_error, theirs_error = ((x - exact).norm() / exact.norm() for x in (ours, theirs))
    print(f"relative error in bfloat16: ours {ours_error:.4f}, transformers {theirs_error:.4f}")
    assert ours_error < 2 * theirs_error
