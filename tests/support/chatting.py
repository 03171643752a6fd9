"""A tiny Llama that takes chat messages: bytes as tokens, and the plainest of chat templates."""

from __future__ import annotations

from specdec_ref.models.llama import Llama
from support.spelling import byte_level_tokenizer
from support.tiny_models import tiny_llama


def chatting_llama(seed: int = 0, **changes: object) -> Llama:
    sizes = dict(vocab_size=257, max_context=2_600, eos_token_ids=(256,), tied_head=True)
    model = tiny_llama(seed, **(sizes | changes))
    model.tokenizer = byte_level_tokenizer()
    model.tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }}\n{% endfor %}a: "
    return model
