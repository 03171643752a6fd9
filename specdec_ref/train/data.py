"""Makes training data: the target answers our prompts, shard by shard. A run that was stopped goes on where it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.llama import Llama
from specdec_ref.train.answers import Request, answers
from specdec_ref.train.batch import LlamaRows, Rows
from specdec_ref.train.prompts import TrainingPrompt, build_prompts, digest
from specdec_ref.train.shards import Example, about_shard, open_folder, shard_numbers, write_shard

TEMPERATURES = (0.6, 0.7, 0.8, 0.9, 1.0)
MEASURED = 24
"""Prompts per kind that drafts are measured on, answered greedily and at temperature 1; more of unseen kinds."""
MakeRows = Callable[[Llama, int, int], Rows]


@dataclass(frozen=True)
class DataOptions:
    """What decides the data; a folder is continued only with the same options.

    shard: answers per shard, the unit of which at most one is lost when a run is stopped.
    """

    seed: int = 0
    max_new_tokens: int = 256
    shard: int = 512
    per_kind: int = 1_500
    per_unseen_kind: int = 48


@dataclass(frozen=True)
class Progress:
    """What a folder holds: answer tokens by split, and answers."""

    tokens: Counter[str]
    answers: int


def make_data(
    model: Llama,
    folder: Path,
    n_tokens: int,
    options: DataOptions | None = None,
    *,
    n_rows: int = 16,
    part: tuple[int, int] = (0, 1),
    limit_seconds: float | None = None,
    report: Callable[[int], object] = lambda n: None,
    make_rows: MakeRows = LlamaRows,
) -> Progress:
    """Answers until the folder holds `n_tokens` answer tokens to train on, or the time is over.

    part: (i, n) makes every n-th shard from the i-th on, for n processes that fill one folder.
    report: told of new answer tokens as they come.
    make_rows: what runs the batch, made from (model, rows, capacity).
    Raises ValueError for a folder that was begun with other options or another target.
    """
    options = options or DataOptions()
    prompts = build_prompts(options.seed, options.per_kind, options.per_unseen_kind)
    open_folder(folder, _recipe(model, options, prompts))
    capacity = max(len(encode_prompt(p.messages, model)) for p in prompts) + options.max_new_tokens
    rows, start = make_rows(model, n_rows, capacity), time.monotonic()
    for number, planned in enumerate(_shards(prompts, options)):
        if number % part[1] != part[0] or number in shard_numbers(folder):
            continue
        over = limit_seconds is not None and time.monotonic() - start >= limit_seconds
        if over or progress(folder).tokens["train"] >= n_tokens:
            break
        write_shard(folder, number, _answered(model, rows, n_rows, planned, options, report))
    return progress(folder)


def progress(folder: Path) -> Progress:
    """What the whole shards of a folder hold."""
    tokens, n = Counter[str](), 0
    for number in shard_numbers(folder):
        for each in about_shard(folder, number):
            tokens[each["split"]] += each["n_answer"]
            n += 1
    return Progress(tokens, n)


Planned = tuple[TrainingPrompt, float]


def plan(prompts: list[TrainingPrompt], seed: int) -> Iterator[Planned]:
    """Which prompt is answered when and at which temperature, without end.

    First those that drafts are measured on, greedily and at temperature 1. Then all training prompts, again and
    again: each is answered greedily once, in the first or second turn, and otherwise at one of `TEMPERATURES`.
    """
    per_kind: Counter[str] = Counter()
    for prompt in (p for p in prompts if p.split != "train"):
        per_kind[prompt.kind] += 1
        if prompt.split == "unseen" or per_kind[prompt.kind] <= MEASURED:
            yield from ((prompt, 0.0), (prompt, 1.0))
    trained = [p for p in prompts if p.split == "train"]
    turn = 0
    while trained:
        for prompt in trained:
            greedy_turn = Random(f"{seed} {prompt.id} greedy").randrange(2)
            sampled = Random(f"{seed} {prompt.id} {turn}").choice(TEMPERATURES)
            yield prompt, 0.0 if turn == greedy_turn else sampled
        turn += 1


def _shards(prompts: list[TrainingPrompt], options: DataOptions) -> Iterator[list[Planned]]:
    """The plan in shards; those of measured prompts hold no training prompts."""
    shard: list[Planned] = []
    for each in plan(prompts, options.seed):
        if shard and (len(shard) == options.shard or (shard[-1][0].split != "train") != (each[0].split != "train")):
            yield shard
            shard = []
        shard.append(each)


def _answered(
    model: Llama,
    rows: Rows,
    n_rows: int,
    planned: list[Planned],
    options: DataOptions,
    report: Callable[[int], object],
) -> list[Example]:
    """The examples of a shard, in the order of the plan."""
    requests = [
        Request(i, encode_prompt(prompt.messages, model), t, f"{options.seed} {prompt.id} {t} {i}")
        for i, (prompt, t) in enumerate(planned)
    ]
    found = dict(answers(rows, n_rows, requests, options.max_new_tokens, model.eos_token_ids, report))
    return [
        Example(prompt.id, prompt.kind, prompt.split, t, len(requests[i].tokens), requests[i].tokens + found[i])
        for i, (prompt, t) in enumerate(planned)
    ]


def _recipe(model: Llama, options: DataOptions, prompts: list[TrainingPrompt]) -> dict[str, Any]:
    return {"target": fingerprint(model), "prompts": digest(prompts), **vars(options)}
