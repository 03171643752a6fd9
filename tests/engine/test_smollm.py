"""The default model, as a learner runs it: greedy identity up to listed near-ties, and speed in ratios."""

import statistics
import time

import pytest
import torch

from specdec_ref import NGramDrafter, SpeculativeEngine, load_model
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.measure import compare_greedy
from specdec_ref.measure.race import race
from specdec_ref.models.dtype import bf16_seconds_over_float32
from specdec_ref.models.store.fetch import fetch
from specdec_ref.prompts import prompt, prompts

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("all_threads")]
FAST_BF16 = bf16_seconds_over_float32() < 1
TRIES = 3  # a timing may fail for what else the machine does; three failures in a row are ours


@pytest.fixture(scope="module")
def model():
    return load_model(dtype="bfloat16")


@pytest.mark.parametrize("weights", ["full", "q4"])
def test_each_flip_over_twenty_prompts_is_a_near_tie(model, weights):
    model = model if weights == "full" else load_model(weights="q4")
    plain, speculative = SpeculativeEngine(model), SpeculativeEngine(model, NGramDrafter(), 6)
    assert len(prompts()) >= 20
    flips = []
    for p in prompts():
        a, b = (e.generate(p.messages, 32) for e in (plain, speculative))
        found = compare_greedy(a.tokens, b.tokens, model, p.messages)
        if found.kind != "same":
            flips.append(f"{p.id}: {found}")
        assert found.kind != "error", f"{p.id}: {found}"
    print(f"{weights}: {len(flips)} of {len(prompts())} outputs differ", *flips, sep="\n")


def test_float32_speculation_writes_the_same_tokens():
    """Near-ties of float32 are so rare that two prompts show none; a flip would be listed above in bfloat16 only."""
    model = load_model(dtype="float32")
    for id in ("rewrite-1", "code-1"):
        a = SpeculativeEngine(model).generate(prompt(id).messages, 24)
        b = SpeculativeEngine(model, NGramDrafter(), 6).generate(prompt(id).messages, 24)
        assert a.tokens == b.tokens


@pytest.mark.timing
@pytest.mark.skipif(not FAST_BF16, reason="these cores have no fast bfloat16")
def test_lookup_on_a_rewrite_is_at_least_half_as_fast_again(model):
    plain, speculative = SpeculativeEngine(model), SpeculativeEngine(model, NGramDrafter(), 8)
    message, ratios = prompt("rewrite-1").messages, []
    for _ in range(TRIES):
        result = race(lambda: plain.generate(message, 48), lambda: speculative.generate(message, 48), 3)
        ratios.append(result.ratio)
        if result.ratio >= 1.5:
            break
    assert max(ratios) >= 1.5, ratios


@pytest.mark.timing
@pytest.mark.skipif(not FAST_BF16, reason="these cores have no fast bfloat16")
@pytest.mark.parametrize("weights, least", [("full", 1.05), ("q4", 1.8)])
def test_plain_decoding_is_faster_than_transformers(model, weights, least):
    """One interleaved run over the same ids, prefill included; both keep a cache, theirs is in bfloat16.

    The bounds are far below what the benchmark's record shows, so that a busy machine passes.
    """
    if weights == "q4":
        model = load_model(weights="q4")
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(fetch(), dtype=torch.bfloat16)
    theirs.generation_config.eos_token_id = None
    ids, n = torch.tensor(encode_prompt(prompt("chat-1").messages, model)), 24
    ours = SpeculativeEngine(model)

    def seconds(run):
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def run_theirs():
        out = theirs.generate(ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=n, do_sample=False)
        assert out.shape[1] == len(ids) + n

    def run_ours():
        assert len(ours.generate(ids, n, eos_token_id=None).tokens) == n

    ratios = []
    for _ in range(TRIES):
        pairs = [(seconds(run_theirs), seconds(run_ours)) for _ in range(6)][1:]
        ratios.append(statistics.median(a / b for a, b in pairs))
        if ratios[-1] > least:
            break
    print(f"plain decoding ({weights}) over transformers': {ratios}")
    assert max(ratios) > least, ratios
