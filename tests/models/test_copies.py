"""Models that are laid out for the CPU, and engines around them, can be copied and pickled."""

import copy
import pickle

import pytest
import torch
from support.packed_models import divisible_llama, needs_packing, stored

from specdec_ref import NGramDrafter, SpeculativeEngine, load_model
from specdec_ref.kernels.linear import PackedLinear
from specdec_ref.kernels.stored import StoredLinear
from specdec_ref.models.layout import keep_stored, pack

IDS = torch.arange(40) % 48


def packed():
    return pack(divisible_llama().to(torch.bfloat16))


def four_bits():
    return keep_stored(divisible_llama().to(torch.bfloat16), stored(divisible_llama())[0])


def logits(model):
    """Few rows and many: the products of both sizes."""
    with torch.inference_mode():
        return torch.cat([model(ids, model.new_cache(len(ids))) for ids in (IDS[:3], IDS)])


WAYS = {"copy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [pytest.param(packed, marks=needs_packing), pytest.param(four_bits)])
def test_a_copy_has_the_same_bits_and_shares_nothing(build, way):
    model = build()
    want = logits(model)
    twin = WAYS[way](model)
    assert torch.equal(logits(twin), want)
    kinds = (PackedLinear, StoredLinear)
    ours, theirs = ([m for m in each.modules() if isinstance(m, kinds)] for each in (model, twin))
    assert ours and len(ours) == len(theirs) and not {map(id, ours)} & {map(id, theirs)}
    twin.embed.weight.zero_()
    assert torch.equal(logits(model), want)


@pytest.mark.parametrize("way", WAYS)
def test_a_copied_engine_writes_the_same(way):
    engine = SpeculativeEngine(four_bits(), NGramDrafter(), gamma=3)
    want = engine.generate([1, 2, 3, 1, 2], 20, temperature=0.8, seed=4).tokens
    assert WAYS[way](engine).generate([1, 2, 3, 1, 2], 20, temperature=0.8, seed=4).tokens == want


@pytest.mark.model
def test_the_default_model_can_be_copied_and_pickled():
    model = load_model()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(logits(twin), logits(model))
    assert twin.tokenizer.encode("Two of a kind.") == model.tokenizer.encode("Two of a kind.")
