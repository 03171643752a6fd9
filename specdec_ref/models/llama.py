"""A Llama to be read: the model that the course verifies, drafts and measures with.

One sequence at a time, any number of new tokens at any position, keys and values in a cache that can be
truncated. Query, key and value are one matrix product, and so are gate and up. Same numbers as transformers'
`LlamaForCausalLM` within rounding; the tests hold both together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.cache.dense import DenseCache
from specdec_ref.interfaces import AttentionCache, CacheKind, Pass
from specdec_ref.kernels.masks import additive
from specdec_ref.models.config import LlamaConfig
from specdec_ref.models.names import hf_modules


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

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: AttentionCache, layer: int
    ) -> Tensor:
        """`x` `[n, hidden]` of the new tokens -> the same shape; their keys and values go into the cache."""
        n, d, h, kv = len(x), self.config.head_dim, self.config.n_heads, self.config.n_kv_heads
        qkv = self.qkv(self.attention_norm(x)).view(n, h + 2 * kv, d)  # [n, hidden] -> [n, heads, d]
        qk, v = rotate(qkv[:, : h + kv], cos, sin), qkv[:, h + kv :]  # [n, h + kv, d], [n, kv, d]
        # Grouped queries: the h / kv query heads that share a key head become extra rows of one product, so
        # that keys and values are never copied.
        q = qk[:, :h].transpose(0, 1).reshape(kv, h // kv * n, d)  # [n, h, d] -> [kv, h / kv * n, d]
        k, v = qk[:, h:].transpose(0, 1), v.transpose(0, 1)  # [kv, n, d]
        a = cache.attend(layer, q, k, v, mask)  # [kv, h / kv * n, d]
        a = a.view(h, n, d).transpose(0, 1).reshape(n, h * d)  # -> [n, h * d]
        x = x + self.out(a)  # [n, h * d] -> [n, hidden]
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)  # [n, hidden] -> twice [n, intermediate]
        return x + self.down(F.silu(gate).mul_(up))  # -> [n, hidden]


class Llama(nn.Module):
    """The model; see `specdec_ref.interfaces.TreeLM` for what the engine asks of it."""

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
    def from_hf(cls, config: dict[str, Any], state: Mapping[str, Tensor], dtype: torch.dtype) -> Llama:
        """Build from a Hugging Face `config.json` and `LlamaForCausalLM` weights (name -> tensor).

        A head of its own among the weights is used even where the config ties it to the embedding, as transformers 5
        does. Raises ValueError for a config that is not implemented, and for weights that are missing or not of the
        config's sizes.
        """
        sizes = LlamaConfig.from_hf(config)
        embedding, head = state.get("model.embed_tokens.weight"), state.get("lm_head.weight")
        if embedding is not None and head is not None and not _equal(embedding, head):
            sizes = replace(sizes, tied_head=False)
        with torch.device("meta"):
            model = cls(sizes, dtype)
        own: dict[str, Tensor] = {}
        for name, theirs in hf_modules(sizes.n_layers).items():
            if name == "head" and sizes.tied_head:
                continue
            weights = [f"{each}.weight" for each in theirs]
            if missing := [weight for weight in weights if weight not in state]:
                raise ValueError(f"the file lacks the model's tensor {missing[0]!r}: get the whole model again")
            stacked = torch.cat([state[weight] for weight in weights])
            wanted = model.get_parameter(f"{name}.weight")
            if stacked.shape != wanted.shape:
                raise ValueError(
                    f"{' + '.join(weights)} is {_by(stacked)}, but its config says {_by(wanted)}: weights and config "
                    "are not of the same model"
                )
            own[f"{name}.weight"] = stacked.to(dtype)
        if sizes.tied_head:
            own["head.weight"] = own["embed.weight"]
        model.load_state_dict(own, assign=True)
        if sizes.tied_head:
            model.head.weight = model.embed.weight
        model.cos, model.sin = rotary_tables(sizes, dtype)
        return model.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def new_cache(self, capacity: int, kind: CacheKind = DenseCache) -> AttentionCache:
        """An empty cache for `capacity` tokens. kind: the class of cache, dense unless another one is given."""
        c = self.config
        return kind(c.n_layers, c.n_kv_heads, c.head_dim, capacity, self.dtype, self.device)

    def forward(self, tokens: Tensor, cache: AttentionCache, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` after `tokens` `[n]`, of the chosen rows only; the cache grows by n."""
        return self.forward_pass(tokens, cache, rows).logits

    def forward_pass(
        self,
        tokens: Tensor,
        cache: AttentionCache,
        rows: slice = slice(None),
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> Pass:
        """`forward` for any set of new tokens, with the hidden states `[n, hidden]` of chosen layers.

        positions: `[n]`, the place of each token in the text; None counts on from the cache's length.
        mask: `[n, m]`, True where new token i sees token j of the last m; None is a chain: each sees up to itself.
        layers: 0 is the embedding, i the output of layer i, n_layers what the head is given, after the final norm.
        Raises ValueError where the tokens do not fit into cache or context, changing nothing.
        """
        n, start, n_layers = len(tokens), cache.length, self.config.n_layers
        self.check_context(start, n, positions)
        cache.reserve(n)
        at = slice(start, start + n) if positions is None else positions
        cos, sin = self.cos[at], self.sin[at]  # [n, 1, head_dim]
        bias = self._bias(n, start, mask)
        x = self.embed(tokens)  # [n, hidden]
        hidden = {0: x}
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, bias, cache, i)
            if i + 1 in layers:
                hidden[i + 1] = x
        cache.advance(n)
        hidden[n_layers] = x = self.norm(x)
        return Pass(self.head(x[rows]), tuple(hidden[i] for i in layers))

    def first_layers(self, n: int) -> Llama:
        """The model that ends after its first `n` layers, with the same norm and head. The weights are shared.

        Raises ValueError unless 1 <= n < n_layers.
        """
        if not 1 <= n < self.config.n_layers:
            raise ValueError(f"the first {n} layers of {self.config.n_layers}: give 1 to {self.config.n_layers - 1}")
        short = type(self).__new__(type(self))
        short.__dict__ = {**self.__dict__, "_modules": dict(self._modules)}
        short.config = replace(self.config, n_layers=n)
        short.layers = self.layers[:n]
        return short

    def check_context(self, length: int, n: int, positions: Tensor | None = None) -> None:
        """Raises ValueError where n new tokens after `length` exceed the model's context.

        Of a tree its depth counts, not the number of its tokens: where `positions` are given, the largest decides.
        """
        limit = self.config.max_context
        if positions is not None and n:
            if int(positions.max()) >= limit:
                raise ValueError(f"position {int(positions.max())} is outside the model's context, 0 to {limit - 1}")
        elif length + n > limit:
            raise ValueError(f"{length} cached and {n} new tokens exceed the model's context of {limit}")

    def _bias(self, n: int, start: int, mask: Tensor | None) -> Tensor | None:
        """What attention is to hide: `[rows, start + n]` for the query heads of a key head; None hides nothing."""
        seen = (
            causal_mask(n, start, self.device) if mask is None else F.pad(mask, (start + n - mask.shape[1], 0), value=1)
        )
        if seen is None:
            return None
        seen = seen.repeat(self.config.n_heads // self.config.n_kv_heads, 1)
        return additive(seen, self.dtype) if self.device.type == "cpu" else seen


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _by(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
