"""Folders in Hugging Face format: what transformers makes of them, and one line for what is damaged."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.hf_models import RECURRENT, VOCAB, build, edit, save

from specdec_ref import load_model
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.huggingface import HuggingFaceModel
from specdec_ref.models.llama import Llama
from specdec_ref.models.store.catalog import ModelNotAvailable
from specdec_ref.models.store.folder import find_folder, read_json

IDS = torch.arange(3, 15)


def expected(original):
    with torch.no_grad():
        return original(input_ids=IDS[None], use_cache=False).logits[0]


def logits(model):
    with torch.no_grad():
        return model.forward(IDS, model.new_cache(len(IDS)))


@pytest.mark.parametrize("shard", [None, "16KB"])
@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("llama", {}, Llama),
        ("llama", {"tie_word_embeddings": True}, Llama),
        ("llama", {"attention_bias": True}, HuggingFaceModel),
        (
            "llama",
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
            HuggingFaceModel,
        ),
        ("qwen2", {}, HuggingFaceModel),
        ("gpt2", {}, HuggingFaceModel),
        ("gemma3", {}, HuggingFaceModel),
    ],
)
def test_a_saved_folder_loads_with_tokenizer_and_eos(tmp_path, family, changes, kind, shard):
    original = build(family, **changes).eval()
    original.generation_config.eos_token_id = [2, 5]
    options = {"max_shard_size": shard} if shard else {}
    folder = save(original, tmp_path, **options)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard is not None)
    model = load_model(str(folder), dtype="float64")
    assert isinstance(model, kind)
    assert model.dtype == torch.float64
    assert model.eos_token_ids == (2, 5)
    assert model.tokenizer.convert_ids_to_tokens(7) == "w7"
    torch.testing.assert_close(
        logits(model), expected(original), rtol=0, atol=1e-5
    )  # the reference keeps float32 angles


def test_a_missing_shard_is_named(tmp_path):
    for family in ("llama", "qwen2"):
        folder = save(build(family), tmp_path / family, max_shard_size="16KB")
        gone = sorted(folder.glob("*.safetensors"))[1]
        gone.unlink()
        with pytest.raises(ValueError, match=rf"lacks {gone.name}, which its model\.safetensors\.index\.json lists"):
            load_model(str(folder))


def test_pickled_weights_are_not_opened(tmp_path):
    for family in ("llama", "qwen2"):
        folder = save(build(family), tmp_path / family)
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"only pickled weights \(pytorch_model\.bin\), which can run any code"):
            load_model(str(folder))
        (folder / "pytorch_model.bin").unlink()
        with pytest.raises(ValueError, match=r"has no model\.safetensors: load the model"):
            load_model(str(folder))


def test_a_damaged_file_is_named(tmp_path):
    for family in ("llama", "qwen2"):
        folder = save(build(family), tmp_path / family)
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:500])
        with pytest.raises(ValueError, match=str(folder)):
            load_model(str(folder))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_missing_tensors_are_not_made_up(tmp_path, family):
    folder = save(build(family, num_hidden_layers=1), tmp_path)
    edit(folder / "config.json", num_hidden_layers=2, layer_types=["full_attention"] * 2)
    with pytest.raises(ValueError, match=r"lacks .* tensor.*'model\.layers\.1\."):
        load_model(str(folder), dtype="float32")


def test_quantised_weights_are_left_to_transformers(tmp_path):
    folder = save(build("llama"), tmp_path)
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ValueError, match="transformers cannot load this model"):
        load_model(str(folder), dtype="float32")


def test_a_tokenizer_saved_by_another_transformers_loads(tmp_path):
    folder = save(build("llama"), tmp_path)
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        edit(folder / "tokenizer_config.json", tokenizer_class=name)
        assert load_model(str(folder), dtype="float32").tokenizer.encode("w7 w9") == [7, 9]


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "no-such-model"},
        {"model_type": "custom", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}},
    ],
)
def test_unknown_models_and_code_from_a_folder_are_refused(tmp_path, change):
    folder = save(build("qwen2"), tmp_path)
    edit(folder / "config.json", **change)
    (folder / "code.py").write_text("raise SystemExit('ran code from the folder')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="transformers cannot load this model"):
        load_model(str(folder), dtype="float32")


def test_a_recurrent_folder_is_refused_on_loading(tmp_path):
    model_class, config_class, sizes = RECURRENT["mamba"]
    getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="MambaForCausalLM cannot take back tokens"):
        load_model(str(tmp_path), dtype="float32")


# Entries that are left out, and weights that say otherwise.


@pytest.mark.parametrize(
    "entry",
    [
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "eos_token_id",
    ],
)
def test_an_entry_that_is_left_out_is_the_familys_default(tmp_path, entry):
    """What transformers makes of the same folder; a file without the entry is not one with another value."""
    model = build("llama", num_key_value_heads=4, rms_norm_eps=0.3, eos_token_id=7)
    folder = save(model, tmp_path)
    (folder / "generation_config.json").unlink()
    config = read_json(folder / "config.json")
    config.pop(entry, None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    ours = load_model(folder, dtype="float64")
    assert isinstance(ours, Llama)
    torch.testing.assert_close(logits(ours), expected(theirs), rtol=0, atol=1e-5)
    assert ours.max_context == theirs.config.max_position_embeddings
    assert ours.eos_token_ids == (theirs.config.eos_token_id,)


def test_a_config_of_nothing_but_its_type_has_the_familys_sizes():
    sizes, theirs = LlamaConfig.from_hf({"model_type": "llama"}), transformers.LlamaConfig()
    assert (sizes.hidden_size, sizes.n_layers, sizes.vocab_size) == (4096, 32, 32_000)
    assert (sizes.max_context, sizes.rms_norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert (sizes.n_heads, sizes.n_kv_heads, sizes.head_dim) == (32, 32, 128)


@pytest.mark.parametrize("eos", [5, [5, 2], [2], None])
def test_every_id_that_ends_a_text_is_kept(tmp_path, eos):
    """From the generation config, else from the config."""
    folder = save(build("llama"), tmp_path)
    want = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}), encoding="utf-8")
    assert load_model(folder, dtype="float32").eos_token_ids == (want or (2,))
    (folder / "generation_config.json").unlink()
    config = read_json(folder / "config.json") | {"eos_token_id": eos}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model(folder, dtype="float32").eos_token_ids == want


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["none", "the embedding", "its own"])
def test_a_head_in_the_file_is_the_head(tmp_path, tied, head):
    """Whatever the config says of ties; transformers 5 reads it so, transformers 4 ties all the same."""
    original = build("llama", tie_word_embeddings=False).eval()
    folder = save(original, tmp_path)
    edit(folder / "config.json", tie_word_embeddings=tied)
    weights = load_file(folder / "model.safetensors")
    if head == "none":
        del weights["lm_head.weight"]
    if head != "its own":
        original.lm_head.weight.data = original.model.embed_tokens.weight.data
    if head == "the embedding":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if head == "none" and not tied:
        with pytest.raises(ValueError, match=r"lacks the model's tensor 'lm_head\.weight'"):
            load_model(folder, dtype="float64")
        return
    model = load_model(folder, dtype="float64")
    torch.testing.assert_close(logits(model), expected(original), rtol=0, atol=1e-5)
    assert model.config.n_weights == sum(p.numel() for p in model.parameters())


def test_a_head_that_differs_from_the_embedding_in_one_number_is_its_own(tmp_path):
    original = build("llama", tie_word_embeddings=False).eval()
    original.lm_head.weight.data = original.model.embed_tokens.weight.data.clone()
    original.lm_head.weight.data[7, 0] += 1
    folder = save(original, tmp_path)
    edit(folder / "config.json", tie_word_embeddings=True)
    model = load_model(folder, dtype="float64")
    assert not model.config.tied_head
    torch.testing.assert_close(logits(model), expected(original), rtol=0, atol=1e-5)


def test_an_end_token_of_id_0_ends_a_text(tmp_path):
    folder = save(build("llama", eos_token_id=2), tmp_path)
    edit(folder / "generation_config.json", eos_token_id=0)
    assert load_model(folder, dtype="float32").eos_token_ids == (0,)


def test_all_of_a_model_is_fetched_from_the_hub_and_nothing_that_runs_code(monkeypatch):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: asked.update(options) or "folder")
    assert find_folder("owner/name") == Path("folder")
    wanted = ["config.json", "generation_config.json", "model.safetensors", "model-00001-of-00002.safetensors"]
    wanted += ["model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
    wanted += ["tokenizer.model", "vocab.txt", "merges.txt", "chat_template.jinja"]
    left = ["pytorch_model.bin", "model.pt", "modeling_custom.py", "model.gguf", "model.onnx"]
    fetched = [name for name in wanted + left if any(fnmatch(name, each) for each in asked["allow_patterns"])]
    assert fetched == wanted


@pytest.mark.parametrize("name", ["./model", "~/model", "/model", "../model"])
def test_a_path_that_leads_nowhere_is_not_looked_up_on_the_hub(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("the hub was asked"))
    with pytest.raises(ModelNotAvailable, match="no model"):
        find_folder(name)


# What is damaged or does not fit.


@pytest.mark.parametrize("rows", [VOCAB - 3, VOCAB + 3])
def test_a_resized_vocabulary_that_the_config_does_not_know_is_named(tmp_path, rows):
    folder = save(build("llama"), tmp_path)
    edit(folder / "config.json", vocab_size=rows)
    with pytest.raises(ValueError, match=rf"embed_tokens\.weight is {VOCAB} x 32, but its config says {rows} x 32"):
        load_model(folder, dtype="float32")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b'{"a": ', b"", b"\xff\xfe", b"[1]"])
def test_a_json_file_that_is_damaged_is_named(tmp_path, name, content):
    folder = save(build("llama"), tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} (is no whole JSON file|holds a list)"):
        load_model(folder, dtype="float32")


@pytest.mark.parametrize("content", [b'{"weight_map": ', b"{}"])
def test_a_damaged_list_of_shards_is_named(tmp_path, content):
    folder = save(build("llama"), tmp_path, max_shard_size="16KB")
    (folder / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        load_model(folder, dtype="float32")


@pytest.mark.parametrize("change", [{"hidden_size": "many"}, {"num_attention_heads": 3}, {"num_key_value_heads": 3}])
def test_sizes_that_are_none_are_one_line(tmp_path, change):
    folder = save(build("llama"), tmp_path)
    edit(folder / "config.json", **change)
    with pytest.raises(ValueError) as error:
        load_model(folder, dtype="float32")
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_file_alone_is_enough(tmp_path):
    folder = save(build("llama"), tmp_path)
    (folder / "tokenizer_config.json").unlink()
    assert load_model(folder, dtype="float32").tokenizer.encode("w7 w9") == [7, 9]
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="its tokenizer cannot be read"):
        load_model(folder, dtype="float32")
    (folder / "tokenizer.json").unlink()
    assert load_model(folder, dtype="float32").tokenizer is None


def test_a_folder_is_found_by_a_path_and_by_its_name(tmp_path):
    folder = save(build("llama"), tmp_path)
    assert torch.equal(logits(load_model(folder, "float32")), logits(load_model(str(folder), "float32")))
