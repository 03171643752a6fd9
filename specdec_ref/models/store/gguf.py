"""Read a Llama-shaped GGUF file: its sizes, its weights dequantised, its tokenizer.

The weights come out as the file holds them, multiplied out to float32 without another rounding. A file in 4 bits
gives the model *as quantised there*, not the original one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specdec_ref.kernels.linear import Blocks

CONTROL_TOKEN = 3  # GGUF's token type for <|im_start|> and its like


class GGUFFile:
    """An open GGUF file. Raises ValueError for an architecture or tokenizer that is not handled here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = gguf.GGUFReader(path)
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} holds a {architecture!r} model: only Llama-shaped GGUF files are read")

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value by its GGUF name, or `default`."""
        field = self._reader.get_field(name)
        return default if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The sizes as a Hugging Face `config.json` for `LlamaForCausalLM`."""
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        names = {t.name for t in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self.field("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "num_hidden_layers": self.field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field("llama.attention.head_count_kv", heads),
            "head_dim": self.field("llama.rope.dimension_count", hidden // heads),
            "max_position_embeddings": self.field("llama.context_length"),
            "rope_theta": self.field("llama.rope.freq_base", 10_000.0),
            "rms_norm_eps": float(np.float32(self.field("llama.attention.layer_norm_rms_epsilon"))),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            "dtype": "float32",
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight as (Hugging Face name, float32 tensor), one after the other."""
        config = self.config()
        heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
        for tensor in self._reader.tensors:
            array = gguf.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            if kind in heads:
                array = unpermute(array, heads[kind])
            yield hf_name(tensor.name), torch.from_numpy(np.array(array, dtype=np.float32))

    def index(self) -> dict[str, dict[str, Any]]:
        """Where the matrices in Q4_0, Q4_1 and Q8_0 lie, by Hugging Face name, for `read_blocks`.

        Opening the file takes seconds, because of its vocabulary; with the index kept, its blocks are read at once.
        """
        config, found = self.config(), {}
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        for tensor in self._reader.tensors:
            if tensor.tensor_type.name in READERS and len(tensor.shape) == 2:
                kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
                found[hf_name(tensor.name)] = {
                    "type": tensor.tensor_type.name,
                    "offset": int(tensor.data_offset),
                    "rows": int(tensor.shape[1]),
                    "bytes": int(tensor.n_bytes),
                    "permuted_heads": heads.get(kind, 0),
                }
        return found

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The byte-level BPE tokenizer of the file, with its chat template."""
        kind = (self.field("tokenizer.ggml.model"), self.field("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise ValueError(f"{self.path.name} has the tokenizer {kind}: only SmolLM's is rebuilt from a GGUF file")
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(pair.split(" ")) for pair in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        # SmolLM splits numbers into single digits before the usual byte-level pieces.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        types = self.field("tokenizer.ggml.token_type")
        control = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])

        def special(name: str) -> str:
            return tokens[self.field(f"tokenizer.ggml.{name}_token_id")]

        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=special("bos"),
            eos_token=special("eos"),
            unk_token=special("unknown"),
            pad_token=special("padding"),
            clean_up_tokenization_spaces=False,
            model_max_length=self.field("llama.context_length"),
        )
        fast.chat_template = self.field("tokenizer.chat_template")
        return fast


def read_blocks(path: Path, index: dict[str, dict[str, Any]]) -> dict[str, Blocks]:
    """The matrices of a file's `GGUFFile.index`, as stored, by Hugging Face name.

    Raises ValueError for a file that ends too early.
    """
    raw, found = np.memmap(path, np.uint8, "r"), {}
    for name, at in index.items():
        if at["offset"] + at["bytes"] > len(raw):
            raise ValueError(f"{path.name} ends before its tensor {name}: fetch it again")
        rows = np.asarray(raw[at["offset"] : at["offset"] + at["bytes"]]).reshape(at["rows"], -1)
        if at["permuted_heads"]:
            rows = unpermute(rows, at["permuted_heads"])
        found[name] = READERS[at["type"]](rows)
    return found


def read_q4_0(rows: np.ndarray) -> Blocks:
    """Q4_0 rows, uint8 `[out, in / 32 * 18]`: per block a float16 d, then 32 levels; w = d (level - 8)."""
    block = rows.reshape(len(rows), -1, 18)
    scale = _float16(block[..., :2])
    return Blocks(_nibbles(block[..., 2:]), scale, torch.zeros_like(scale))


def read_q4_1(rows: np.ndarray) -> Blocks:
    """Q4_1 rows, uint8 `[out, in / 32 * 20]`: per block float16 d and m, then 32 levels; w = d level + m."""
    block = rows.reshape(len(rows), -1, 20)
    scale, minimum = _float16(block[..., :2]), _float16(block[..., 2:4])
    return Blocks(_nibbles(block[..., 4:]), scale, minimum + 8 * scale)


def read_q8_0(rows: np.ndarray) -> Blocks:
    """Q8_0 rows, uint8 `[out, in / 32 * 34]`: per block a float16 d, then 32 int8; w = d q.

    With q + 128 = 16 high + low that is 16 d (high - 8) + d (low - 8) + 8 d, a sum of two 4-bit products.
    """
    block = rows.reshape(len(rows), -1, 34)
    scale = _float16(block[..., :2])
    q = (block[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8).reshape(len(rows), -1)
    levels = torch.from_numpy(np.concatenate([q >> 4, q & 15], 1))
    return Blocks(levels, torch.cat([16 * scale, scale], 1), torch.cat([torch.zeros_like(scale), 8 * scale], 1), 2)


READERS = {"Q4_0": read_q4_0, "Q4_1": read_q4_1, "Q8_0": read_q8_0}


def _float16(pairs: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32))


def _nibbles(packed: np.ndarray) -> Tensor:
    """`[out, blocks, 16]` bytes -> levels `[out, blocks * 32]`: the low halves are a block's first 16."""
    levels = np.concatenate([packed & 15, packed >> 4], -1)
    return torch.from_numpy(levels.reshape(len(packed), -1))


def unpermute(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Undo GGUF's order of query and key rows, `[heads * head_dim, in]`.

    GGUF stores the two halves of a rotated pair side by side; Hugging Face keeps them head_dim / 2 apart.
    """
    rows, columns = weight.shape
    return weight.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """GGUF's name of a Llama weight -> Hugging Face's. Raises ValueError for an unknown one."""
    if name in _TOP:
        return _TOP[name]
    block, layer, kind, *suffix = [*name.split("."), "", ""]
    if block != "blk" or kind not in _LAYER or suffix[0] != "weight":
        raise ValueError(f"the GGUF tensor {name!r} has no place in a Llama")
    return f"model.layers.{layer}.{_LAYER[kind]}.weight"
