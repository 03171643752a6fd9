"""Any causal language model of transformers, seen as the engine wants it.

What a model can do is found by trying it. Above all it has to take back rejected tokens, and few models say whether
they can: at construction a few tokens are taken back, and what follows has to be what it would have been without them.
Keys and values can be dropped; a recurrent state (Mamba, RWKV, many hybrids) cannot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specdec_ref.cache.dense import check_keep, check_truncate


class HuggingFaceCache:
    """Keys and values of one sequence in a transformers cache, here called its states.

    trims: whether the states, when they are cut, keep only what the next token needs; they cannot be cut to less
        afterwards.
    """

    def __init__(self, new_states: Callable[[], Any], trims: bool) -> None:
        self.states = new_states()
        self._new_states = new_states
        self._trims = trims
        self._lowest = 0

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.states.get_seq_length()

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises ValueError outside 0..length, and for what is no longer held."""
        check_truncate(self.length, length)
        if 0 < length < self._lowest:
            raise ValueError(
                f"cannot truncate to {length} tokens: this model's cache forgot what lies before the last roll-back, "
                f"to {self._lowest}. Truncate to 0 and take the tokens in again"
            )
        if length == 0:
            self.states = self._new_states()
            self._lowest = 0
        elif length < self.length:
            # A negative number counts the tokens to drop, in every version of transformers; a positive one was
            # the length to keep in older ones, and is an error in newer ones.
            self.states.crop(length - self.length)
            if self._trims:
                self._lowest = length

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the tokens up to `indices[-1]`, which has to follow from `indices[0]` without a gap.

        Raises ValueError for a gap: how a transformers model stores its keys is its own affair.
        """
        check_keep(self.length, indices)
        if indices[-1] >= indices[0] + len(indices):
            raise ValueError(f"a transformers cache cannot close the gaps in {list(indices)}: verify chains with it")
        self.truncate(indices[-1] + 1)


class HuggingFaceModel:
    """A transformers causal LM for the engine; see `specdec_ref.interfaces.CausalLM`.

    model: loaded, on its device, in its number format; it is put into eval mode.
    tokenizer: its tokenizer; without one prompts are token ids and texts are empty.
    Layers with a sliding window keep all tokens, and the mask hides the old ones: a window's own cache has
    dropped what a roll-back over its edge needs.
    Raises TypeError for what is no model, ValueError with the reason for a model that cannot take back tokens.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
            raise TypeError(
                f"a loaded transformers model is needed, as AutoModelForCausalLM.from_pretrained returns it, not "
                f"{type(model).__name__}: load_model(name) takes names and folders"
            )
        self.model: Any = model.eval()
        self.tokenizer = tokenizer
        self.max_context = _max_context(model.config)
        self.eos_token_ids = _eos_token_ids(model)
        self._cache_name, self._can_choose_rows = _arguments(model)
        self._trims = False
        self.vocab_size = self._prove_roll_back()

    @property
    def device(self) -> torch.device:
        """Where the token ids have to be."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The number format of weights and logits."""
        return self.model.dtype

    def new_cache(self, capacity: int) -> HuggingFaceCache:
        """An empty cache; it grows as needed."""
        return HuggingFaceCache(self._new_states, self._trims)

    @torch.no_grad()
    def forward(self, tokens: Tensor, cache: HuggingFaceCache, rows: slice = slice(None)) -> Tensor:
        """Logits `[n_rows, vocab]` after `tokens` `[n]`, of the chosen rows only; the cache grows by n.

        Raises ValueError where the tokens do not fit into the model's context.
        """
        n, start = len(tokens), cache.length
        if self.max_context is not None and start + n > self.max_context:
            raise ValueError(f"{start} cached and {n} new tokens exceed the model's context of {self.max_context}")
        wanted = range(n)[rows]
        # logits_to_keep counts from the end and reads 0 as "all": without a wanted row it computes the last one.
        first = min(wanted, default=n - 1)
        options: dict[Any, Any] = {self._cache_name: cache.states, "use_cache": True}
        if self._can_choose_rows:
            options["logits_to_keep"] = n - first
        logits = self.model(input_ids=tokens[None], **options).logits[0, first - n :]
        return logits[wanted.start - first : wanted.stop - first : wanted.step] if wanted else logits[:0]

    def _new_states(self) -> Any:
        if not self._trims:
            return DynamicCache()
        states = DynamicCache(config=self.model.config)
        states.activate_past_recording()
        return states

    @torch.no_grad()
    def _prove_roll_back(self) -> int:
        """Choose the states that this model can roll back; returns the number of its logits.

        First a cache that keeps every key and value. Some layers need states of their own kind (short
        convolutions, sparse attention's index): where transformers can record their past, these are tried next.
        """
        model = self.model
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"{type(model).__name__} is an encoder-decoder: give a model that is a decoder only")
        whole = model(input_ids=self._probe(0, 7)[None], use_cache=False).logits[0]
        reason = "its forward takes neither past_key_values nor cache"
        if self._cache_name is not None:
            for trims in (False, True) if hasattr(DynamicCache, "activate_past_recording") else (False,):
                self._trims = trims
                try:
                    self._try_roll_back(whole)
                    return whole.shape[-1]
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{type(model).__name__} cannot take back tokens that were rejected ({reason}). Give a model of attention "
            "layers only: a recurrent state (Mamba, RWKV, many hybrids) cannot be undone"
        )

    def _try_roll_back(self, whole: Tensor) -> None:
        """Take in `[7]` tokens as rounds do, each followed by two wrong ones; raises what goes wrong.

        whole: logits `[7, vocab]` without a cache.
        """
        tokens, wrong = self._probe(0, 7), self._probe(11, 2)
        cache = self.new_cache(9)
        self.forward(tokens[:4], cache, slice(0))
        rows = []
        for i in range(4, 7):
            rows.append(self.forward(torch.cat([tokens[i : i + 1], wrong]), cache, slice(0, 1)))
            cache.truncate(i + 1)
        # Passes of different shapes round differently; a wrong state shows in the first digits. Models in float64
        # may compute a part in float32, and float32 products may be set to fewer bits.
        float32_eps = {"highest": 2**-23, "high": 2**-11, "medium": 2**-8}[torch.get_float32_matmul_precision()]
        tolerance = max(torch.finfo(whole.dtype).eps, float32_eps) ** 0.5
        found, expected = torch.cat(rows), whole[4:]
        largest = expected.nan_to_num(posinf=0, neginf=0).abs().max().item()
        if not torch.isclose(found, expected, rtol=0, atol=tolerance * largest).all():
            gap = (found - expected).abs().max().item()
            raise ArithmeticError(f"after a roll-back its logits are off by up to {gap:.2g} of {largest:.2g}")

    def _probe(self, first: int, n: int) -> Tensor:
        """`n` token ids from the middle of the vocabulary; at its ends may be special ones, such as an image's."""
        size = self.model.get_input_embeddings().weight.shape[0]
        return (size // 2 + torch.arange(first, first + n, device=self.device)) % size


def _arguments(model: Any) -> tuple[str | None, bool]:
    """What forward calls its cache (None: it takes none), and whether it can compute the logits of some rows only.

    transformers 5.24 renamed past_key_values to cache. A wrapper (PEFT, torch.compile) takes any argument and
    passes it on, so the first module counts that names one.
    """
    for module in model.modules():
        names = inspect.signature(module.forward).parameters
        for cache_name in ("past_key_values", "cache"):
            if cache_name in names:
                return cache_name, "logits_to_keep" in names
    return None, False


def _max_context(config: Any) -> int | None:
    """Most tokens that a model with this transformers config takes exactly; None where there is no limit.

    LongRoPE turns all keys by other angles once the sequence is longer than in training; keys that are cached
    already can't follow, so that one pass over several tokens would no longer equal as many passes over one.
    Such a model ends where its first angles do.
    """
    config = config.get_text_config(decoder=True)
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for kind in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if kind.get("rope_type", kind.get("type")) == "longrope":
            limits.append(getattr(config, "original_max_position_embeddings", None))
            limits.append(kind.get("original_max_position_embeddings"))
    return min((limit for limit in limits if limit is not None), default=None)


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    """Ids that end a text: those of the model's generation config, else of its config; empty where it has none."""
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = getattr(model.config.get_text_config(decoder=True), "eos_token_id", None)
    return () if eos is None else tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)
