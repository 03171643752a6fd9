"""The sizes of a Llama, and how they are read from a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama; `from_hf` reads them from a Hugging Face `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_context: int
    rope_theta: float
    rms_norm_eps: float
    tied_head: bool
    eos_token_ids: tuple[int, ...] = ()

    @property
    def n_weights(self) -> int:
        """Weights of the model; an embedding that also serves as the head counts once."""
        attention = 2 * self.hidden_size * (self.n_heads + self.n_kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        tables = (1 if self.tied_head else 2) * self.vocab_size * self.hidden_size
        return tables + self.n_layers * layer + self.hidden_size

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> LlamaConfig:
        """Read a `config.json`; an entry that it leaves out has the default of transformers' `LlamaConfig`.

        Raises ValueError for what the reference Llama does not implement (scaled or partial rotation, biases, quantised
        weights), and for entries that are no sizes of a Llama.
        """
        full = _with_defaults(config)
        for name in SIZES:
            if not isinstance(full[name], int) or full[name] < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {full[name]!r}")
        rope = full.get("rope_parameters") or full.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        partial = rope.get("partial_rotary_factor") or full.get("partial_rotary_factor") or 1.0
        unsupported = [
            name
            for name, wrong in {
                f"rope type {kind!r}": kind != "default",
                f"partial_rotary_factor {partial}": partial != 1.0,
                "attention_bias": full["attention_bias"],
                "mlp_bias": full["mlp_bias"],
                "quantization_config": full.get("quantization_config") is not None,
                f"hidden_act {full['hidden_act']!r}": full["hidden_act"] != "silu",
            }.items()
            if wrong
        ]
        if unsupported:
            raise ValueError(f"the reference Llama does not implement {', '.join(unsupported)}")
        if full["num_attention_heads"] % full["num_key_value_heads"]:
            raise ValueError(
                f"{full['num_attention_heads']} query heads cannot share {full['num_key_value_heads']} key heads evenly"
            )
        return cls(
            vocab_size=full["vocab_size"],
            hidden_size=full["hidden_size"],
            intermediate_size=full["intermediate_size"],
            n_layers=full["num_hidden_layers"],
            n_heads=full["num_attention_heads"],
            n_kv_heads=full["num_key_value_heads"],
            head_dim=full["head_dim"],
            max_context=full["max_position_embeddings"],
            rope_theta=rope.get("rope_theta") or full["rope_theta"],
            rms_norm_eps=full["rms_norm_eps"],
            tied_head=full["tie_word_embeddings"],
            eos_token_ids=token_ids(full["eos_token_id"]),
        )


def token_ids(entry: int | list[int] | None) -> tuple[int, ...]:
    """The ids of an entry such as `eos_token_id`, which may be none, one or several."""
    return () if entry is None else tuple(entry) if isinstance(entry, (list, tuple)) else (entry,)


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a Llama with all its entries, as transformers completes it."""
    import transformers

    if config.get("model_type") != "llama":
        raise ValueError(f"the reference Llama does not implement model_type {config.get('model_type')!r}")
    try:
        return transformers.LlamaConfig(**config).to_dict()
    except Exception as error:  # transformers 5 checks types with errors of its own
        raise ValueError(f"these are no sizes of a Llama: {' '.join(str(error).split())[:300]}") from error
