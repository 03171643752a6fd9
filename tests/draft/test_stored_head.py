"""The compiled step of an EAGLE-style head beside the readable one: the same bits, and drafts that pay."""

import copy

import numpy as np
import pytest
import torch
from support.packed_models import compiled_model
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.eagle import EagleDrafter
from specdec_ref.draft.eagle_head import EagleConfig, EagleHead, EagleSteps
from specdec_ref.draft.stored_head import CompiledSteps
from specdec_ref.draft.weights import read_draft, write_draft
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.kernels.eagle_step import likeliest
from specdec_ref.kernels.threads import team
from specdec_ref.proof import planted
from specdec_ref.proof.mutant_list import bug

KNOWN = torch.tensor([0, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 17, 20, 21, 30, 31, 33, 40, 41, 47])
IDS = torch.randint(48, (150,), generator=torch.Generator().manual_seed(3))
PLAN = "specdec_ref.draft.stored_head:_Plan."


@pytest.fixture(scope="module")
def target():
    return compiled_model()


def random_head(target, layers=(0, 1, 2)):
    """A head that knows 20 of 48 tokens: its output rows fill one block and a part of a second one."""
    c = target.config
    torch.manual_seed(4)
    head = EagleHead(
        EagleConfig(c.hidden_size, 96, c.n_heads, c.n_kv_heads, c.head_dim, c.rms_norm_eps, layers, len(KNOWN))
    )
    for weight in head.parameters():
        weight.data.normal_(std=0.15)
        if weight.dim() == 1:
            weight.data += 1
    head.tokens.copy_(KNOWN)
    return head.requires_grad_(False)


@pytest.fixture(scope="module")
def steps(target):
    return CompiledSteps(random_head(target), target)


def features(target, n, start=0):
    with torch.inference_mode():
        cache = target.new_cache(160)
        return tuple(f[start:] for f in target.forward_pass(IDS[:n], cache, slice(0), layers=(0, 1, 2)).features)


def new_cache(target):
    c = target.config
    return DenseCache(1, c.n_kv_heads, c.head_dim, 160, torch.bfloat16)


def drafted(step, steps, target, context, n, places=3):
    """Everything that a round computes: n states after `context` tokens, then the head's own output twice."""
    found, cache = [], new_cache(target)
    with torch.inference_mode():
        if context:
            CompiledSteps.step(steps, features(target, context), IDS[1 : context + 1].tolist(), cache)
        states, ids = features(target, context + n, context), IDS[context + 1 : context + n + 1].tolist()
        for _ in range(places):
            guess = step(steps, states, ids, cache)
            found += [guess.state, guess.logits, torch.tensor(guess.best)]
            states, ids = guess.state, [int(KNOWN[guess.best])]
        found += [x[:, :, : cache.length].clone() for x in (cache.keys, cache.values)]
    return found, guess.confidence


def assert_same_bits(steps, target, lengths=((0, 1), (0, 5), (37, 1), (37, 3), (20, 12))):
    for context, n in lengths:
        (ours, sure), (its, its_sure) = (
            drafted(step, steps, target, context, n) for step in (CompiledSteps.step, EagleSteps.step)
        )
        assert all(torch.equal(a, b) for a, b in zip(ours, its, strict=True)), (context, n)
        assert abs(sure - its_sure) < 1e-5


def test_the_same_bits_as_the_readable_head(steps, target):
    assert_same_bits(steps, target)


@pytest.mark.slow  # compiles a second step
def test_the_same_bits_with_activations_in_8_bits():
    target = compiled_model(bits=8)
    assert_same_bits(CompiledSteps(random_head(target), target), target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_the_same_bits_with_a_head_of_its_own_or_in_8_bits(kind):
    target = compiled_model(kind, tied=False)
    assert_same_bits(CompiledSteps(random_head(target), target), target)


def test_a_long_prompt_goes_in_pieces_of_the_same_bits(steps, target):
    whole, _ = drafted(CompiledSteps.step, steps, target, 0, 149, places=1)
    with torch.inference_mode():
        cache, states = new_cache(target), features(target, 149)
        for a, b in ((0, 50), (50, 100), (100, 149)):
            guess = steps.step(tuple(s[a:b] for s in states), IDS[a + 1 : b + 1].tolist(), cache)
    pieces = [guess.state, guess.logits, torch.tensor(guess.best), cache.keys[:, :, :149], cache.values[:, :, :149]]
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(steps, target, threads):
    before, (want, _) = torch.get_num_threads(), drafted(CompiledSteps.step, steps, target, 11, 4)
    try:
        torch.set_num_threads(threads)
        team().fewer = 0
        found, _ = drafted(CompiledSteps.step, steps, target, 11, 4)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    finally:
        torch.set_num_threads(before)


def test_near_the_head_in_float32():
    """What 8 bits and bfloat16 cost: a few hundredths of the logits."""
    target = compiled_model("Q8_0")
    head, c = random_head(target), target.config
    with torch.inference_mode():
        states, ids = features(target, 30), IDS[1:31]
        guess = CompiledSteps(head, target).step(states, ids.tolist(), new_cache(target))
        mask = torch.ones(30, 30).tril().bool().repeat(c.n_heads // c.n_kv_heads, 1)
        cache = DenseCache(1, c.n_kv_heads, c.head_dim, 30)
        embedded, cos, sin = target.embed(ids).float(), target.cos[:30].float(), target.sin[:30].float()
        output = head(head.fused([s.float() for s in states]), embedded, cos, sin, mask, cache)
        want = F.linear(head.norm(output[-1:]), target.embed.weight[KNOWN].float())
    error = (guess.logits - want).norm() / want.norm()
    assert 0 < error < 0.03, error
    assert abs(guess.confidence - torch.softmax(want, -1).max().item()) < 0.03


def test_drafts_are_those_of_the_readable_head_and_the_output_is_the_targets(target, monkeypatch):
    drafter, seen = EagleDrafter(random_head(target)), {}
    want = SpeculativeEngine(target).generate(IDS[:9].tolist(), 40).tokens
    for name, step in (("compiled", CompiledSteps.step), ("readable", EagleSteps.step)):
        monkeypatch.setattr(CompiledSteps, "step", step)
        proposals = seen[name] = []
        engine = SpeculativeEngine(target, drafter, 3)
        result = engine.generate(
            IDS[:9].tolist(), 40, on_round=lambda run, r, to=proposals: to.append(r.proposal.tokens)
        )
        assert result.tokens == want
    assert seen["compiled"] == seen["readable"] and max(map(len, seen["compiled"])) == 3


def test_a_copy_has_its_own_memory(target):
    drafter = EagleDrafter(random_head(target))
    prompt = IDS[:9].tolist()
    want = SpeculativeEngine(target, drafter, 3).generate(prompt, 12).tokens
    again = copy.deepcopy(drafter)
    del drafter
    assert SpeculativeEngine(target, again, 3).generate(prompt, 12).tokens == want


def test_what_does_not_fit_is_refused(steps, target):
    states = features(target, 2)
    with pytest.raises(IndexError, match="from 0 to 47"):
        steps.step(states, [3, 48], new_cache(target))
    cache = new_cache(target)
    cache.advance(159)
    with pytest.raises(ValueError, match="2 more do not fit"):
        steps.step(states, [3, 4], cache)


def test_broken_weights_do_not_become_tokens(target):
    head = random_head(target)
    head.norm.weight[3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        SpeculativeEngine(target, EagleDrafter(head), 2).generate([1, 2, 3], 5)


def test_the_levels_of_a_file_are_kept(target, tmp_path):
    """A head is read as float32, and stored again: in the same levels."""
    head = random_head(target)
    write_draft(tmp_path / "d", dict(head.state_dict()), {})
    tensors, _ = read_draft(tmp_path / "d")
    again = copy.deepcopy(head)
    again.load_state_dict(tensors)
    for ours, its in zip(*(CompiledSteps(h, target).head.buffers() for h in (head, again)), strict=True):
        assert torch.equal(ours, its)


@pytest.mark.parametrize("n", [5, 64, 200])
def test_the_likeliest_is_the_first_of_equals(n):
    logits = torch.randn(n, generator=torch.Generator().manual_seed(n)).bfloat16()
    logits[[2, n - 1]] = logits.max() + 1
    best, sure = np.zeros(1, np.int64), np.zeros(1, np.float32)

    def find():
        likeliest(logits.data_ptr(), n, best.ctypes.data, sure.ctypes.data)
        return int(best[0]), float(sure[0])

    place, confidence = find()
    assert place == 2 and abs(confidence - torch.softmax(logits.float(), 0)[2].item()) < 1e-6
    for odd in (torch.nan, torch.inf):
        logits[n // 2] = odd
        assert np.isnan(find()[1])


GIVEN = "address(s) for s in given"
LAST_QKV = 'last["qkv"] = whole["qkv"] + 2 * (n - rows) * (heads + 2 * kv_heads)'
MUTANTS = [
    bug("layers swapped", "", PLAN + "run", (GIVEN, GIVEN + "[::-1]")),
    bug("states one place off", "", PLAN + "run", (GIVEN, "address(s) - 2 * c.hidden_size for s in given")),
    bug("another group's scale", "", PLAN + "__init__", ("rows.scales.data_ptr()", "rows.scales.data_ptr() + 32")),
    bug("the first query", "", PLAN + "run", (LAST_QKV, 'last["qkv"] = whole["qkv"]')),
    bug("another norm's weight", "", PLAN + "__init__", ("getattr(head, name).weight", "head.norm.weight")),
    bug("places from 0", "", PLAN + "run", ("cache.length + n - rows, rows)", "n - rows, rows)")),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_planted_bugs_change_bits(mutant, target):
    with planted(mutant):
        fresh = CompiledSteps(random_head(target), target)
        with pytest.raises(AssertionError):
            assert_same_bits(fresh, target, ((20, 3),))
    assert_same_bits(CompiledSteps(random_head(target), target), target, ((20, 3),))
