"""A Llama to be read: the model that the course verifies, drafts and measures with.

One sequence at a time, any number of new tokens at any position, keys and values in a cache that can be
truncated. Query, key and value are one matrix product, and so are gate and up. Same numbers as transformers'
`LlamaForCausalLM` within rounding; the tests hold both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache


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
        """Weights of the model; an embedding that is the head, too, counts once."""
        attention = 2 * self.hidden_size * (self.n_heads + self.n_kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        tables = (1 if self.tied_head else 2) * self.vocab_size * self.hidden_size
        return tables + self.n_layers * layer + self.hidden_size

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> LlamaConfig:
        """Raises ValueError for what this file does not implement (position scalings, biases, quantised weights)."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        unsupported = [
            name
            for name, wrong in {
                f"model_type {config.get('model_type')!r}": config.get("model_type") != "llama",
                f"rope type {kind!r}": kind != "default",
                "attention_bias": config.get("attention_bias", False),
                "mlp_bias": config.get("mlp_bias", False),
                "quantization_config": "quantization_config" in config,
                f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
            }.items()
            if wrong
        ]
        if unsupported:
            raise ValueError(f"the reference Llama does not implement {', '.join(unsupported)}")
        eos = config.get("eos_token_id")
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            n_layers=config["num_hidden_layers"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            max_context=config["max_position_embeddings"],
            rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
            rms_norm_eps=config["rms_norm_eps"],
            tied_head=config.get("tie_word_embeddings", False),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (eos,),
        )


def rotary_tables(config: LlamaConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin of every position, `[max_context, 1, head_dim]` (Su et al. 2021, arXiv 2104.09864).

    The first half of sin carries the minus sign of the rotation, so that `rotate` needs no negation.
    """
    half = config.head_dim // 2
    frequency = 1.0 / config.rope_theta ** (torch.arange(half, dtype=torch.int64).float() / half)
    angle = torch.outer(torch.arange(config.max_context).float(), frequency)
    cos = torch.cat([angle.cos(), angle.cos()], -1)
    sin = torch.cat([-angle.sin(), angle.sin()], -1)
    return cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `x` `[n, heads, head_dim]` by its positions' angles; rolling by half swaps the two halves."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def causal_mask(n: int, length: int, device: torch.device | str = "cpu") -> Tensor | None:
    """`[n, length + n]`, True where new token i may look: all `length` cached ones and new ones up to itself.

    None for a single token, which sees everything.
    """
    if n == 1:
        return None
    return torch.ones(n, length + n, dtype=torch.bool, device=device).tril(length)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores: 0 where `mask` is True, -inf elsewhere.

    On a CPU attention would make this of a boolean mask in every layer; here it is made once a pass.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


class Layer(nn.Module):
    """One transformer block: attention over the cache, then the gated feed-forward part."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        d, h, kv = config.head_dim, config.n_heads, config.n_kv_heads
        self.config = config
        self.qkv = nn.Linear(config.hidden_size, (h + 2 * kv) * d, bias=False)
        self.out = nn.Linear(h * d, config.hidden_size, bias=False)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.attention_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        """`x` `[n, hidden]` of the new tokens -> the same shape; their keys and values go into the cache."""
        n, d, h, kv = len(x), self.config.head_dim, self.config.n_heads, self.config.n_kv_heads
        qkv = self.qkv(self.attention_norm(x)).view(n, h + 2 * kv, d)
        qk, v = rotate(qkv[:, : h + kv], cos, sin), qkv[:, h + kv :]
        # Grouped queries: the h / kv query heads that share a key head become extra rows of one product, so
        # that keys and values are never copied.
        q = qk[:, :h].transpose(0, 1).reshape(kv, h // kv * n, d)
        a = cache.attend(layer, q, qk[:, h:].transpose(0, 1), v.transpose(0, 1), mask)
        x = x + self.out(a.view(h, n, d).transpose(0, 1).reshape(n, h * d))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate).mul_(up))


class Llama(nn.Module):
    """The model; see `specdec_ref.interfaces.CausalLM` for what the engine asks of it."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_context: int | None = config.max_context
        self.eos_token_ids = config.eos_token_ids
        self.tokenizer: Any = None
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embed.weight
        self.requires_grad_(False).to(dtype)
        cos, sin = rotary_tables(config, dtype)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @classmethod
    def from_hf(cls, config: dict[str, Any], state: dict[str, Tensor], dtype: torch.dtype) -> Llama:
        """Build from a Hugging Face `config.json` and `LlamaForCausalLM` weights (name -> tensor)."""
        with torch.device("meta"):
            model = cls(LlamaConfig.from_hf(config), dtype)
        own: dict[str, Tensor] = {
            "embed.weight": state["model.embed_tokens.weight"],
            "norm.weight": state["model.norm.weight"],
        }
        own["head.weight"] = own["embed.weight"] if model.config.tied_head else state["lm_head.weight"]
        for i in range(model.config.n_layers):

            def theirs(*names: str, prefix: str = f"model.layers.{i}.") -> Tensor:
                return torch.cat([state[f"{prefix}{name}.weight"] for name in names])

            own |= {
                f"layers.{i}.qkv.weight": theirs("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                f"layers.{i}.out.weight": theirs("self_attn.o_proj"),
                f"layers.{i}.gate_up.weight": theirs("mlp.gate_proj", "mlp.up_proj"),
                f"layers.{i}.down.weight": theirs("mlp.down_proj"),
                f"layers.{i}.attention_norm.weight": theirs("input_layernorm"),
                f"layers.{i}.mlp_norm.weight": theirs("post_attention_layernorm"),
            }
        own = {name: tensor.to(dtype) for name, tensor in own.items()}
        model.load_state_dict(own, assign=True)
        if model.config.tied_head:
            model.head.weight = model.embed.weight
        model.cos, model.sin = rotary_tables(model.config, dtype)
        return model.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def new_cache(self, capacity: int) -> DenseCache:
        """An empty dense cache for `capacity` tokens."""
        c = self.config
        return DenseCache(c.n_layers, c.n_kv_heads, c.head_dim, capacity, self.dtype, self.device)

    def hidden_states(self, tokens: Tensor, cache: Any) -> list[Tensor]:
        """Hidden states of `tokens` `[n]`, `n_layers + 1` times `[n, hidden]`, as transformers counts them.

        Entry 0 is the embedding, entry i the output of layer i, the last one behind the final norm. Keys and
        values are appended to the cache. Raises ValueError where they don't fit into cache or context.
        """
        n, start = len(tokens), cache.length
        if start + n > self.config.max_context:
            raise ValueError(
                f"{start} cached and {n} new tokens exceed the model's context of {self.config.max_context}"
            )
        cache.reserve(n)
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        mask = causal_mask(n, start, self.device)
        if mask is not None:
            mask = mask.repeat(self.config.n_heads // self.config.n_kv_heads, 1)
            if self.device.type == "cpu":
                mask = additive(mask, self.dtype)
        states = [self.embed(tokens)]
        for i, layer in enumerate(self.layers):
            states.append(layer(states[-1], cos, sin, mask, cache, i))
        cache.advance(n)
        states[-1] = self.norm(states[-1])
        return states

    def forward(self, tokens: Tensor, cache: Any, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` after `tokens` `[n]`, of the chosen rows only; the cache grows by n."""
        return self.head(self.hidden_states(tokens, cache)[-1][rows])
