"""A tiny model with a tokenizer, as a folder in Hugging Face format, for tests of the command line."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", "a", "b", "é", "😀"]


def save_tiny_model(folder: Path) -> Path:
    """Write the model; whatever the prompt, it goes on with 😀 for ever. Returns `folder`."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    sizes = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Without layers each token's state is constant, and the head points to the last word.
            parameter.fill_(1.0 if "norm" in name or "embed" in name else 0.0)
        model.lm_head.weight[-1].fill_(1.0)
    model.save_pretrained(folder)
    return folder
