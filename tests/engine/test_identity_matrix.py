"""Greedy identity in float64: every adapter x drafter x gamma x way to end, against plain decoding.

Plain decoding is the same engine at gamma 0; where the model is transformers', its own `generate` has to agree too.
"""

from __future__ import annotations

import copy
import itertools
import random
from functools import cache
from typing import Any

import pytest
import torch
from support.hf_models import VOCAB, WINDOW, build
from support.tiny_models import tiny_llama
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine
from specdec_ref.models.huggingface import HuggingFaceModel
from specdec_ref.models.scripted import ScriptedModel

PROMPTS, BUDGET = ([5], [9, 4, 11, 9, 4, 30, 9]), 3 * WINDOW
GAMMAS = [1, 3, 8]


def letters() -> PreTrainedTokenizerFast:
    """Each token is two of eight letters, so that a stop string of three always crosses a border."""
    pairs = map("".join, itertools.product("abcdefgh", repeat=2))
    tokenizer = Tokenizer(models.WordLevel(dict(zip(pairs, range(VOCAB), strict=False)), unk_token="aa"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(".."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def scripted(noise: float) -> ScriptedModel:
    def distribution(tokens: tuple[int, ...]) -> list[float]:
        dice, other = random.Random(str(tokens[-5:])), random.Random(str(tokens))
        weights = [dice.random() ** 8 + noise * other.random() ** 8 + 1e-3 for _ in range(VOCAB)]
        return [w / sum(weights) for w in weights]

    return ScriptedModel(distribution, VOCAB)


def shaken(model: Any, module: torch.nn.Module) -> Any:
    """A copy of `model` with noise in its weights: a draft that is right now and then."""
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in (twin if module is model else twin.model).parameters():
            weight += 0.04 * torch.randn_like(weight) * weight.std()
    return twin


TARGETS = ["llama", "scripted", "hf llama", "hf gpt2", "hf mistral, window"]


@cache
def pair(name: str) -> tuple[Any, Any]:
    """A target and another model of its kind to draft for it."""
    if name == "scripted":
        target, draft = scripted(0.0), scripted(0.3)
    elif name == "llama":
        target = tiny_llama(1, vocab_size=VOCAB)
        draft = shaken(target, target)
    else:
        target = HuggingFaceModel(build(name.removeprefix("hf ")))
        draft = shaken(target, target.model)
    target.tokenizer = draft.tokenizer = letters()
    target.eos_token_ids = ()
    return target, draft


DRAFTERS = {
    "lookup": lambda target, draft: NGramDrafter(),
    "other model": lambda target, draft: DraftModelDrafter(draft),
    "itself": lambda target, draft: DraftModelDrafter(target),
}
WAYS = ["budget", "two end tokens", "stop string", "penalties", "use penalties"]


@cache
def options(name: str, prompt: int, way: str) -> dict[str, Any]:
    """Options that end or change this target's own output in the middle."""
    tokens = SpeculativeEngine(pair(name)[0]).generate(PROMPTS[prompt], BUDGET).tokens
    ends = [tokens[9], tokens[5]]
    return {
        "budget": {},
        "two end tokens": {"eos_token_id": ends},
        "stop string": {"stop": ["zz", letters().decode(tokens[6:8])[1:]]},
        "penalties": {
            "repetition_penalty": 1.6,
            "min_new_tokens": 8,
            "eos_token_id": ends,
            "bad_words": [[tokens[1]], tokens[2:4]],
        },
        "use penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": {(tokens[0],): -2.0}},
    }[way]


@cache
def plain(name: str, prompt: int, way: str) -> Any:
    target = pair(name)[0]
    return SpeculativeEngine(target, NGramDrafter(), gamma=0).generate(
        PROMPTS[prompt], BUDGET, logprobs=True, **options(name, prompt, way)
    )


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", TARGETS)
def test_speculation_writes_what_plain_decoding_writes(name, drafter):
    target, draft = pair(name)
    tested = accepted = 0
    for gamma, prompt, way in itertools.product(GAMMAS, range(len(PROMPTS)), WAYS):
        engine = SpeculativeEngine(target, DRAFTERS[drafter](target, draft), gamma)
        result = engine.generate(PROMPTS[prompt], BUDGET, logprobs=True, **options(name, prompt, way))
        expected = plain(name, prompt, way)
        assert result.tokens == expected.tokens, (gamma, prompt, way)
        assert (result.text, result.finish_reason) == (expected.text, expected.finish_reason)
        assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-9)
        tested, accepted = tested + result.stats.tested, accepted + result.stats.accepted
    if drafter == "itself":
        assert 0 < tested == accepted
    elif drafter == "other model":
        assert 0 < accepted < tested


@pytest.mark.parametrize("name", TARGETS)
def test_each_way_to_end_is_taken(name):
    """Otherwise the matrix would compare the same run again and again."""
    for prompt in range(len(PROMPTS)):
        by_way = {way: plain(name, prompt, way) for way in WAYS}
        assert [by_way[way].finish_reason for way in WAYS[:3]] == ["length", "eos", "stop"]
        whole = by_way["budget"]
        assert len(by_way["two end tokens"].tokens) <= 6 and len(by_way["stop string"].tokens) <= 8
        assert whole.text.startswith(by_way["stop string"].text)
        assert by_way["penalties"].tokens[:8] != whole.tokens[:8] != by_way["use penalties"].tokens[:8]
        assert len(by_way["penalties"].tokens) > 8


@pytest.mark.parametrize("way", WAYS[:4])
@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith("hf")])
def test_plain_decoding_writes_what_transformers_generate_writes(name, way):
    target = pair(name)[0]
    theirs = {"eos_token_id": None, **options(name, 1, way)}
    renamed = {"stop": "stop_strings", "bad_words": "bad_words_ids"}
    output = target.model.generate(
        torch.tensor([PROMPTS[1]]),
        attention_mask=torch.ones(1, len(PROMPTS[1]), dtype=torch.long),
        max_new_tokens=BUDGET,
        do_sample=False,
        pad_token_id=0,
        tokenizer=target.tokenizer,
        **{renamed.get(key, key): value for key, value in theirs.items()},
    )
    assert output[0, len(PROMPTS[1]) :].tolist() == plain(name, 1, way).tokens
