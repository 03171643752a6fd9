"""Tiny random transformers models of many families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

VOCAB, CONTEXT, WINDOW = 61, 64, 6
SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
GPT: dict[str, Any] = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.3)
MAMBA: dict[str, Any] = dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8)
MIXED = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", SIZES | dict(head_dim=16)),
    "mistral, window": ("MistralForCausalLM", "MistralConfig", SIZES | dict(head_dim=8, sliding_window=WINDOW)),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        SIZES | dict(head_dim=8, sliding_window=WINDOW, layer_types=MIXED, query_pre_attn_scalar=8),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        SIZES | dict(head_dim=8, sliding_window=WINDOW, layer_types=MIXED, query_pre_attn_scalar=8),
    ),
    "llama4, chunks": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        SIZES
        | dict(
            head_dim=8, attention_chunk_size=WINDOW, num_local_experts=2, num_hidden_layers=4, intermediate_size_mlp=48
        ),
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", SIZES),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SIZES),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        dict(
            vocab_size=VOCAB,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            word_embed_proj_dim=32,
            init_std=0.3,
        ),
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        dict(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3),
    ),
}
# These compute a part in float32 whatever the weights are.
ROUGH = {"gemma2", "bloom", "llama4, chunks"}

RECURRENT = {
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4),
    ),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)),
    "bamba, hybrid": ("BambaForCausalLM", "BambaConfig", SIZES | MAMBA | dict(attn_layer_indices=[1])),
    "falcon h1, hybrid": ("FalconH1ForCausalLM", "FalconH1Config", SIZES | MAMBA | dict(mamba_d_ssm=64)),
    "recurrent gemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        dict(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            lru_width=32,
        ),
    ),
}


def build(family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    model_class, config_class, sizes = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, config_class)(**(sizes | changes))
    return getattr(transformers, model_class)(config).to(dtype)


def save(model: Any, folder: Path, **options: Any) -> Path:
    """`folder`, with the model and a tokenizer of words as `save_pretrained` writes them."""
    model.save_pretrained(folder, **options)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return folder


def edit(file: Path, **changes: Any) -> None:
    """Give a JSON file other entries; None takes an entry out."""
    entries = json.loads(file.read_text(encoding="utf-8")) | changes
    entries = {name: value for name, value in entries.items() if value is not None}
    file.write_text(json.dumps(entries), encoding="utf-8")
