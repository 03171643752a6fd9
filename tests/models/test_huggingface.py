"""The adapter for transformers' models: exact roll-back, plain greedy output, and clear refusals.

All models are tiny and random. Logits are compared with those of one pass over the whole sequence without a cache.
"""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch
import transformers
from support.hf_models import CONTEXT, FAMILIES, RECURRENT, ROUGH, SIZES, VOCAB, WINDOW, build
from torch import nn

from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine
from specdec_ref.models.huggingface import HuggingFaceModel

transformers.logging.set_verbosity_error()


def uncached(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def some_ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=n)


def plain_generate(model: HuggingFaceModel, prompt: list[int], n: int) -> list[int]:
    """What transformers itself generates, with its own choice of cache."""
    return model.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=n,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=list(model.eos_token_ids),
    )[0, len(prompt) :].tolist()


def assert_close(found: torch.Tensor, expected: torch.Tensor, rough: bool) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if rough else 1e-10)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    # For matrices this small more threads only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("seed", [0, 1])
def test_any_walk_of_passes_and_roll_backs_equals_a_fresh_prefill(family, seed):
    model = HuggingFaceModel(build(family))
    choose = random.Random(seed)
    cache, held = model.new_cache(CONTEXT), []
    lengths = set()
    for _ in range(25):
        # Up to 14 tokens, more than two windows; roll-backs of a few tokens, and now and then far or to nothing.
        new = some_ids(min(choose.choice([1, 1, 2, 5, 14]), CONTEXT - len(held)), choose.random())
        if new:
            logits = model.forward(torch.tensor(new), cache)
            held += new
            assert_close(logits, uncached(model.model, held)[-len(new) :], family in ROUGH)
        keep = choose.choice([len(held), max(0, len(held) - choose.randint(1, 5)), choose.randint(0, len(held))])
        cache.truncate(keep)
        del held[keep:]
        assert cache.length == len(held)
        lengths.add(len(held))
    assert max(lengths) > 3 * WINDOW


def test_a_roll_back_over_the_edge_of_the_window_equals_a_fresh_prefill():
    for family in ("mistral, window", "gemma2", "gemma3", "llama4, chunks"):
        model = HuggingFaceModel(build(family))
        ids = some_ids(4 * WINDOW)
        whole = uncached(model.model, ids)
        for begin in range(1, 2 * WINDOW + 2):
            for rejected in (1, WINDOW - 1, WINDOW, WINDOW + 1):
                cache = model.new_cache(CONTEXT)
                model.forward(torch.tensor(ids[:begin]), cache, slice(0))
                model.forward(torch.tensor(some_ids(rejected, seed=9)), cache, slice(0))
                cache.truncate(begin)
                assert_close(model.forward(torch.tensor(ids[begin:]), cache), whole[begin:], family in ROUGH)


def test_one_forgotten_token_would_be_seen(family):
    # The comparisons above can only fail where logits depend on the tokens that were to be taken back.
    model, ids = build(family).eval(), some_ids(3 * WINDOW)
    other = [*ids[:-2], (ids[-2] + 1) % VOCAB, ids[-1]]
    assert (uncached(model, ids)[-1] - uncached(model, other)[-1]).abs().max() > 0.01


def test_greedy_output_is_that_of_plain_generate(family):
    target, draft = HuggingFaceModel(build(family)), HuggingFaceModel(build(family, seed=1))
    for length in (1, 3 * WINDOW):
        prompt = some_ids(length, seed=length)
        plain = plain_generate(target, prompt, 20)
        assert SpeculativeEngine(target).generate(prompt, 20).tokens == plain
        for gamma in (1, 4):
            for drafter in (DraftModelDrafter(draft), NGramDrafter()):
                assert SpeculativeEngine(target, drafter, gamma).generate(prompt, 20).tokens == plain
            itself = SpeculativeEngine(target, DraftModelDrafter(target), gamma).generate(prompt, 20)
            assert itself.tokens == plain
            assert itself.stats.accepted == itself.stats.tested  # a model never disagrees with itself


def test_models_of_different_families_share_a_vocabulary():
    target, draft = HuggingFaceModel(build("gemma3")), HuggingFaceModel(build("gpt2"))
    prompt = some_ids(2 * WINDOW)
    speculative = SpeculativeEngine(target, DraftModelDrafter(draft)).generate(prompt, 30)
    assert speculative.tokens == SpeculativeEngine(target).generate(prompt, 30).tokens
    assert speculative.stats.drafted > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(family, dtype):
    model = HuggingFaceModel(build(family, dtype=dtype))
    assert model.dtype == dtype
    assert model.vocab_size == VOCAB
    assert model.device == torch.device("cpu")


@pytest.mark.parametrize("rows", [slice(None), slice(0), slice(4, None), slice(-1, None), slice(1, 3), slice(0, 5, 2)])
def test_only_the_chosen_rows_come_back(family, rows):
    model, ids = HuggingFaceModel(build(family)), some_ids(5)
    cache = model.new_cache(5)
    logits = model.forward(torch.tensor(ids), cache, rows)
    assert logits.shape == (len(range(5)[rows]), VOCAB)
    assert_close(logits, uncached(model.model, ids)[rows], family in ROUGH)
    assert cache.length == 5
    assert not logits.requires_grad


@pytest.mark.parametrize(
    ("rows", "computed"), [(slice(0), 1), (slice(4, None), 1), (slice(2, None), 3), (slice(None), 5)]
)
def test_the_head_computes_no_more_rows_than_it_must(rows, computed):
    model, seen = HuggingFaceModel(build("qwen2")), []
    model.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    model.forward(torch.tensor(some_ids(5)), model.new_cache(5), rows)
    assert seen == [computed]


def test_truncating_outside_the_cache_is_refused():
    model = HuggingFaceModel(build("gpt2"))
    cache = model.new_cache(9)
    model.forward(torch.tensor(some_ids(3)), cache)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="give 0 to 3"):
            cache.truncate(length)


def test_a_chain_is_kept_and_the_smallest_gap_is_refused():
    model = HuggingFaceModel(build("gpt2"))
    cache = model.new_cache(9)
    model.forward(torch.tensor(some_ids(6)), cache)
    for gap in ([2, 4], [0, 1, 5]):
        with pytest.raises(ValueError, match="cannot close the gaps"):
            cache.keep(gap)
    assert cache.length == 6
    cache.keep([2, 3])
    assert cache.length == 4


def test_two_caches_of_one_model_do_not_mix():
    model, a, b = HuggingFaceModel(build("gemma3")), some_ids(9, 1), some_ids(9, 2)
    caches = [model.new_cache(9), model.new_cache(9)]
    logits: list[list[torch.Tensor]] = [[], []]
    for at in range(0, 9, 3):
        for row, (ids, cache) in enumerate(zip((a, b), caches, strict=True)):
            logits[row].append(model.forward(torch.tensor(ids[at : at + 3]), cache))
    for ids, parts in zip((a, b), logits, strict=True):
        assert_close(torch.cat(parts), uncached(model.model, ids), rough=False)


# What a model says of itself.

LONGROPE: dict[str, Any] = dict(
    original_max_position_embeddings=16,
    rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4},
)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {}, CONTEXT),
        ("gpt2", {}, CONTEXT),
        ("opt", {}, CONTEXT),
        ("bloom", {}, None),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, CONTEXT),
        ("phi3", LONGROPE, 16),
    ],
)
def test_the_context_is_what_the_model_computes_exactly(family, changes, expected):
    model = HuggingFaceModel(build(family, **changes))
    assert model.max_context == expected
    prompt = some_ids(10)
    if expected is None:
        assert len(SpeculativeEngine(model).generate(prompt, 80, eos_token_id=None).tokens) == 80
        return
    generation = SpeculativeEngine(model, DraftModelDrafter(HuggingFaceModel(build(family, 1, **changes)))).generate(
        prompt, 500, eos_token_id=None
    )
    assert (len(generation.tokens), generation.finish_reason) == (expected - len(prompt), "length")
    assert generation.tokens == SpeculativeEngine(model).generate(prompt, 500, eos_token_id=None).tokens
    cache = model.new_cache(expected)
    model.forward(torch.tensor(some_ids(expected)), cache, slice(0))
    with pytest.raises(
        ValueError, match=f"{expected} cached and 1 new tokens exceed the model's context of {expected}"
    ):
        model.forward(torch.tensor([5]), cache)


def test_past_its_first_angles_longrope_is_not_exact():
    # The reason for the limit: a block that crosses it turns the keys before it by other angles.
    model = HuggingFaceModel(build("phi3", **LONGROPE))
    model.max_context, ids = None, some_ids(18)
    one_by_one, block = model.new_cache(18), model.new_cache(18)
    steps = [model.forward(torch.tensor([token]), one_by_one)[0] for token in ids]
    model.forward(torch.tensor(ids[:14]), block, slice(0))
    at_once = model.forward(torch.tensor(ids[14:]), block)
    assert (at_once[0] - steps[14]).abs().max() > 0.01


@pytest.mark.parametrize(("eos", "expected"), [(2, (2,)), ([2, 7], (2, 7)), (None, ())])
def test_eos_ids_come_from_the_generation_config_then_the_config(eos, expected):
    model = build("llama", eos_token_id=eos)
    assert HuggingFaceModel(model).eos_token_ids == expected
    model.generation_config.eos_token_id = [11, 12]
    assert HuggingFaceModel(model).eos_token_ids == (11, 12)
    model.generation_config = None
    assert HuggingFaceModel(model).eos_token_ids == expected


def test_dropout_is_switched_off():
    model = build("gpt2", resid_pdrop=0.5).train()
    adapted, ids = HuggingFaceModel(model), torch.tensor(some_ids(5))
    assert torch.equal(adapted.forward(ids, adapted.new_cache(5)), adapted.forward(ids, adapted.new_cache(5)))


# What cannot take back tokens.


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_state_is_refused_with_the_reason(name):
    model_class, config_class, sizes = RECURRENT[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes))
    with pytest.raises(
        ValueError, match=rf"^{model_class} cannot take back tokens that were rejected \(.{{10,}}\)\. Give"
    ):
        HuggingFaceModel(model)


def test_short_convolutions_are_taken_where_transformers_can_roll_them_back():
    sizes = SIZES | dict(layer_types=["conv", "full_attention"], conv_L_cache=3)
    torch.manual_seed(0)
    model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**sizes)).double()
    if not hasattr(transformers.DynamicCache, "activate_past_recording"):
        with pytest.raises(ValueError, match="cannot take back tokens"):
            HuggingFaceModel(model)
        return
    target = HuggingFaceModel(model)
    for length in (1, 2, 9):
        prompt = some_ids(length)
        expected = plain_generate(target, prompt, 24)
        for drafter in (None, NGramDrafter(), DraftModelDrafter(HuggingFaceModel(build("gpt2")))):
            assert SpeculativeEngine(target, drafter, 4).generate(prompt, 24).tokens == expected
    # Behind its last roll-back it holds nothing any more, and says so instead of going on with less.
    cache, ids = target.new_cache(20), some_ids(12)
    target.forward(torch.tensor(ids), cache)
    cache.truncate(9)
    with pytest.raises(ValueError, match="forgot what lies before the last roll-back, to 9"):
        cache.truncate(8)
    cache.truncate(0)
    assert_close(target.forward(torch.tensor(ids), cache), uncached(target.model, ids), rough=False)
    cache.truncate(5)  # once emptied it may be cut anywhere again
    assert cache.length == 5


class Flawed(nn.Module):
    """A Llama with one flaw, such as a model with code of its own might have."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.inner, self.flaw, self.state = build("llama").eval(), flaw, 0.0
        self.config, self.device, self.dtype = self.inner.config, self.inner.device, self.inner.dtype
        self.get_input_embeddings = self.inner.get_input_embeddings

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = True) -> Any:
        name = "cache" if "cache" in inspect.signature(self.inner.forward).parameters else "past_key_values"
        cache = None if self.flaw == "ignores its cache" else past_key_values
        position = None
        if self.flaw == "counts positions from 0":
            position = torch.arange(input_ids.shape[1])[None]
        out = self.inner(input_ids=input_ids, position_ids=position, use_cache=use_cache, **{name: cache})
        if self.flaw == "sums up what it saw":
            self.state = (self.state if use_cache else 0.0) + 0.1 * float(input_ids.sum())
            out.logits = out.logits + torch.linspace(0, self.state, VOCAB)
        if self.flaw == "is a percent off" and use_cache:
            out.logits = out.logits * 1.01
        if self.flaw == "knows no number":
            out.logits = out.logits * float("nan")
        return out


@pytest.mark.parametrize(
    ("flaw", "reason"),
    [
        ("ignores its cache", "cannot truncate a cache of 0 tokens"),
        ("counts positions from 0", "after a roll-back its logits are off by up to"),
        ("sums up what it saw", "after a roll-back its logits are off by up to"),
        ("is a percent off", "after a roll-back its logits are off by up to"),
        ("knows no number", "by up to nan"),
    ],
)
def test_a_silent_flaw_is_found_by_trying(flaw, reason):
    assert HuggingFaceModel(Flawed("none")).vocab_size == VOCAB
    with pytest.raises(ValueError, match=reason):
        HuggingFaceModel(Flawed(flaw))


def test_a_model_that_reads_both_ways_is_refused():
    sizes = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    with pytest.raises(ValueError, match="cannot take back"):
        HuggingFaceModel(transformers.BertLMHeadModel(transformers.BertConfig(**sizes)))


def test_an_encoder_decoder_is_refused():
    config = transformers.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        HuggingFaceModel(transformers.T5ForConditionalGeneration(config))


def test_what_is_no_model_is_refused():
    for wrong in ("gpt2", None, nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"load_model\(name\) takes names and folders"):
            HuggingFaceModel(wrong)


def test_a_wrapper_that_passes_everything_on_is_seen_through():
    class Wrapper(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.config, self.device = inner, inner.config, inner.device
            self.get_input_embeddings = inner.get_input_embeddings

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    wrapped = HuggingFaceModel(Wrapper(build("mistral, window")))
    prompt = some_ids(10)
    expected = SpeculativeEngine(HuggingFaceModel(wrapped.model.inner)).generate(prompt, 20).tokens
    assert SpeculativeEngine(wrapped, NGramDrafter()).generate(prompt, 20).tokens == expected
