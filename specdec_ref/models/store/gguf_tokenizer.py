"""Build a transformers tokenizer from the entries of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# GGUF's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5


def build_tokenizer(
    file: str, entries: Mapping[str, Any], chat_template: str | None, context: int
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer.

    file: its name, for messages.
    entries: the file's `tokenizer.ggml` entries, None where it has none.
    context: most tokens that the model takes.
    Raises ValueError for a tokenizer of another kind and for entries that do not fit together.
    """
    kind = (entries["model"], entries["pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{file} has the tokenizer {kind}: only SmolLM's is rebuilt from a GGUF file")
    tokens, merges = entries["tokens"] or [], entries["merges"] or []
    types = entries["token_type"] or [NORMAL] * len(tokens)
    if len(types) != len(tokens) or not set(types) <= {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED}:
        raise ValueError(f"{file}: its token types {sorted(set(types))} for {len(tokens)} tokens are not understood")
    try:
        bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(pair.split(" ")) for pair in merges])
    except Exception as error:
        raise ValueError(f"{file}: its tokens and merges do not fit together ({error})") from error
    tokenizer = Tokenizer(bpe)
    # SmolLM splits numbers into single digits before the usual byte-level pieces.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Both are found in a text before it is cut into pieces; control tokens have no text of their own.
    for text, kind_ in zip(tokens, types, strict=True):
        if kind_ in (UNKNOWN, CONTROL):
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        elif kind_ == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])
    names = {name: _token(file, tokens, entries[f"{name}_token_id"]) for name in ("bos", "eos", "unknown", "padding")}
    _add_ends(file, tokenizer, entries, names)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names["bos"],
        eos_token=names["eos"],
        unk_token=names["unknown"],
        pad_token=names["padding"],
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
    fast.chat_template = chat_template
    return fast


def _token(file: str, tokens: list[str], index: int | None) -> str | None:
    if index is not None and index >= len(tokens):
        raise ValueError(f"{file} names token {index}, but it has {len(tokens)} tokens")
    return None if index is None else tokens[index]


def _add_ends(file: str, tokenizer: Tokenizer, entries: Mapping[str, Any], names: Mapping[str, str | None]) -> None:
    """Have a text begin and end with the tokens that the file says to add."""
    before, after = ("bos" if entries["add_bos_token"] else None), ("eos" if entries["add_eos_token"] else None)
    ends = [name for name in (before, after) if name]
    if missing := [name for name in ends if names[name] is None]:
        raise ValueError(f"{file} says that texts get a {missing[0]} token, but names none")
    if ends:
        template = [*([names["bos"]] if before else []), "$A", *([names["eos"]] if after else [])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(names[name], entries[f"{name}_token_id"]) for name in ends]
        )
