"""Token sequences on disk: shards of prompts with their answers, and beside each what they are.

A shard is `shard-00007.npz` (ids in 16 bits, compressed, about two bytes per token) and `shard-00007.json`. The JSON
is written last, so a shard that was cut short does not count. Hidden states are not stored: they take a hundred times
the room, and a target computes them again faster than a disk would read them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec_ref.files import write_atomic

RECIPE = "recipe.json"
LARGEST = 2**16


@dataclass(frozen=True)
class Example:
    """A prompt with its answer.

    ids: both; n_prompt: how many of them are the prompt's. Positions before the answer carry no loss.
    """

    id: str
    kind: str
    split: str
    temperature: float
    n_prompt: int
    ids: list[int]

    @property
    def n_answer(self) -> int:
        """Tokens of the answer, its end token included."""
        return len(self.ids) - self.n_prompt


def open_folder(folder: Path, recipe: dict[str, Any]) -> None:
    """Begin a folder, or go on with one. Raises ValueError where it was made by another recipe."""
    path = folder / RECIPE
    if not path.exists():
        write_atomic(path, json.dumps(recipe, indent=1))
        return
    found = read_recipe(folder)
    if different := sorted(k for k in {*found, *recipe} if found.get(k) != recipe.get(k)):
        k = different[0]
        raise ValueError(
            f"{folder} was begun with {k} {found.get(k)!r}, now it is {recipe.get(k)!r}: give the same options, or "
            "another folder"
        )


def read_recipe(folder: Path) -> dict[str, Any]:
    """How the data of a folder were made. Raises ValueError where there are none."""
    path = folder / RECIPE
    if not path.exists():
        raise ValueError(f"{folder} holds no training data: make some with specdec train-draft data --out {folder}")
    recipe: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recipe


def write_shard(folder: Path, number: int, sequences: Sequence[Example]) -> None:
    """Write shard `number`. Raises ValueError for ids that take more than 16 bits."""
    ids = [i for s in sequences for i in s.ids]
    if max(ids, default=0) >= LARGEST:
        raise ValueError(f"token id {max(ids)} takes more than 16 bits: these shards hold ids below {LARGEST:,}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, ids=np.array(ids, np.uint16), lengths=np.array([len(s.ids) for s in sequences]))
    about = [{k: v for k, v in asdict(s).items() if k != "ids"} | {"n_answer": s.n_answer} for s in sequences]
    write_atomic(_path(folder, number).with_suffix(".npz"), buffer.getvalue())
    lines = ",\n ".join(json.dumps(each) for each in about)
    write_atomic(_path(folder, number), f"[{lines}]\n")


def shard_numbers(folder: Path) -> list[int]:
    """The shards that are whole."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("shard-*.json"))


def about_shard(folder: Path, number: int) -> list[dict[str, Any]]:
    """What a shard holds, sequence by sequence, without the ids."""
    about: list[dict[str, Any]] = json.loads(_path(folder, number).read_text(encoding="utf-8"))
    return about


def read_shard(folder: Path, number: int) -> list[Example]:
    """All sequences of a shard."""
    with np.load(_path(folder, number).with_suffix(".npz")) as arrays:
        parts = np.split(arrays["ids"].astype(int), np.cumsum(arrays["lengths"])[:-1])
    fields = ("id", "kind", "split", "temperature", "n_prompt")
    return [
        Example(**{k: each[k] for k in fields}, ids=ids.tolist())
        for each, ids in zip(about_shard(folder, number), parts, strict=True)
    ]


def read_folder(folder: Path, splits: Iterable[str]) -> list[Example]:
    """All sequences of the given splits. Raises ValueError where there are none."""
    read_recipe(folder)
    wanted = set(splits)
    found = [s for number in shard_numbers(folder) for s in read_shard(folder, number) if s.split in wanted]
    if not found:
        raise ValueError(f"{folder} holds no answers to {' or '.join(sorted(wanted))} prompts yet: make more data")
    return found


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05}.json"
