"""Read a Llama from a GGUF file: its sizes, its weights, its tokenizer.

The weights come out as the file holds them, dequantised to float32 without further rounding. A file in 4 bits gives the
model *as quantised there*, not the original one. An entry that would change numbers or tokens, and that is not
implemented here, is refused by name: nothing is ignored that llama.cpp would follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specdec_ref.kernels.packing import Blocks
from specdec_ref.models.names import hf_name
from specdec_ref.models.store.blocks import READERS, Place, read_blocks, unpermute
from specdec_ref.models.store.catalog import ModelNotAvailable
from specdec_ref.models.store.gguf_tokenizer import build_tokenizer

APPLIED = {
    "general.architecture",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "tokenizer.chat_template",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.unknown_token_id",
}
"""Entries that are implemented here."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "general.type": ("model",),
    "llama.attention.causal": (True,),
    "llama.attention.clamp_kqv": (0.0,),
    "llama.attention.max_alibi_bias": (0.0,),
    "llama.attention.sliding_window": (0,),
    "llama.attn_logit_softcapping": (0.0,),
    "llama.embedding_scale": (1.0,),
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.final_logit_softcapping": (0.0,),
    "llama.logit_scale": (1.0,),
    "llama.residual_scale": (1.0,),
    "llama.rope.scale_linear": (0.0, 1.0),
    "llama.rope.scaling.attn_factor": (1.0,),
    "llama.tensor_data_layout": ("Meta AI original pth",),
    "llama.use_parallel_residual": (False,),
    "split.count": (0, 1),
    "tokenizer.ggml.add_sep_token": (False,),
    "tokenizer.ggml.add_space_prefix": (False,),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
}
"""Entries that are not implemented, with the values at which they change nothing."""

NO_EFFECT = (
    "llama.rope.scaling.",  # where there is no scaling, which is checked
    "llama.vocab_size",  # the embedding says it
    "split.",
    "tokenizer.chat_template",  # further templates, by name
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.fim_",
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.middle_token_id",
    "tokenizer.ggml.prefix_token_id",
    "tokenizer.ggml.scores",  # byte-level BPE goes by its merges
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.suffix_token_id",
    "tokenizer.ggml.token_type_count",
    "tokenizer.huggingface.json",
)
"""How entries begin that change neither numbers nor tokens, among those that could."""

DECISIVE = ("llama.", "split.", "tokenizer.", "adapter.", "general.type")
"""How entries begin that llama.cpp computes with. All others describe the file: names, authors, licences."""


class GGUFFile:
    """An open GGUF file.

    Raises ModelNotAvailable where there is no such file, ValueError for one that is damaged or of another architecture,
    and for entries that change numbers or tokens and are not implemented.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelNotAvailable(f"no file at {path}: give the path of a GGUF file")
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no whole GGUF file ({error}): fetch it again") from error
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} holds a {architecture!r} model: only Llama-shaped GGUF files are read")
        self._check_entries()

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value by its GGUF name, or `default`."""
        field = self._reader.get_field(name)
        return default if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The sizes as a Hugging Face `config.json` for `LlamaForCausalLM`.

        Raises ValueError for sizes that are missing, differ from layer to layer or do not fit together.
        """
        heads, hidden = self._size("attention.head_count"), self._size("embedding_length")
        head_dim = self._size("attention.key_length", hidden // heads)
        for name in ("attention.value_length", "rope.dimension_count"):
            if self._size(name, head_dim) != head_dim:
                raise ValueError(
                    f"{self.path.name}: llama.{name} is {self._size(name)} and the heads have {head_dim} dimensions; "
                    "only heads that are rotated as a whole, with keys and values of one size, are implemented"
                )
        ends = [self.field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        eos = list(dict.fromkeys(i for i in ends if i is not None))
        tensors = {t.name: t for t in self._reader.tensors}
        if "token_embd.weight" not in tensors:
            raise ValueError(f"{self.path.name} has no tensor 'token_embd.weight': fetch the whole file")
        rows, tokens = int(tensors["token_embd.weight"].shape[1]), len(self.field("tokenizer.ggml.tokens", ()))
        if tokens > rows:
            raise ValueError(f"{self.path.name} names {tokens} tokens, but its embedding has only {rows} rows")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": rows,
            "hidden_size": hidden,
            "intermediate_size": self._size("feed_forward_length"),
            "num_hidden_layers": self._size("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._size("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._size("context_length"),
            "rope_theta": self._size("rope.freq_base", 10_000.0),
            "rms_norm_eps": float(np.float32(self._size("attention.layer_norm_rms_epsilon"))),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in tensors,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": eos if len(eos) > 1 else eos[0] if eos else None,
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            "dtype": "float32",
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight as (Hugging Face name, float32 tensor), one after the other.

        Raises ValueError for a tensor that has no place in the model or whose format is not known.
        """
        layers = self._size("block_count")
        for tensor in self._reader.tensors:
            if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers:
                raise ValueError(f"{self.path.name} has a tensor {tensor.name!r}, but says that it has {layers} layers")
            name = hf_name(tensor.name)
            try:
                array = gguf.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise ValueError(f"{self.path.name} holds {tensor.name!r} in a format that is not known") from error
            if heads := self._permuted_heads(tensor.name):
                array = unpermute(array, heads)
            yield name, torch.from_numpy(np.array(array, dtype=np.float32))

    def tensors(self) -> dict[str, Tensor]:
        """All of `weights` by name."""
        return dict(self.weights())

    def index(self) -> dict[str, Place]:
        """Where the matrices in Q4_0, Q4_1 and Q8_0 are, by Hugging Face name, for `read_blocks`.

        Opening the file takes seconds, because of its vocabulary; with the index kept, its blocks are read at once.
        """
        return {
            hf_name(tensor.name): Place(
                type=tensor.tensor_type.name,
                offset=int(tensor.data_offset),
                rows=int(tensor.shape[1]),
                bytes=int(tensor.n_bytes),
                permuted_heads=self._permuted_heads(tensor.name),
            )
            for tensor in self._reader.tensors
            if tensor.tensor_type.name in READERS and len(tensor.shape) == 2
        }

    def blocks(self) -> dict[str, Blocks]:
        """The matrices of `index`, as stored."""
        return read_blocks(self.path, self.index())

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the file, with its chat template. Raises ValueError where it cannot be rebuilt."""
        entries = {key: self.field(f"tokenizer.ggml.{key}") for key in TOKENIZER_ENTRIES}
        return build_tokenizer(
            self.path.name, entries, self.field("tokenizer.chat_template"), self._size("context_length")
        )

    def _size(self, name: str, default: float | None = None) -> Any:
        """The number at `llama.name`; a list of equal numbers, one per layer, counts as that number."""
        value = self.field(f"llama.{name}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(f"{self.path.name}: llama.{name} differs between layers, which is not implemented")
            value = value[0]
        if value is None:
            raise ValueError(f"{self.path.name} lacks the entry llama.{name}: fetch a whole model")
        return value

    def _permuted_heads(self, name: str) -> int:
        """Heads whose rows GGUF reordered in this tensor; see `unpermute`."""
        if name.endswith(".attn_q.weight"):
            return self._size("attention.head_count")
        if name.endswith(".attn_k.weight"):
            return self._size("attention.head_count_kv", self._size("attention.head_count"))
        return 0

    def _check_entries(self) -> None:
        """Raises ValueError for an entry that changes numbers or tokens in a way that is not implemented."""
        if self.field("split.count", 1) > 1:
            raise ValueError(
                f"{self.path.name} is one of {self.field('split.count')} parts of a model: join them with "
                "`llama-gguf-split --merge FIRST_PART WHOLE.gguf`"
            )
        # As in llama.cpp, a factor without a type is a linear scaling.
        kind = self.field("llama.rope.scaling.type", "linear")
        if kind != "none" and not (kind == "linear" and self.field("llama.rope.scaling.factor", 1.0) in (0.0, 1.0)):
            raise ValueError(
                f"{self.path.name} scales positions (llama.rope.scaling.type {kind!r}, factor "
                f"{self.field('llama.rope.scaling.factor')}), which is not implemented for GGUF files: load the "
                "model's folder in Hugging Face format"
            )
        for name in self._reader.fields:
            if name in APPLIED or not name.startswith(DECISIVE):
                continue
            if name in NEUTRAL:
                if self.field(name) in NEUTRAL[name]:
                    continue
            elif name.startswith(NO_EFFECT):
                continue
            value = " ".join(repr(self.field(name)).split())[:60]
            raise ValueError(
                f"{self.path.name} has the entry {name} = {value}, which is not implemented and may change what the "
                "model writes: load its folder in Hugging Face format"
            )


TOKENIZER_ENTRIES = (
    "model",
    "pre",
    "tokens",
    "token_type",
    "merges",
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "padding_token_id",
    "add_bos_token",
    "add_eos_token",
)
