"""GGUF files: every entry that changes numbers or tokens is applied or refused, and what is damaged says so."""

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.gguf_files import BYTES, ENTRIES, HEADS, HIDDEN, KV_HEADS, TOKENS, llama_tensors, write_gguf

from specdec_ref import SpeculativeEngine, load_model
from specdec_ref.cli import main
from specdec_ref.kernels.stored import StoredLinear
from specdec_ref.models.names import hf_name
from specdec_ref.models.store.blocks import READERS, read_blocks, unpermute
from specdec_ref.models.store.catalog import ModelNotAvailable
from specdec_ref.models.store.gguf import APPLIED, GGUFFile

IDS = torch.tensor([1, 5, 9, 30, 2, 7])


def logits(model):
    with torch.inference_mode():
        return model.forward(IDS, model.new_cache(len(IDS)))


def written(tmp_path, entries=None, **options):
    return write_gguf(tmp_path / "tiny.gguf", entries, **options)


# What changes the numbers.


@pytest.mark.parametrize(
    "entries",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.type": "longrope"},
        {"llama.rope.scaling.factor": 4.0},  # llama.cpp takes it for linear
        {"llama.rope.scale_linear": 4.0},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.attn_factor": 1.2},
        {"llama.rope.dimension_count": 8},
        {"llama.attention.key_length": 32},
        {"llama.attention.value_length": 32},
        {"llama.attention.causal": False},
        {"llama.attention.sliding_window": 16},
        {"llama.attention.clamp_kqv": 8.0},
        {"llama.attention.max_alibi_bias": 8.0},
        {"llama.attention.scale": 0.1},
        {"llama.attn_logit_softcapping": 50.0},
        {"llama.final_logit_softcapping": 30.0},
        {"llama.logit_scale": 0.5},
        {"llama.residual_scale": 0.5},
        {"llama.embedding_scale": 12.0},
        {"llama.expert_count": 8},
        {"llama.use_parallel_residual": True},
        {"llama.an_entry_to_come": 1},
        {"general.type": "adapter"},
        {"adapter.lora.alpha": 16.0},
        {"tokenizer.ggml.pre": "llama-bpe"},
        {"tokenizer.ggml.model": "llama"},
        {"tokenizer.ggml.add_space_prefix": True},
        {"tokenizer.ggml.remove_extra_whitespaces": True},
        {"tokenizer.ggml.precompiled_charsmap": "x"},
        {"tokenizer.ggml.an_entry_to_come": 1},
    ],
    ids=lambda entries: ", ".join(entries),
)
def test_an_entry_that_changes_what_a_model_writes_is_refused_by_name(tmp_path, entries):
    name = next(iter(entries)).removeprefix("tokenizer.ggml.").removesuffix(".type").removesuffix(".factor")
    named = {"pre": "llama-bpe", "model": "'llama'", "llama.attention.key_length": "16"}.get(name, name)
    with pytest.raises(ValueError, match=re.escape(named)) as error:
        load_model(written(tmp_path, entries), dtype="float32")
    assert "tiny.gguf" in str(error.value)


@pytest.mark.parametrize(
    "entries",
    [
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0},
        {"llama.rope.dimension_count": None},
        {"llama.rope.freq_base": None},
        {"llama.attention.key_length": 16, "llama.attention.value_length": 16},
        {"llama.expert_count": 0, "llama.attention.causal": True, "llama.final_logit_softcapping": 0.0},
        {"llama.attention.head_count_kv": [KV_HEADS], "llama.feed_forward_length": [96]},
        {"general.name": "tiny", "general.quantization_version": 2, "somebody.note": "x", "llama.vocab_size": 101},
        {"tokenizer.ggml.scores": [0.0] * len(TOKENS), "tokenizer.ggml.add_space_prefix": False},
        {"tokenizer.chat_template.tool_use": "x", "tokenizer.ggml.fim_pre_token_id": 3},
    ],
    ids=lambda entries: ", ".join(entries),
)
def test_an_entry_that_changes_nothing_is_no_obstacle(tmp_path, entries):
    plain = load_model(write_gguf(tmp_path / "plain.gguf"), dtype="float32")
    torch.testing.assert_close(
        logits(load_model(written(tmp_path, entries), dtype="float32")), logits(plain), rtol=0, atol=0
    )


def test_every_entry_of_the_default_file_is_known():
    """The tiny file has the entries of the default model's; what is applied stands in one list."""
    assert set(ENTRIES) <= APPLIED


@pytest.mark.parametrize(
    "entries",
    [{"llama.rope.freq_base": 500.0}, {"llama.attention.layer_norm_rms_epsilon": 0.5}],
    ids=lambda entries: ", ".join(entries),
)
def test_entries_that_are_applied_change_the_numbers(tmp_path, entries):
    plain = load_model(write_gguf(tmp_path / "plain.gguf"), dtype="float32")
    other = load_model(written(tmp_path, entries), dtype="float32")
    assert (logits(other) - logits(plain)).abs().max() > 0.1


@pytest.mark.parametrize("formats", ["Q4_1", "Q4_0", "Q8_0", "Q5_0", "Q5_1", "F16", "F32"])
def test_weights_equal_transformers_own_reading_of_the_file(tmp_path, formats):
    from transformers import LlamaForCausalLM

    path = written(tmp_path, formats=formats)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        want = theirs(IDS[None]).logits[0]
    torch.testing.assert_close(logits(load_model(path, dtype="float32")), want, rtol=1e-4, atol=1e-4)


def test_an_embedding_with_more_rows_than_tokens_has_that_many_logits(tmp_path):
    model = load_model(written(tmp_path, tensors=llama_tensors(rows=128)), dtype="float32")
    assert model.vocab_size == 128 and logits(model).shape == (6, 128)


def test_a_head_of_its_own_is_the_head(tmp_path):
    head = {"output.weight": np.random.default_rng(9).normal(size=(len(TOKENS), HIDDEN)).astype(np.float32)}
    model = load_model(written(tmp_path, tensors=llama_tensors() | head, formats="F32"), dtype="float32")
    torch.testing.assert_close(model.head.weight, torch.from_numpy(head["output.weight"]))


# What changes the tokens.


def test_user_defined_tokens_stay_whole_and_keep_their_text(tmp_path):
    tokens = [*TOKENS, "<think>"]
    types = [*ENTRIES["tokenizer.ggml.token_type"], 4]
    entries = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    more = {"tensors": llama_tensors(rows=len(tokens))}
    tokenizer = load_model(written(tmp_path, entries, **more), dtype="float32").tokenizer
    ids = tokenizer.encode("he<think>he")
    assert ids == [tokens.index("he"), len(TOKENS), tokens.index("he")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he<think>he"
    with pytest.raises(ValueError, match="token types"):
        load_model(written(tmp_path, entries | {"tokenizer.ggml.token_type": [*types[:-1], 6]}, **more), "float32")


def test_the_unknown_token_is_a_token_and_no_text(tmp_path):
    entries = {"tokenizer.ggml.token_type": [2, *ENTRIES["tokenizer.ggml.token_type"][1:]]}
    tokenizer = GGUFFile(written(tmp_path, entries)).tokenizer()
    ids = tokenizer.encode(f"he{TOKENS[0]}he")
    assert ids == [TOKENS.index("he"), 0, TOKENS.index("he")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hehe"


@pytest.mark.parametrize("begins", [True, False, None])
@pytest.mark.parametrize("ends", [True, False, None])
def test_texts_begin_and_end_as_the_file_says(tmp_path, begins, ends):
    entries = {"tokenizer.ggml.add_bos_token": begins, "tokenizer.ggml.add_eos_token": ends}
    tokenizer = GGUFFile(written(tmp_path, entries)).tokenizer()
    he = TOKENS.index("he")
    assert tokenizer.encode("he") == [*([1] if begins else []), he, *([2] if ends else [])]
    assert tokenizer.encode("he", add_special_tokens=False) == [he]


def test_a_token_to_add_that_the_file_does_not_name_is_missed(tmp_path):
    entries = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}
    with pytest.raises(ValueError, match="get a bos token, but names none"):
        GGUFFile(written(tmp_path, entries)).tokenizer()


def test_all_ids_that_end_a_text_end_it(tmp_path):
    for eom, ends in ((5, (2, 0, 5)), (2, (2, 0))):
        entries = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": eom}
        assert load_model(written(tmp_path, entries), dtype="float32").eos_token_ids == ends
    assert load_model(written(tmp_path, {"tokenizer.ggml.eos_token_id": None}), dtype="float32").eos_token_ids == ()


@pytest.mark.parametrize("name", ["unknown", "padding", "bos", "eos"])
def test_ids_that_the_format_leaves_open_may_be_missing(tmp_path, name):
    model = load_model(written(tmp_path, {f"tokenizer.ggml.{name}_token_id": None}), dtype="float32")
    assert model.tokenizer.decode(model.tokenizer.encode("hehe 12<|im_end|>"), skip_special_tokens=True) == "hehe 12"


# In 4 bits.


def test_blocks_of_the_index_are_the_weights(tmp_path):
    """Grouped queries: the rows of keys are in the order of fewer heads than those of queries."""
    assert HEADS != KV_HEADS
    file = GGUFFile(written(tmp_path))
    weights, blocks = file.tensors(), read_blocks(file.path, json.loads(json.dumps(file.index())))
    assert {"self_attn.q_proj", "self_attn.k_proj"} <= {".".join(name.split(".")[3:5]) for name in blocks}
    for name, found in blocks.items():
        torch.testing.assert_close(torch.from_numpy(found.dequantised()), weights[name], rtol=1e-4, atol=1e-4)


def test_a_tensor_may_end_where_the_file_ends_and_no_later(tmp_path):
    path = tmp_path / "short.gguf"
    path.write_bytes(bytes(18))
    at = {"type": "Q4_0", "offset": 0, "rows": 1, "bytes": 18, "permuted_heads": 0}
    assert read_blocks(path, {"w": at})["w"].levels.shape == (1, 32)
    with pytest.raises(ValueError, match=r"short\.gguf ends before its tensor w"):
        read_blocks(path, {"w": at | {"offset": 1}})


def test_a_file_keeps_its_four_bits_unless_told_otherwise(tmp_path):
    rows = 112  # the kernel takes multiples of 16
    path = written(tmp_path, tensors=llama_tensors(rows=rows))
    four, full = load_model(path), load_model(path, weights="full")
    assert isinstance(four.head, StoredLinear) and not isinstance(full.head, StoredLinear)
    exact = logits(load_model(path, dtype="float32"))
    assert (logits(four).float() - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("formats", ["F16", "F32", "Q5_0", "Q5_1"])
def test_a_file_without_four_bits_loads_in_full_by_default(tmp_path, formats):
    path = written(tmp_path, formats=formats)
    model = load_model(path)
    assert not any(isinstance(module, StoredLinear) for module in model.modules())
    exact = logits(load_model(path, dtype="float32"))
    assert (logits(model).float() - exact).norm() / exact.norm() < 0.05


def test_four_bits_that_are_asked_for_and_not_there_are_missed(tmp_path):
    with pytest.raises(ValueError, match="holds no matrix in Q4_0, Q4_1 or Q8_0"):
        load_model(written(tmp_path, formats="F16"), weights="q4")


def test_the_command_line_says_which_weights(tmp_path, capsys):
    path = written(tmp_path, tensors=llama_tensors(rows=112))
    command = ["generate", "he", "--model", str(path), "--raw", "--max-new-tokens", "4", "--json", "--draft", "none"]
    for weights in ("full", "q4"):
        assert main([*command, "--weights", weights]) == 0
        want = SpeculativeEngine(load_model(path, weights=weights)).generate("he", 4).tokens
        assert json.loads(capsys.readouterr().out)["tokens"] == want
    assert main([*command[:3], str(written(tmp_path, formats="F16")), "--weights", "q4"]) == 1
    assert "holds no matrix in Q4_0" in capsys.readouterr().err


# What is damaged, incomplete or missing.


def test_a_file_that_was_cut_off_anywhere_says_so(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in [*range(0, 600, 37), *range(600, len(whole), 2_500), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"tiny\.gguf is no whole GGUF file .*: fetch it again"):
            load_model(path, dtype="float32")


def test_a_part_of_a_split_file_says_how_to_join_them(tmp_path):
    with pytest.raises(ValueError, match="one of 3 parts of a model: join them"):
        load_model(written(tmp_path, {"split.count": 3, "split.no": 0}))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"llama.attention.head_count_kv": [2, 4]}, "head_count_kv differs between layers"),
        ({"llama.feed_forward_length": [96, 64]}, "feed_forward_length differs between layers"),
        ({"llama.block_count": None}, "lacks the entry llama.block_count"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks the entry llama.attention.layer_norm_rms_epsilon"),
        ({"llama.block_count": 2}, "lacks the model's tensor 'model.layers.1.self_attn.q_proj.weight'"),
        ({"llama.feed_forward_length": 64}, "its config says 128 x 64"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "more"]}, "names 102 tokens, but its embedding has only 101 rows"),
        ({"tokenizer.ggml.merges": ["h e", "no where"]}, "tokens and merges do not fit together"),
        ({"tokenizer.ggml.bos_token_id": 500}, "names token 500, but it has 101"),
    ],
)
def test_entries_that_do_not_fit_the_file_are_named(tmp_path, entries, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        load_model(written(tmp_path, entries), dtype="float32")
    assert "tiny.gguf" in str(error.value)


def test_tensors_that_do_not_fit_the_entries_are_named(tmp_path):
    tensors = llama_tensors(layers=2)
    with pytest.raises(ValueError, match=r"tensor 'blk\.1\..*but says that it has 1 layers"):
        load_model(written(tmp_path, tensors=tensors), dtype="float32")
    del tensors["token_embd.weight"]
    with pytest.raises(ValueError, match=r"no tensor 'token_embd\.weight'"):
        load_model(written(tmp_path, tensors=tensors), dtype="float32")


def test_names_of_tensors_are_mapped_or_refused():
    assert hf_name("blk.3.ffn_down.weight") == "model.layers.3.mlp.down_proj.weight"
    assert hf_name("output.weight") == "lm_head.weight"
    for name in (
        "blk.3.ffn_down.bias",
        "blk.0.ssm_in.weight",
        "rope_freqs.weight",
        "output.bias",
        "blk.x.attn_q.weight",
    ):
        with pytest.raises(ValueError, match="no place in a Llama"):
            hf_name(name)


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'mamba' model"):
        GGUFFile(written(tmp_path, architecture="mamba"))


def test_a_file_is_found_by_its_path_however_it_is_written(tmp_path):
    path = written(tmp_path)
    capitals = path.rename(tmp_path / "TINY.GGUF")
    for name in (capitals, str(capitals)):
        model = load_model(name, dtype="float32")
        assert model.tokenizer.decode(model.tokenizer.encode("he 12")) == "he 12"
    with pytest.raises(ValueError, match=r"no config\.json: give the path of TINY\.GGUF in it"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["missing.gguf", "MISSING.GGUF", "missing", "a/b/c"])
def test_a_path_that_leads_nowhere_is_not_available(tmp_path, name):
    for given in (tmp_path / name, str(tmp_path / name), Path(name)):
        with pytest.raises(ModelNotAvailable):
            load_model(given)


def test_unpermute_undoes_the_pairing_of_rotary_rows():
    rows = np.arange(8)[:, None]  # one head of 8 rows, as Hugging Face orders them
    paired = rows.reshape(1, 2, 4, 1).swapaxes(1, 2).reshape(8, 1)
    assert paired[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert unpermute(paired, 1).tolist() == rows.tolist()


def test_the_formats_that_can_stay_are_gguf_names():
    assert set(READERS) <= set(gguf.GGMLQuantizationType.__members__) and len(BYTES) == 96
