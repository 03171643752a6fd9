"""A prompt as users give it (text, chat messages, ids) to token ids."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specdec_ref.interfaces import CausalLM


def encode_prompt(prompt: Any, model: CausalLM) -> list[int]:
    """Token ids of text, of chat messages (`[{"role": ..., "content": ...}]`, through the model's chat template),
    or of ids (list, tensor or array of shape `[n]` or `[1, n]`, or what a tokenizer returns with them in it).

    Raises ValueError for an empty prompt, more than one at once, ids outside the vocabulary, a prompt that leaves
    no room for a new token, or text where the model has no tokenizer; TypeError for anything else.
    """
    ids = _ids(prompt, model)
    if not ids:
        raise ValueError("the prompt is empty: a causal model needs at least one token to continue")
    outside = [i for i in ids if not 0 <= i < model.vocab_size]
    if outside:
        raise ValueError(f"prompt id {outside[0]} is outside the vocabulary, 0 to {model.vocab_size - 1}")
    if model.max_context is not None and len(ids) >= model.max_context:
        raise ValueError(
            f"the prompt has {len(ids):,} tokens and the model's context {model.max_context:,}: no room for a new token"
        )
    return ids


def as_chat(text: str, tokenizer: Any) -> str | list[dict[str, str]]:
    """`text` as a user's message where `tokenizer` has a chat template, else as it is: a text to be continued."""
    return [{"role": "user", "content": text}] if has_chat_template(tokenizer) else text


def has_chat_template(tokenizer: Any) -> bool:
    """Whether `tokenizer`, None for none, can write chat messages."""
    return getattr(tokenizer, "chat_template", None) is not None


def encode_text(prompt: str | Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    """Token ids of text, or of chat messages through the chat template. Raises ValueError where there is none."""
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    if not has_chat_template(tokenizer):
        raise ValueError("this model's tokenizer has no chat template: give text instead of messages")
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _ids(prompt: Any, model: CausalLM) -> list[int]:
    if isinstance(prompt, str):
        return encode_text(prompt, _tokenizer(model))
    if isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            raise TypeError(f"a prompt is text, a list of chat messages, or token ids, not a {type(prompt).__name__}")
        prompt = prompt["input_ids"]
    if getattr(prompt, "ndim", 0) and not isinstance(prompt, torch.Tensor):
        prompt = torch.as_tensor(prompt)
    if isinstance(prompt, torch.Tensor):
        if prompt.dim() == 2 and len(prompt) == 1:
            prompt = prompt[0]
        if prompt.dim() != 1:
            raise ValueError(f"one prompt at a time: ids of shape [n] or [1, n], not {list(prompt.shape)}")
        if prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise TypeError(f"prompt ids are whole numbers, not {prompt.dtype}")
        return prompt.tolist()
    try:
        items = list(prompt)
    except TypeError:
        items = [prompt]
    if items and all(isinstance(m, Mapping) for m in items):
        return encode_text(items, _tokenizer(model))
    if len(items) == 1 and isinstance(items[0], (list, tuple)):
        items = list(items[0])
    if any(isinstance(i, (str, list, tuple)) or getattr(i, "ndim", 0) for i in items):
        raise ValueError("one prompt at a time: call generate once for each")
    try:
        return [operator.index(i) for i in items]
    except TypeError:
        raise TypeError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}") from None


def _tokenizer(model: CausalLM) -> Any:
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer: give the prompt as token ids")
    return model.tokenizer
