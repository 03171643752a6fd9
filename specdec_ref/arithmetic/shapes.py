"""What a decoder-only transformer is made of: its matrices, the vectors it caches, the products it computes.

Everything is counted from the layers, so a sum over layers is exact by construction. A count is of
parameters, bytes or FLOP (one multiply and one add are 2 FLOP); only matrix products are counted as FLOP.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from specdec_ref.arithmetic.formats import NumberFormat, WeightFormats, weight_formats
from specdec_ref.arithmetic.names import look_up, plain_name


@dataclass(frozen=True)
class Matrix:
    """`count` weight matrices of `rows` outputs by `cols` inputs; a token meets `used` (None: all)."""

    part: str
    rows: int
    cols: int
    count: int = 1
    used: int | None = None

    @property
    def parameters(self) -> int:
        return self.count * self.rows * self.cols

    @property
    def flops_per_token(self) -> int:
        """2 FLOP a weight that the token meets."""
        return 2 * (self.count if self.used is None else self.used) * self.rows * self.cols


@dataclass(frozen=True)
class Attention:
    """`n_heads` query heads that share `n_kv_heads` key and value heads of `head_dim` (arXiv 2305.13245).

    n_kv_heads = n_heads is multi-head (MHA), 1 is multi-query (MQA), between is grouped-query (GQA).
    `window`: a token sees the last `window` tokens, itself included; None sees all.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if min(self.n_heads, self.n_kv_heads, self.head_dim) < 1:
            raise ValueError(f"attention needs positive heads and head_dim, got {self}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly: "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )

    @property
    def kind(self) -> str:
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield Matrix("attention", (self.n_heads + 2 * self.n_kv_heads) * self.head_dim, hidden)
        yield Matrix("attention", hidden, self.n_heads * self.head_dim)

    def vectors(self, hidden: int) -> int:
        """Parameters outside the matrices: biases, query/key norms, attention sinks."""
        qkv = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim * self.qkv_bias
        return qkv + hidden * self.out_bias + 2 * self.head_dim * self.qk_norm + self.n_heads * self.sinks

    def cached(self, latent: bool = True) -> list[tuple[int, int]]:
        """What one token leaves in the cache: (number of vectors, their length)."""
        return [(2 * self.n_kv_heads, self.head_dim)]

    def flops_per_pair(self, absorbed: bool = True) -> int:
        """FLOP of one query token against one cached one: scores and weighted values of all query heads."""
        return 4 * self.n_heads * self.head_dim

    def shard(self, tp: int) -> Attention:
        if self.n_heads % tp:
            raise ValueError(
                f"{self.n_heads} query heads cannot be split over {tp} ranks: take a degree that divides {self.n_heads}"
            )
        kv_heads = kv_heads_per_rank(self.n_kv_heads, tp)
        return dataclasses.replace(self, n_heads=self.n_heads // tp, n_kv_heads=kv_heads)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, arXiv 2405.04434): all heads share one cached vector of
    `kv_rank` + `rope_dim` values a token, from which each head's keys and values are expanded.

    `q_rank` None means that queries are not compressed.
    """

    n_heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    q_rank: int | None = None
    bias: bool = False
    kind: ClassVar[str] = "MLA"
    window: ClassVar[None] = None

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        q_rows = self.n_heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            yield Matrix("attention", q_rows, hidden)
        else:
            yield Matrix("attention", self.q_rank, hidden)
            yield Matrix("attention", q_rows, self.q_rank)
        yield Matrix("attention", self.kv_rank + self.rope_dim, hidden)
        yield Matrix("attention", self.n_heads * (self.nope_dim + self.v_dim), self.kv_rank)
        yield Matrix("attention", hidden, self.n_heads * self.v_dim)

    def vectors(self, hidden: int) -> int:
        norms = (self.q_rank or 0) + self.kv_rank
        return norms + ((self.q_rank or 0) + self.kv_rank + self.rope_dim + hidden) * self.bias

    def cached(self, latent: bool = True) -> list[tuple[int, int]]:
        if latent:
            return [(1, self.kv_rank), (1, self.rope_dim)]
        return [(self.n_heads, self.nope_dim + self.rope_dim), (self.n_heads, self.v_dim)]

    def flops_per_pair(self, absorbed: bool = True) -> int:
        """Absorbed, as in decoding: each head scores and sums the cached latent itself, not expanded."""
        if absorbed:
            return 2 * self.n_heads * (2 * self.kv_rank + self.rope_dim)
        return 2 * self.n_heads * (self.nope_dim + self.rope_dim + self.v_dim)

    def shard(self, tp: int) -> LatentAttention:
        """Heads are split; the latent and the projections down to it are held by every rank."""
        if self.n_heads % tp:
            raise ValueError(f"{self.n_heads} heads cannot be split over {tp} ranks: take a divisor")
        return dataclasses.replace(self, n_heads=self.n_heads // tp)


@dataclass(frozen=True)
class Mlp:
    """A gated feed-forward block: gate, up and down projections of width `intermediate`."""

    intermediate: int
    bias: bool = False

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield Matrix("mlp", 2 * self.intermediate, hidden)
        yield Matrix("mlp", hidden, self.intermediate)

    def vectors(self, hidden: int) -> int:
        return (2 * self.intermediate + hidden) * self.bias

    def shard(self, tp: int) -> Mlp:
        return dataclasses.replace(self, intermediate=-(-self.intermediate // tp))


@dataclass(frozen=True)
class Experts:
    """A mixture of `n_experts` gated blocks, of which a token uses `top_k`, beside one shared block of width
    `shared_intermediate` (0: none). `correction_bias` is DeepSeek-V3's load-balancing vector."""

    n_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    bias: bool = False
    correction_bias: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.n_experts:
            raise ValueError(f"a token cannot use {self.top_k} of {self.n_experts} experts")

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield Matrix("router", self.n_experts, hidden)
        yield Matrix("experts", 2 * self.intermediate, hidden, self.n_experts, self.top_k)
        yield Matrix("experts", hidden, self.intermediate, self.n_experts, self.top_k)
        if self.shared_intermediate:
            yield from Mlp(self.shared_intermediate).matrices(hidden)

    def vectors(self, hidden: int) -> int:
        per_expert = 1 + 2 * self.intermediate + hidden
        return self.n_experts * (per_expert * self.bias + self.correction_bias)

    def shard(self, tp: int) -> Experts:
        """Every expert is cut to 1/tp of its width, so the ranks always do equal work."""
        return dataclasses.replace(
            self,
            intermediate=-(-self.intermediate // tp),
            shared_intermediate=-(-self.shared_intermediate // tp),
        )


@dataclass(frozen=True)
class Layer:
    """One decoder layer: attention, a feed-forward block, and `norms` norm vectors of the hidden size."""

    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    norms: int = 2

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield from self.attention.matrices(hidden)
        yield from self.mlp.matrices(hidden)

    def vectors(self, hidden: int) -> int:
        return self.norms * hidden + self.attention.vectors(hidden) + self.mlp.vectors(hidden)


def kv_heads_per_rank(n_kv_heads: int, tp: int) -> int:
    """Key/value heads that each of `tp` tensor-parallel ranks holds: a share, or a replica of at least one.

    Raises ValueError where neither divides the other, since a head cannot be cut.
    """
    if tp < 1:
        raise ValueError(f"tensor-parallel degree must be at least 1, got {tp}")
    if n_kv_heads % tp and tp % n_kv_heads:
        raise ValueError(
            f"{n_kv_heads} key/value heads fit {tp} ranks neither as shares nor as replicas: "
            f"take a degree that divides {n_kv_heads} or is a multiple of it"
        )
    return max(1, n_kv_heads // tp)


def expected_experts(n_experts: int, top_k: int, n_tokens: int) -> float:
    """Distinct experts of one layer that `n_tokens` tokens are expected to need: E (1 - (1 - k/E)^n).

    Assumes that tokens route independently and evenly. Neighbouring tokens prefer the same experts, so real
    passes read fewer; never fewer than k, never more than min(E, n k). It is the occupancy problem's formula
    for how many urns hold a ball.
    """
    return n_experts * (1 - (1 - top_k / n_experts) ** n_tokens)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only language model, from which every count follows."""

    name: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    tied: bool

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.hidden_size, len(self.layers)) < 1:
            raise ValueError(f"{self.name}: vocabulary, hidden size and number of layers must be positive")

    def matrices(self) -> Iterator[Matrix]:
        """Every weight matrix of the layers, then the output head; the input embedding is only looked up."""
        for layer in self.layers:
            yield from layer.matrices(self.hidden_size)
        yield Matrix("head", self.vocab_size, self.hidden_size)

    @property
    def vectors(self) -> int:
        """Parameters in norms, biases and sinks, the final norm included."""
        return self.hidden_size + sum(layer.vectors(self.hidden_size) for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters; a tied embedding counts once. Multi-token-prediction heads are not included."""
        table = 0 if self.tied else self.vocab_size * self.hidden_size
        return table + self.vectors + sum(matrix.parameters for matrix in self.matrices())

    @property
    def active_parameters(self) -> int:
        """Parameters without the experts that a token does not use (the embedding table counts whole)."""
        idle = sum((m.count - m.used) * m.rows * m.cols for m in self.matrices() if m.used is not None)
        idle_biases = sum(
            layer.mlp.bias * (layer.mlp.n_experts - layer.mlp.top_k) * (2 * layer.mlp.intermediate + self.hidden_size)
            for layer in self.layers
            if isinstance(layer.mlp, Experts)
        )
        return self.parameters - idle - idle_biases

    def weight_bytes(self, weights: str | WeightFormats = "bf16") -> int:
        """Bytes that the weights occupy, scales included."""
        formats = weight_formats(weights)
        table = 0 if self.tied else formats.head.nbytes(self.hidden_size, self.vocab_size)
        return table + self._stored(formats, reads=None)

    def weight_bytes_read(self, n_tokens: int = 1, weights: str | WeightFormats = "bf16") -> int:
        """Bytes of weights that one pass over `n_tokens` tokens (all sequences together) streams from memory.

        Of an untied embedding a pass reads one row a token. A tied one is read whole, once, as the output
        head. Of a mixture it reads the experts that the tokens are expected to need (`expected_experts`).
        """
        if n_tokens < 1:
            raise ValueError(f"a pass needs at least one token, got {n_tokens}")
        formats = weight_formats(weights)
        rows = 0 if self.tied else min(n_tokens, self.vocab_size)
        return formats.head.nbytes(self.hidden_size, rows) + self._stored(formats, reads=n_tokens)

    def _stored(self, formats: WeightFormats, reads: int | None) -> int:
        total = formats.rest.nbytes(self.vectors)
        for matrix in self.matrices():
            count: float = matrix.count
            if reads is not None and matrix.used is not None:
                count = expected_experts(matrix.count, matrix.used, reads)
            total += round(count * _format_of(matrix, formats).nbytes(matrix.cols, matrix.rows))
        return total

    def flops(self, n_tokens: int = 1, context: int = 0, logits: int | None = None, absorbed: bool = True) -> int:
        """FLOP of the matrix products of one pass of one sequence over `n_tokens` new tokens after `context`.

        `logits`: positions whose logits are wanted (None: all). Attention is causal: the i-th new token
        meets context + i tokens, or its layer's window of them. Softmax, norms and activations are left
        out. Source: Kaplan et al. 2020 (arXiv 2001.08361), table 1.
        """
        if n_tokens < 1 or context < 0:
            raise ValueError(f"a pass needs n_tokens >= 1 and context >= 0, got {n_tokens} and {context}")
        logits = n_tokens if logits is None else logits
        if not 0 <= logits <= n_tokens:
            raise ValueError(f"{n_tokens} tokens cannot give logits at {logits} positions")
        total = sum(m.flops_per_token * (logits if m.part == "head" else n_tokens) for m in self.matrices())
        for layer in self.layers:
            pairs = causal_pairs(n_tokens, context, layer.attention.window)
            total += pairs * layer.attention.flops_per_pair(absorbed)
        return total

    def flops_per_token(self, context: int = 0) -> int:
        """FLOP to decode one token that follows `context` cached ones."""
        return self.flops(1, context)

    def shard(self, tp: int) -> ModelShape:
        """What one of `tp` tensor-parallel ranks holds and computes (Megatron-LM, arXiv 1909.08053).

        Heads, feed-forward width and vocabulary are divided; norms, routers, latents and surplus key/value
        heads are replicated. Raises ValueError where heads do not divide.
        """
        if tp < 1:
            raise ValueError(f"tensor-parallel degree must be at least 1, got {tp}")
        if tp == 1:
            return self
        layers = tuple(
            dataclasses.replace(layer, attention=layer.attention.shard(tp), mlp=layer.mlp.shard(tp))
            for layer in self.layers
        )
        vocab = -(-self.vocab_size // tp)
        return dataclasses.replace(self, name=f"{self.name} 1/{tp}", layers=layers, vocab_size=vocab)

    @classmethod
    def from_config(cls, config: Any, name: str | None = None) -> ModelShape:
        """The shape that a Hugging Face config describes: a config object or the dict of its config.json.

        Raises ValueError for a model type that is not known here and for a missing or impossible entry.
        """
        entries = config if isinstance(config, Mapping) else config.to_dict()
        return _shape_from_config(entries, name)


def causal_pairs(n_tokens: int, context: int = 0, window: int | None = None) -> int:
    """Query-key pairs of `n_tokens` new tokens after `context`: sum over i of min(context + i, window)."""
    if window is None or context + n_tokens <= window:
        return n_tokens * context + n_tokens * (n_tokens + 1) // 2
    short = max(0, window - context)
    return causal_pairs(short, context) + (n_tokens - short) * window


def _format_of(matrix: Matrix, formats: WeightFormats) -> NumberFormat:
    if matrix.part == "experts":
        return formats.for_experts
    return {"head": formats.head, "router": formats.rest}.get(matrix.part, formats.layers)


@dataclass(frozen=True)
class _Family:
    """What a `model_type` adds to its config: terms that transformers fixes in code."""

    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norms: int = 2
    head_dim: int | None = None
    tied: bool = False
    windows: str = "none"


_FAMILIES = {
    "llama": _Family(),
    "smollm3": _Family(tied=True),
    "mistral": _Family(windows="all"),
    "mixtral": _Family(windows="all"),
    "phi3": _Family(windows="all"),
    "qwen2": _Family(qkv_bias=True, windows="upper"),
    "qwen3": _Family(qk_norm=True, head_dim=128, windows="upper"),
    "qwen3_moe": _Family(qk_norm=True, windows="upper"),
    "gemma": _Family(head_dim=256, tied=True),
    "gemma2": _Family(head_dim=256, tied=True, norms=4, windows="alternate"),
    "gemma3_text": _Family(head_dim=256, tied=True, norms=4, qk_norm=True, windows="pattern"),
    "gpt_oss": _Family(qkv_bias=True, out_bias=True, sinks=True, head_dim=64, windows="alternate"),
    "deepseek_v2": _Family(),
    "deepseek_v3": _Family(),
}


def _shape_from_config(config: Mapping[str, Any], name: str | None) -> ModelShape:
    if "text_config" in config:
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {**outer, **config["text_config"]}
    family_name = config.get("model_type")
    if family_name not in _FAMILIES:
        raise ValueError(
            f"model_type {family_name!r} is not known here (known: {', '.join(_FAMILIES)}); "
            'if its layers are those of one of these, pass a dict with that "model_type"'
        )
    family = _FAMILIES[family_name]
    layers = tuple(_layer(config, family, i) for i in range(_need(config, "num_hidden_layers")))
    tied = config.get("tie_word_embeddings")
    return ModelShape(
        name=name or config.get("_name_or_path") or family_name,
        vocab_size=_need(config, "vocab_size"),
        hidden_size=_need(config, "hidden_size"),
        layers=layers,
        tied=family.tied if tied is None else bool(tied),
    )


def _need(config: Mapping[str, Any], *keys: str) -> int:
    """The first of `keys` that the config has, as a positive integer."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            if isinstance(value, bool) or int(value) != value or value < 1:
                raise ValueError(f"config entry {key} must be a positive whole number, got {value!r}")
            return int(value)
    raise ValueError(
        f"the config has no {' or '.join(keys)}; some config.json files leave defaults out: "
        "load it with transformers.AutoConfig and pass that"
    )


def _layer(config: Mapping[str, Any], family: _Family, index: int) -> Layer:
    attention: Attention | LatentAttention
    bias = bool(config.get("attention_bias"))
    heads = _need(config, "num_attention_heads")
    if config.get("kv_lora_rank"):
        attention = LatentAttention(
            n_heads=heads,
            kv_rank=_need(config, "kv_lora_rank"),
            rope_dim=_need(config, "qk_rope_head_dim"),
            nope_dim=_need(config, "qk_nope_head_dim"),
            v_dim=_need(config, "v_head_dim"),
            q_rank=config.get("q_lora_rank"),
            bias=bias,
        )
    else:
        hidden = _need(config, "hidden_size")
        head_dim = config.get("head_dim") or family.head_dim
        if head_dim is None and hidden % heads:
            raise ValueError(f"hidden_size {hidden} does not divide into {heads} heads and head_dim is not given")
        attention = Attention(
            n_heads=heads,
            n_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim or hidden // heads,
            window=_window(config, family, index),
            qkv_bias=family.qkv_bias or bias,
            out_bias=family.out_bias or bias,
            qk_norm=family.qk_norm,
            sinks=family.sinks,
        )
    return Layer(attention=attention, mlp=_mlp(config, index), norms=family.norms)


def _window(config: Mapping[str, Any], family: _Family, index: int) -> int | None:
    """The sliding window of layer `index`: by `layer_types` if that is given, else the family's habit."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    if kinds is not None:
        if index >= len(kinds) or kinds[index] not in ("full_attention", "sliding_attention"):
            got = kinds[index] if index < len(kinds) else "nothing"
            raise ValueError(
                f"layer_types gives {got!r} for layer {index}: "
                "only full_attention and sliding_attention are known; "
                "recurrent and chunked layers keep a different state"
            )
        if kinds[index] == "full_attention":
            return None
        return _need(config, "sliding_window")
    slides = {
        "none": False,
        "all": True,
        "upper": bool(config.get("use_sliding_window")) and index >= config.get("max_window_layers", 0),
        "alternate": index % 2 == 0,
        "pattern": (index + 1) % (config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6),
    }[family.windows]
    return window if slides else None


def _mlp(config: Mapping[str, Any], index: int) -> Mlp | Experts:
    n_experts = next(
        (config[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(key)),
        None,
    )
    every = config.get("decoder_sparse_step") or 1
    dense = (
        index < config.get("first_k_dense_replace", 0)
        or index in (config.get("mlp_only_layers") or ())
        or (index + 1) % every
    )
    if n_experts is None or dense:
        return Mlp(_need(config, "intermediate_size"), bias=bool(config.get("mlp_bias")))
    width = _need(config, "moe_intermediate_size", "intermediate_size")
    return Experts(
        n_experts=n_experts,
        top_k=_need(config, "num_experts_per_tok"),
        intermediate=width,
        shared_intermediate=width * (config.get("n_shared_experts") or 0),
        bias=config.get("model_type") == "gpt_oss",
        correction_bias=config.get("model_type") == "deepseek_v3",
    )


@cache
def model_catalogue() -> dict[str, dict[str, Any]]:
    """The catalogue's rows by name: `source`, `date`, published `parameters`, and the `config` entries."""
    text = resources.files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return rows


def model_shape(name: str) -> ModelShape:
    """The catalogue's model called `name` (`llama-3-70b`, or a hub name such as `Qwen/Qwen2.5-7B-Instruct`).

    Raises `UnknownName` with the nearest known names.
    """
    short = re.sub(r"(-(instruct|it|chat|hf|base))+$", "", plain_name(name.rsplit("/", 1)[-1]))
    short = short.removeprefix("meta-")
    row = look_up(model_catalogue(), short, "model")
    return ModelShape.from_config(row["config"], name=short)
