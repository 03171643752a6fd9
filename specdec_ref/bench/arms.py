"""Ways of generating greedily, each timed on token ids.

An arm takes prompt ids and a number of tokens, and gives that many new ids: end tokens are ignored, so that every arm
does the same work. `make_arms` builds those that share a model; they run in a process of their own (`worker`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_ref.draft import EagleDrafter, NGramDrafter
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.interfaces import CausalLM
from specdec_ref.measure import controller, fastest_threads
from specdec_ref.models.layout import bytes_a_pass
from specdec_ref.models.load import load_model
from specdec_ref.models.store.catalog import CATALOG, GGUF_NAME
from specdec_ref.models.store.fetch import fetch
from specdec_ref.models.store.folder import find_folder


@dataclass(frozen=True)
class Sample:
    """One generation.

    tokens: the new ids.
    first_seconds: until the first new token was there (TTFT); seconds: until the last.
    passes: of the target after the prefill, where the arm counts them.
    """

    tokens: list[int]
    first_seconds: float
    seconds: float
    passes: int | None = None


Arm = Callable[[Sequence[int], int], Sample]
OURS: dict[str, dict[str, Any]] = {
    "q4": {"weights": "q4"},
    "q4a8": {"weights": "q4", "activations": 8},
    "bf16": {"dtype": "bfloat16", "weights": "full"},
}
"""This package's engine: weights in 4 bits, with activations in 16 and in 8, and weights in bfloat16."""
WORKERS = (*OURS, "transformers", "openvino")  # llama.cpp is one, too, outside Python: llamacpp.mjs
EAGLE_GAMMA, EAGLE_STOPS = 4, 0.3  # at most so many drafts, and none after a draft that is less sure than this


def make_arms(worker: str, model: str, gamma: int, lookups: Sequence[int]) -> tuple[dict[str, Arm], dict[str, Any]]:
    """The arms of a worker by name, and facts of its model: `bytes_a_pass`, and the versions it runs on.

    worker: those of `OURS` are this package's engine; "transformers" its `generate` in bfloat16; "openvino" OpenVINO
        GenAI on the model's GGUF file. lookups: settings of transformers' prompt_lookup_num_tokens.
    Raises ValueError for an unknown worker, ModuleNotFoundError where a peer is not installed.
    """
    if worker in OURS:
        return _ours(model, worker, gamma)
    if worker == "transformers":
        return _transformers(model, lookups)
    if worker == "openvino":
        return _openvino(model)
    raise ValueError(f"no arm {worker!r}: there are {', '.join(WORKERS)}")


def _ours(name: str, weights: str, gamma: int) -> tuple[dict[str, Arm], dict[str, Any]]:
    target: Any = load_model(name, **OURS[weights])
    torch.set_num_threads(fastest_threads(target))
    chooser = controller(target, NGramDrafter(), most=gamma)

    def arm(engine: SpeculativeEngine) -> Arm:
        def run(ids: Sequence[int], n: int) -> Sample:
            start = time.perf_counter()
            stream, first = engine.stream(ids, n, eos_token_id=None), 0.0
            tokens: list[int] = []
            for chunk in stream:
                first = first or time.perf_counter() - start
                tokens += chunk.tokens
            return Sample(tokens, first, time.perf_counter() - start, stream.result.stats.rounds)

        return run

    arms = {
        f"{weights} plain": arm(SpeculativeEngine(target)),
        f"{weights} lookup": arm(SpeculativeEngine(target, chooser, gamma)),
    }
    if (head := _shipped_head(target)) is not None:
        arms[f"{weights} eagle"] = arm(SpeculativeEngine(target, head, EAGLE_GAMMA))
    facts = {
        "bytes_a_pass": bytes_a_pass(target),
        "eos_token_ids": list(target.eos_token_ids),
        "relative_cost": {n: t / chooser.times.before[0] for n, t in enumerate(chooser.times.before, 1)},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return arms, facts


def _shipped_head(target: CausalLM) -> EagleDrafter | None:
    """The trained head that comes with the package, for the target that it was trained for."""
    try:
        head = EagleDrafter.read(stop_below=EAGLE_STOPS)
        head.check(target)
    except ValueError:
        return None
    return head


def _transformers(name: str, lookups: Sequence[int]) -> tuple[dict[str, Arm], dict[str, Any]]:
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        model_folder(name), dtype=torch.bfloat16, local_files_only=True
    ).eval()

    class FirstToken:
        """A streamer that notes when the first new token came; the prompt is put first."""

        def __init__(self) -> None:
            self.puts, self.at = 0, 0.0

        def put(self, value: Any) -> None:
            self.puts += 1
            if self.puts == 2:
                self.at = time.perf_counter()

        def end(self) -> None:
            pass

    def arm(**options: Any) -> Arm:
        def run(ids: Sequence[int], n: int) -> Sample:
            config = GenerationConfig(
                max_new_tokens=n, do_sample=False, eos_token_id=None, bos_token_id=0, pad_token_id=0, **options
            )
            model.generation_config = config
            streamer, inputs = FirstToken(), torch.tensor([list(ids)])
            start = time.perf_counter()
            with torch.inference_mode():
                out = model.generate(inputs, attention_mask=torch.ones_like(inputs), streamer=streamer)
            seconds = time.perf_counter() - start
            tokens = out[0, len(ids) :].tolist()
            return Sample(tokens, streamer.at - start, seconds, None if options else len(tokens))

        return run

    arms = {"transformers plain": arm()}
    arms |= {f"transformers lookup {k}": arm(prompt_lookup_num_tokens=k) for k in lookups}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return arms, {"bytes_a_pass": bytes_read(model), "threads": torch.get_num_threads(), **versions}


def bytes_read(model: Any) -> int:
    """Bytes of a transformers model's weights that a pass over one token reads.

    All but the embedding where the head has weights of its own: of that a pass reads one row.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = sum(p.nbytes for p in model.parameters())
    if head is None or head.weight is embedding.weight:
        return weights
    return weights - embedding.weight.nbytes + embedding.weight[0].nbytes


def _openvino(name: str) -> tuple[dict[str, Arm], dict[str, Any]]:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    # Without its cache of prompts: a repeat would otherwise skip the prefill that every other arm does.
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    pipe = genai.LLMPipeline(str(model_folder(name) / GGUF_NAME), "CPU", scheduler_config=scheduler)

    def run(ids: Sequence[int], n: int) -> Sample:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n, True, False
        config.apply_chat_template = False
        inputs = genai.TokenizedInputs(
            ov.Tensor(np.array([list(ids)], dtype=np.int64)), ov.Tensor(np.ones((1, len(ids)), dtype=np.int64))
        )
        start = time.perf_counter()
        result = pipe.generate(inputs, config)
        seconds = time.perf_counter() - start
        first = result.perf_metrics.get_ttft().mean / 1e3  # milliseconds
        return Sample([int(t) for t in result.tokens[0]], first, seconds, n)

    return {"openvino plain": run}, {"openvino-genai": genai.__version__}


def model_folder(name: str) -> Path:
    """The folder that holds a model's files."""
    return fetch(name) if name in CATALOG else find_folder(name)
