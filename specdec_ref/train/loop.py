"""The training loop that all drafts share: batches, schedule, checkpoints, and the curve of what it brought."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specdec_ref.files import write_atomic
from specdec_ref.train.batches import Batch, Teacher, order
from specdec_ref.train.evaluate import evaluate, mean
from specdec_ref.train.losses import blend_at
from specdec_ref.train.shards import Example

CHECKPOINT, CURVE = "checkpoint.pt", "curve.csv"
WARMUP = 50
"""Steps in which the learning rate rises."""
DECAY_FROM, LOWEST = 0.7, 0.05
"""From this share of the training on the rate falls, to this share of itself. Before, it is constant, so a longer
training can go on from a checkpoint."""


class Training(Protocol):
    """A kind of draft, as the loop and the measurement see it.

    kind: its name. module: what is trained. layers: whose hidden states it reads. n_places: tokens that it drafts.
    """

    kind: str
    n_places: int

    @property
    def module(self) -> nn.Module: ...

    @property
    def layers(self) -> tuple[int, ...]: ...

    def loss(self, batch: Batch, teacher: Teacher, blend: float) -> Tensor:
        """The loss of a batch; blend: see `losses.draft_loss`."""

    def acceptance(self, batch: Batch, teacher: Teacher, n_places: int, temperature: float) -> Tensor:
        """`[b, a, n_places]`: the probability that place k is kept, given the text and that all before it were."""

    def tensors(self) -> dict[str, Tensor]:
        """The weights that are stored."""

    def sizes(self) -> dict[str, Any]:
        """The sizes that are stored with them."""


@dataclass(frozen=True)
class RunOptions:
    """What decides a training.

    minutes: time of training in all, over all calls, measurements not counted; steps: instead of a time, for tests.
    batch: examples per step; anchors: places per step where a round begins. blend: from which share of the training
    on -log alpha takes over from KL, and from which on it rules alone.
    measure_every: minutes between measurements, each of `quick` examples per kind; the last one takes `measured`.
    """

    minutes: float | None = None
    steps: int | None = None
    seed: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    batch: int = 8
    anchors: int = 512
    blend: tuple[float, float] = (0.5, 0.75)
    measure_every: float = 10.0
    quick: int = 2
    measured: int = 10

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(f"minutes {self.minutes}, steps {self.steps}: give one of the two")


@dataclass
class State:
    """Where a training is: steps, seconds, anchors that were trained on, and the curve."""

    step: int = 0
    seconds: float = 0.0
    anchors: int = 0
    loss: float = math.nan
    curve: list[dict[str, float]] = field(default_factory=list)

    def progress(self, options: RunOptions) -> float:
        """The share of the training that is done."""
        done = self.step / options.steps if options.steps else self.seconds / (60 * (options.minutes or 1))
        return min(1.0, done)


def train(
    training: Training,
    teacher: Teacher,
    examples: Sequence[Example],
    measured: dict[str, list[Example]],
    out: Path,
    options: RunOptions,
    *,
    stop_after: float | None = None,
    stop_at_step: int | None = None,
    report: Callable[[State], object] = lambda state: None,
) -> State:
    """Train until the options' time or steps are over; goes on from the folder's checkpoint where there is one.

    measured: "held 0.0", "unseen 1.0" and the like, with the examples that the target wrote at that temperature.
    stop_after: seconds after which this call ends; stop_at_step: the step at which it does. Neither changes what the
    training becomes in the end.
    """
    optimizer = _optimizer(training.module, options)
    state = _resume(training, optimizer, out, options)
    began = last = time.monotonic()
    batches = _batches(examples, options, state.step)
    training.module.train()
    while state.progress(options) < 1 and state.step != stop_at_step:
        if stop_after is not None and time.monotonic() - began >= stop_after:
            break
        rate = learning_rate(state.step, state.progress(options))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * rate
        batch = teacher.batch(next(batches), options.anchors, Random(f"{options.seed} step {state.step}"))
        with mixed_precision(teacher):
            loss = training.loss(batch, teacher, blend_at(state.progress(options), *options.blend))
        loss.backward()
        nn.utils.clip_grad_norm_(training.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.monotonic()
        state.step, state.seconds, last = state.step + 1, state.seconds + now - last, now
        state.anchors += int(batch.valid.sum())
        state.loss = loss.item() if math.isnan(state.loss) else 0.98 * state.loss + 0.02 * loss.item()
        report(state)
        if _due(state, options):
            _measure(training, teacher, measured, options, state)
            _save(training, optimizer, out, options, state)
            last = time.monotonic()
    _save(training, optimizer, out, options, state)
    return state


def learning_rate(step: int, progress: float) -> float:
    """The rate as a share of the highest one: it rises, stays, and falls at the end."""
    falling = max(0.0, (progress - DECAY_FROM) / (1 - DECAY_FROM))
    return min(1.0, (step + 1) / WARMUP) * (1 - (1 - LOWEST) * falling)


def mixed_precision(teacher: Teacher) -> torch.autocast:
    """Products in bfloat16 where the target is in bfloat16."""
    return torch.autocast("cpu", torch.bfloat16, enabled=teacher.model.dtype == torch.bfloat16)


def measure(training: Training, teacher: Teacher, examples: Sequence[Example], temperature: float) -> dict[str, Any]:
    """Walked tokens per round of each kind; see `evaluate`."""

    def acceptance(batch: Batch, n_places: int, t: float) -> Tensor:
        with mixed_precision(teacher):
            return training.acceptance(batch, teacher, n_places, t)

    training.module.eval()
    found = evaluate(acceptance, teacher, examples, training.n_places, temperature)
    training.module.train()
    return found


def temperature_of(name: str) -> float:
    """The temperature in a measured set's name."""
    return float(name.split()[1])


def few_of_each(examples: Sequence[Example], n: int) -> list[Example]:
    """The first `n` examples of each kind."""
    kinds: dict[str, list[Example]] = {}
    for example in examples:
        kinds.setdefault(example.kind, []).append(example)
    return [example for found in kinds.values() for example in found[:n]]


def _measure(
    training: Training, teacher: Teacher, measured: dict[str, list[Example]], options: RunOptions, state: State
) -> None:
    row = {
        "minutes": round(state.seconds / 60, 2),
        "step": state.step,
        "anchors": state.anchors,
        "loss": round(state.loss, 4),
    }
    for name, examples in measured.items():
        found = measure(training, teacher, few_of_each(examples, options.quick), temperature_of(name))
        row[name] = round(mean(found), 3)
    state.curve.append(row)


def _due(state: State, options: RunOptions) -> bool:
    """Whether it is time to measure: after one, two, four minutes, then every `measure_every`, and at the end."""
    if state.progress(options) >= 1:
        return True
    last = 60 * state.curve[-1]["minutes"] if state.curve else 0.0
    return options.minutes is not None and state.seconds - last >= 60 * min(options.measure_every, max(1.0, last / 60))


def _batches(examples: Sequence[Example], options: RunOptions, step: int) -> Iterator[list[Example]]:
    """Batches from `step` on, epoch after epoch."""
    per_epoch = sum(1 for _ in order(examples, options.batch, options.seed, 0))
    epoch, skip = divmod(step, per_epoch)
    while True:
        for i, batch in enumerate(order(examples, options.batch, options.seed, epoch)):
            if i >= skip:
                yield batch
        epoch, skip = epoch + 1, 0


def _optimizer(module: nn.Module, options: RunOptions) -> torch.optim.Optimizer:
    trained = [w for w in module.parameters() if w.requires_grad]
    groups = [
        {"params": [w for w in trained if w.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [w for w in trained if w.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), fused=True)


def _guard(options: RunOptions) -> dict[str, Any]:
    """What must not change between the calls of one training; its length may."""
    return {
        k: v for k, v in asdict(options).items() if k not in ("minutes", "steps", "measure_every", "quick", "measured")
    }


def _save(training: Training, optimizer: torch.optim.Optimizer, out: Path, options: RunOptions, state: State) -> None:
    trained = {name: w.detach() for name, w in training.module.named_parameters() if w.requires_grad}
    buffer = io.BytesIO()
    torch.save(
        {"options": _guard(options), "state": asdict(state), "weights": trained, "optimizer": optimizer.state_dict()},
        buffer,
    )
    write_atomic(out / CHECKPOINT, buffer.getvalue())
    if state.curve:
        table = io.StringIO()
        writer = csv.DictWriter(table, list(state.curve[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(state.curve)
        write_atomic(out / CURVE, table.getvalue())


def _resume(training: Training, optimizer: torch.optim.Optimizer, out: Path, options: RunOptions) -> State:
    """The state of the folder's checkpoint, loaded into module and optimizer; a new one where there is none.

    Raises ValueError for a checkpoint of other options.
    """
    path = out / CHECKPOINT
    if not path.exists():
        return State()
    found = torch.load(path, weights_only=True)
    if different := [k for k, v in _guard(options).items() if found["options"].get(k) != v]:
        k = different[0]
        raise ValueError(
            f"{out} holds a training with {k} {found['options'].get(k)!r}, now it is {_guard(options)[k]!r}: give the "
            "same options, or another folder"
        )
    training.module.load_state_dict(found["weights"], strict=False)
    optimizer.load_state_dict(found["optimizer"])
    return State(**found["state"])
