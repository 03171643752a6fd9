"""Model shapes from Hugging Face configs and from the catalogue of known models.

`families.json` holds, for each `model_type`, what transformers fixes in code and the config entries that it reads with
their defaults: a config.json may leave out whatever equals the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from specdec_ref.arithmetic.attention import Attention, LatentAttention
from specdec_ref.arithmetic.feedforward import Experts, Mlp
from specdec_ref.arithmetic.lookup import look_up, plain_name
from specdec_ref.arithmetic.shapes import LayerShape, ModelShape

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names under which configs give the number of experts; transformers takes them for each other."""


@dataclass(frozen=True)
class Family:
    """One `model_type`: what transformers fixes in code, and the entries it reads with their defaults.

    windows: which layers slide where `layer_types` does not say: none, all, upper (from `max_window_layers` on),
        alternate (every other), pattern (all but every n-th), unrotated (those without rotary positions).
    """

    entries: Mapping[str, Any]
    qkv_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norms: int = 2
    windows: str = "none"
    latent: bool = False
    expert_bias: bool = False
    correction_bias: bool = False

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of `config` that this family reads, defaults filled in."""
        found = dict(config)
        count = next((name for name in EXPERT_COUNTS if name in self.entries), None)
        if count and count not in found:
            found[count] = next((found[name] for name in EXPERT_COUNTS if name in found), self.entries[count])
        return {key: found.get(key, default) for key, default in self.entries.items()}


@cache
def families() -> dict[str, Family]:
    """The known families by `model_type`."""
    return {name: Family(**row) for name, row in _data("families.json")["families"].items()}


def shape_from_config(config: Any, name: str | None = None) -> ModelShape:
    """The shape that a Hugging Face config describes: a config object or the dict of its config.json.

    Entries left out have the default of their `model_type`, as in transformers. Raises ValueError for a model type
    that is not known here and for a missing or impossible entry; TypeError for something that is no config.
    """
    if not isinstance(config, Mapping):
        if not hasattr(config, "to_dict"):
            raise TypeError(f"a config is an object of transformers or a dict, not a {type(config).__name__}")
        config = config.to_dict()
    if isinstance(config.get("text_config"), Mapping):
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {**outer, **config["text_config"]}
    model_type = config.get("model_type")
    family = families().get(str(model_type))
    if family is None:
        raise ValueError(
            f"model_type {model_type!r} is not known here (known: {', '.join(families())}); "
            'if its layers are those of one of these, pass a dict with that "model_type"'
        )
    entries = family.read(config)
    return ModelShape(
        name=name or config.get("_name_or_path") or str(model_type),
        vocab_size=_size(entries, "vocab_size"),
        hidden_size=_size(entries, "hidden_size"),
        layers=tuple(_layer(entries, family, i) for i in range(_size(entries, "num_hidden_layers"))),
        tied=bool(entries["tie_word_embeddings"]),
    )


def _size(entries: Mapping[str, Any], key: str, least: int = 1) -> int:
    """An entry as a whole number of at least `least`."""
    value = entries.get(key)
    if value is None:
        raise ValueError(f"the config has no {key}, and its model_type has no default for it: add it")
    kind = "positive whole number" if least == 1 else f"whole number from {least} on"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 or value < least:
        raise ValueError(f"config entry {key} must be a {kind}, got {value!r}")
    return int(value)


def _size_or(entries: Mapping[str, Any], key: str, default: int) -> int:
    """An entry as a positive whole number, `default` where it is null."""
    return default if entries.get(key) is None else _size(entries, key)


def _layer(entries: Mapping[str, Any], family: Family, index: int) -> LayerShape:
    attention = _latent(entries) if family.latent else _attention(entries, family, index)
    return LayerShape(attention=attention, mlp=_feed_forward(entries, family, index), norms=family.norms)


def _latent(entries: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        n_heads=_size(entries, "num_attention_heads"),
        kv_rank=_size(entries, "kv_lora_rank"),
        rope_dim=_size(entries, "qk_rope_head_dim"),
        nope_dim=_size(entries, "qk_nope_head_dim"),
        v_dim=_size(entries, "v_head_dim"),
        q_rank=None if entries["q_lora_rank"] is None else _size(entries, "q_lora_rank"),
        bias=bool(entries["attention_bias"]),
    )


def _attention(entries: Mapping[str, Any], family: Family, index: int) -> Attention:
    hidden, heads = _size(entries, "hidden_size"), _size(entries, "num_attention_heads")
    if entries.get("head_dim") is None and hidden % heads:
        raise ValueError(f"hidden_size {hidden} does not divide into {heads} heads and head_dim is not given")
    bias = bool(entries.get("attention_bias"))
    return Attention(
        n_heads=heads,
        n_kv_heads=_size_or(entries, "num_key_value_heads", heads),
        head_dim=_size_or(entries, "head_dim", hidden // heads),
        window=_window(entries, family, index),
        qkv_bias=family.qkv_bias or bias,
        out_bias=bias,
        qk_norm=family.qk_norm,
        sinks=family.sinks,
    )


def _window(entries: Mapping[str, Any], family: Family, index: int) -> int | None:
    """The sliding window of layer `index`: by `layer_types` if given, else by the family's habit; None sees all.

    A window of 0 or less, which some files write for "none", is none.
    """
    window = entries.get("sliding_window")
    if window is not None and (isinstance(window, bool) or not isinstance(window, (int, float)) or window % 1):
        raise ValueError(f"config entry sliding_window must be a whole number or null, got {window!r}")
    window = int(window) if window and window > 0 and entries.get("use_sliding_window", True) else None
    kinds = entries.get("layer_types")
    if kinds is not None:
        kind = kinds[index] if index < len(kinds) else "nothing"
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(
                f"layer_types gives {kind!r} for layer {index}: only full_attention and sliding_attention are known; "
                "recurrent and chunked layers keep a different state"
            )
        if kind == "sliding_attention" and window is None:
            raise ValueError(f"layer_types gives sliding_attention for layer {index}: add a positive sliding_window")
        return window if kind == "sliding_attention" else None
    return window if window and _slides(entries, family, index) else None


def _slides(entries: Mapping[str, Any], family: Family, index: int) -> bool:
    if family.windows == "upper":
        return index >= _size(entries, "max_window_layers", least=0)
    if family.windows == "pattern":
        every = entries.get("sliding_window_pattern") or entries.get("_sliding_window_pattern") or 6
        return (index + 1) % _size({"sliding_window_pattern": every}, "sliding_window_pattern") > 0
    if family.windows == "unrotated":
        rotated = entries["no_rope_layers"]  # a 1 for each layer that has rotary positions, in spite of the name
        return not (rotated[index] if rotated else (index + 1) % _size(entries, "no_rope_layer_interval"))
    return {"none": False, "all": True, "alternate": index % 2 == 0}[family.windows]


def _feed_forward(entries: Mapping[str, Any], family: Family, index: int) -> Mlp | Experts:
    count = next((name for name in EXPERT_COUNTS if name in entries), None)
    if count is None or _is_dense(entries, count, index):
        return Mlp(_size(entries, "intermediate_size"), bias=bool(entries.get("mlp_bias")))
    width = _size(entries, "moe_intermediate_size" if "moe_intermediate_size" in entries else "intermediate_size")
    shared = entries.get("n_shared_experts")
    return Experts(
        n_experts=_size(entries, count),
        top_k=_size(entries, "num_experts_per_tok"),
        intermediate=width,
        shared_intermediate=0 if shared is None else width * _size(entries, "n_shared_experts", least=0),
        bias=family.expert_bias,
        correction_bias=family.correction_bias,
    )


def _is_dense(entries: Mapping[str, Any], count: str, index: int) -> bool:
    """Whether this layer of a model with experts has one plain block instead."""
    if "first_k_dense_replace" in entries:
        return index < _size(entries, "first_k_dense_replace", least=0)
    if "decoder_sparse_step" in entries:
        sparse = (index + 1) % _size(entries, "decoder_sparse_step") == 0 and _size(entries, count, least=0) > 0
        return not sparse or index in (entries["mlp_only_layers"] or ())
    return False


@cache
def model_catalogue() -> dict[str, dict[str, Any]]:
    """The catalogue's rows by name: `source`, `date`, published `parameters`, and the `config` entries."""
    rows: dict[str, dict[str, Any]] = _data("models.json")["models"]
    return rows


def model_shape(name: str) -> ModelShape:
    """The catalogue's model called `name` (`llama-3-70b`, or a hub name such as `Qwen/Qwen2.5-7B-Instruct`).

    Raises `UnknownName` with the nearest known names.
    """
    short = re.sub(r"(-(instruct|it|chat|hf|base))+$", "", plain_name(name.rsplit("/", 1)[-1]))
    short = short.removeprefix("meta-")
    row = look_up(model_catalogue(), short, "model")
    return shape_from_config(row["config"], name=short)


def _data(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"))
    return content
