"""One training from data to a finished draft: weights in 8 bits, measured as they are stored, with a model card."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.draft.weights import read_draft, write_draft
from specdec_ref.files import write_atomic
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.llama import Llama
from specdec_ref.train.batches import Teacher, frequent_tokens, usable
from specdec_ref.train.card import card
from specdec_ref.train.evaluate import Walked, by_place, mean
from specdec_ref.train.kinds import DraftOptions, make_training
from specdec_ref.train.loop import RunOptions, State, Training, few_of_each, measure, temperature_of, train
from specdec_ref.train.shards import Example, read_folder, read_recipe

WEIGHTS, REPORT, CARD, VOCABULARY = "draft.safetensors", "report.json", "README.md", "vocabulary.json"
LONGEST = 768


def run(
    draft: DraftOptions,
    options: RunOptions,
    model: Llama,
    plain: Callable[[], Llama],
    data: Path,
    out: Path,
    *,
    stop_after: float | None = None,
    keep_states: bool = False,
    report: Callable[[State], object] = lambda state: None,
) -> dict[str, Any] | None:
    """Train a draft on a folder of data; its report when the training is over, None where it goes on later.

    keep_states: write the target's states beside the data, about 5 kB per token, and read them in later epochs.
    Raises ValueError for data of another target.
    """
    target = fingerprint(model)
    if (made_by := read_recipe(data)["target"]) != target:
        raise ValueError(f"{data} holds answers of another target ({made_by[:12]}, not {target[:12]}): make new data")
    examples = usable(read_folder(data, ["train"]), LONGEST)
    measured = measured_sets(usable(read_folder(data, ["held", "unseen"]), LONGEST))
    tokens = _vocabulary(out, draft, examples, model)
    training = make_training(draft, model, plain, tokens)
    if draft.start is not None:
        training.module.load_state_dict(_earlier(draft, target), strict=False)
    kept = data / "states" if keep_states else None
    teacher = Teacher(model, training.layers, tokens if "tokens" in training.tensors() else None, kept)
    state = train(training, teacher, examples, measured, out, options, stop_after=stop_after, report=report)
    if state.progress(options) < 1:
        return None
    about = _about(training, draft, target)
    write_draft(out / WEIGHTS, training.tensors(), about)
    stored, _ = read_draft(out / WEIGHTS)
    training.module.load_state_dict(stored, strict=False)
    result = _report(training, teacher, measured, state, about, examples, options)
    write_atomic(out / REPORT, json.dumps(result, indent=1) + "\n")
    write_atomic(out / CARD, card(result))
    return result


def _vocabulary(out: Path, draft: DraftOptions, examples: Sequence[Example], model: Llama) -> Tensor:
    """The tokens that are drafted, `[n]`: kept in the folder, since more data would count others as frequent."""
    path = out / VOCABULARY
    if path.exists():
        return torch.tensor(json.loads(path.read_text(encoding="utf-8")))
    if draft.start is not None and "tokens" in (earlier := _earlier(draft, fingerprint(model))):
        tokens = earlier["tokens"]
    else:
        tokens = frequent_tokens(examples, model.vocab_size, draft.n_tokens, model.eos_token_ids)
    write_atomic(path, json.dumps(tokens.tolist()))
    return tokens


def _earlier(draft: DraftOptions, target: str) -> dict[str, Tensor]:
    """The weights to begin from. Raises ValueError for a draft of another kind or target."""
    assert draft.start is not None
    tensors, about = read_draft(draft.start)
    if (about["kind"], about["target"]) != (draft.kind, target):
        raise ValueError(
            f"{draft.start} is a draft of kind {about['kind']} for {about['target'][:12]}: begin from another"
        )
    return tensors


def measured_sets(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """The examples that drafts are measured on, by split and temperature: "held 0.0", "held 1.0" and so on."""
    names = sorted({f"{e.split} {e.temperature}" for e in examples})
    return {name: [e for e in examples if f"{e.split} {e.temperature}" == name] for name in names}


def _about(training: Training, draft: DraftOptions, target: str) -> dict[str, Any]:
    return {
        "kind": training.kind,
        "target": target,
        "n_places": training.n_places,
        "sizes": training.sizes(),
        "layers": draft.layers,
    }


def _report(
    training: Training,
    teacher: Teacher,
    measured: dict[str, list[Example]],
    state: State,
    about: dict[str, Any],
    examples: Sequence[Example],
    options: RunOptions,
) -> dict[str, Any]:
    found = {
        name: measure(training, teacher, few_of_each(es, options.measured), temperature_of(name))
        for name, es in measured.items()
    }
    return {
        "about": about,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}",
        "weights": sum(w.numel() for w in training.module.parameters() if w.requires_grad),
        "examples": len(examples),
        "answer_tokens": sum(e.n_answer for e in examples),
        "steps": state.step,
        "anchors": state.anchors,
        "minutes": round(state.seconds / 60, 1),
        "prompts_per_kind": options.measured,
        "options": asdict(options),
        "tokens_per_round": {name: _figures(walked) for name, walked in found.items()},
        "curve": state.curve,
    }


def _figures(found: dict[str, Walked]) -> dict[str, Any]:
    kinds = {kind: round(w.tokens_per_round, 3) for kind, w in sorted(found.items())}
    return {"mean": round(mean(found), 3), "by kind": kinds, "kept by place": by_place(found)}
