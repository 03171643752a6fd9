"""Training of a draft LM: some of the target's own layers between its embedding and its head, taught to agree with it.

In Hugging Face format, so that transformers takes it as `assistant_model`. Embedding and head stay the target's and
are not trained: only the layers and the last norm are stored, and `export` puts the rest beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_ref.files import write_atomic
from specdec_ref.models.export import hf_config, hf_state
from specdec_ref.models.llama import Llama
from specdec_ref.train.batches import Batch, Teacher, pick
from specdec_ref.train.losses import draft_loss

EMBEDDING = ("model.embed_tokens.weight", "lm_head.weight")
CHUNK = 256
"""Positions whose distributions over all tokens are held at a time."""


def new_draft_lm(model: Llama, layers: Sequence[int]) -> LlamaForCausalLM:
    """A model of the target's `layers`, in this order, before training.

    Raises ValueError for layers that the target does not have, or whose matrices are packed.
    """
    if not layers or not all(0 <= i < model.config.n_layers for i in layers):
        raise ValueError(f"layers {list(layers)}: give some of 0 to {model.config.n_layers - 1}")
    draft = LlamaForCausalLM(LlamaConfig(**hf_config(replace(model.config, n_layers=len(layers)))))
    state = {name: weight.float() for name, weight in hf_state(model, layers).items()}
    draft.load_state_dict(state | ({EMBEDDING[1]: state[EMBEDDING[0]]} if model.config.tied_head else {}))
    for name, weight in draft.named_parameters():
        weight.requires_grad_(name not in EMBEDDING)
    return draft.float()


class DraftLMTraining:
    """How a draft LM is trained and measured; see `loop.Training`."""

    kind = "lm"
    layers = ()

    def __init__(self, module: LlamaForCausalLM, n_places: int = 4) -> None:
        self.module, self.n_places = module, n_places

    def loss(self, batch: Batch, teacher: Teacher, blend: float) -> Tensor:
        """Mean over the token after each anchor's pending one."""
        at, exists = batch.places(1)
        place, chosen = at[..., 0], exists[..., 0]
        with torch.no_grad():
            p = teacher.logits(pick(batch.last, place)[chosen]).float().softmax(-1)
        return draft_loss(teacher.logits(pick(self.states(batch), place)[chosen]), p, blend).mean()

    def states(self, batch: Batch) -> Tensor:
        """What the head, the target's, is given at every position: `[b, s - 1, hidden]`. Padding comes last, unseen."""
        hidden: Tensor = self.module.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
        return hidden

    @torch.no_grad()
    def acceptance(self, batch: Batch, teacher: Teacher, n_places: int, temperature: float) -> Tensor:
        """See `loop.Training.acceptance`. A language model has no anchor: place k is the position t + k alone."""
        states, text = self.states(batch), batch.ids[:, 1:]
        kept = torch.zeros(text.shape)
        log_p = teacher.log_probs_of_text(batch, temperature or 1.0)
        for row, (n, n_prompt) in enumerate(zip(batch.lengths.tolist(), batch.n_prompt.tolist(), strict=True)):
            for start in range(n_prompt - 1, n - 1, CHUNK):
                part = slice(start, min(start + CHUNK, n - 1))
                logits, token = teacher.logits(states[row, part]).float(), text[row, part, None]
                if temperature == 0:
                    kept[row, part] = (logits.argmax(-1) == token[:, 0]).float()
                else:
                    log_q = (logits / temperature).log_softmax(-1).gather(-1, token)[:, 0]
                    kept[row, part] = (log_q - log_p[row, part]).clamp(max=0).exp()
        at, exists = batch.places(n_places)
        return kept.gather(1, at.flatten(1)).view(at.shape) * exists

    def tensors(self) -> dict[str, Tensor]:
        """What is stored: all but embedding and head."""
        return {name: w.detach() for name, w in self.module.state_dict().items() if name not in EMBEDDING}

    def sizes(self) -> dict[str, Any]:
        """What is not the target's own."""
        return {"n_layers": self.module.config.num_hidden_layers}


def export_draft_lm(model: Llama, tensors: Mapping[str, Tensor], n_layers: int, folder: Path) -> None:
    """Write a whole Hugging Face folder in bfloat16: the stored layers, the target's embedding and tokenizer."""
    config: dict[str, Any] = hf_config(replace(model.config, n_layers=n_layers)) | {"torch_dtype": "bfloat16"}
    state = dict(tensors) | {EMBEDDING[0]: model.embed.weight.detach()}
    if not model.config.tied_head:
        if not isinstance(model.head, nn.Linear):
            raise ValueError("the target's head is packed: load it with dtype float32")
        state[EMBEDDING[1]] = model.head.weight.detach()
    stored = {name: weight.to(torch.bfloat16).contiguous() for name, weight in state.items()}
    write_atomic(folder / "model.safetensors", save(stored, metadata={"format": "pt"}))
    write_atomic(folder / "config.json", json.dumps(config, indent=1))
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
