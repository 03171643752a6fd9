"""Weights rounded to 8 bits while a model is loaded: the compiled pass for any Llama, nothing changed by default."""

import pytest
import torch
from support.hf_models import build, save
from support.packed_models import compiled_model, divisible_llama

from specdec_ref import load_model
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.models.compiled import CompiledLlama
from specdec_ref.models.layout import bytes_a_pass
from specdec_ref.train.draft_lm import DraftLMTraining, export_draft_lm, new_draft_lm

IDS = torch.randint(48, (24,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A draft LM as training exports it."""
    model, path = divisible_llama(), tmp_path_factory.mktemp("draft")
    export_draft_lm(model, DraftLMTraining(new_draft_lm(model, (0, 1))).tensors(), 2, path)
    return path


def logits(model):
    with torch.inference_mode():
        return model(IDS, model.new_cache(30)).float()


def test_a_folder_in_8_bits_is_compiled_and_near_float32(folder):
    model, exact = load_model(folder, weights="q8"), load_model(folder, dtype="float32")
    assert isinstance(model, CompiledLlama)
    want = logits(exact)
    error = (logits(model) - want).norm() / want.norm()
    assert 0 < error < 0.03, error
    assert 0.5 < bytes_a_pass(model) / bytes_a_pass(exact) * 2 < 0.56  # 8.5 bits for a weight, against 16


def test_by_default_a_folder_keeps_its_format(folder):
    for dtype in ("bfloat16", "float32"):
        model = load_model(folder, dtype=dtype)
        assert not isinstance(model, CompiledLlama) and model.dtype == getattr(torch, dtype)


def test_it_drafts_and_the_output_is_the_targets(folder):
    target, seen = compiled_model(), []
    want = SpeculativeEngine(target).generate(IDS[:6].tolist(), 30).tokens
    engine = SpeculativeEngine(target, DraftModelDrafter(load_model(folder, weights="q8")), 3)
    result = engine.generate(IDS[:6].tolist(), 30, on_round=lambda run, r: seen.append(r.verdict.accepted))
    assert result.tokens == want and sum(seen) > len(seen)  # the same weights but for their rounding: most are accepted


def test_what_cannot_be_rounded_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="q8' runs on a CPU with bfloat16"):
        load_model(folder, dtype="float32", weights="q8")
    narrow, other = tmp_path / "narrow", tmp_path / "other"
    save(build("llama", hidden_size=24, intermediate_size=40), narrow)
    with pytest.raises(ValueError, match="24 columns, and 8 bits need a multiple of 32"):
        load_model(narrow, weights="q8")
    save(build("gpt2"), other)
    with pytest.raises(ValueError, match="no Llama that this package implements"):
        load_model(other, weights="q8")
