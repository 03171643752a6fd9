"""Hidden states of texts that the target has read before, kept on disk: a second reading takes no forward pass.

Half of a training's time goes into the target's passes, and every epoch needs the same states. A token takes about
5 kB, a hundred times what its id takes, so the folder is a cache: it may be deleted, and is filled again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.llama import Llama


class StateStore:
    """States of chosen layers, in bfloat16; one process writes at a time.

    folder: a folder for each target and choice of layers is made in it. layers: as `interfaces.TreeLM` counts them.
    Raises ValueError for a target in another number format, whose states would be rounded.
    """

    def __init__(self, folder: Path, model: Llama, layers: Sequence[int]) -> None:
        if model.dtype != torch.bfloat16:
            raise ValueError(f"states are kept in bfloat16, and the target is in {model.dtype}: load it in bfloat16")
        name = f"{fingerprint(model)[:12]}-layers-" + "-".join(map(str, layers))
        self.shape = len(layers), model.config.hidden_size
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._data, self._index = self.folder / "states.bin", self.folder / "index.jsonl"
        self._where: dict[str, tuple[int, int]] = {}  # text -> its first token's place, and how many tokens
        whole = self._data.stat().st_size // self._bytes if self._data.exists() else 0
        for line in self._index.read_text(encoding="utf-8").splitlines() if self._index.exists() else ():
            try:
                key, first, n = json.loads(line)
            except ValueError:  # the last line of a run that was cut short
                continue
            if first + n <= whole:
                self._where[key] = first, n

    @property
    def _bytes(self) -> int:
        """Bytes of a token."""
        return 2 * self.shape[0] * self.shape[1]

    def read(self, ids: Sequence[int]) -> Tensor | None:
        """States `[n, layers, hidden]` of the text's n tokens, or None for one that was not written yet."""
        if (where := self._where.get(_key(ids))) is None:
            return None
        first, n = where
        bits = np.fromfile(self._data, np.int16, n * self._bytes // 2, offset=first * self._bytes)
        return torch.from_numpy(bits).view(torch.bfloat16).view(n, *self.shape)

    def write(self, ids: Sequence[int], states: Tensor) -> None:
        """Keep the states `[n, layers, hidden]` of a text. The index is written last, so half a text never counts."""
        bits = states.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
        with self._data.open("ab") as data:
            first = -(-data.tell() // self._bytes)  # after whatever a run that was cut short has left
            data.write(bytes(first * self._bytes - data.tell()))
            data.write(bits.tobytes())
        key = _key(ids)
        with self._index.open("a", encoding="utf-8") as index:
            index.write(json.dumps([key, first, len(states)]) + "\n")
        self._where[key] = first, len(states)


def _key(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest()[:24]
