"""Weights as a GGUF file stores them, laid out for integer products: blocks of 16 outputs, group by group.

Of a group of 32 inputs a block holds, for each 8 inputs, one vector (4 bits) or two (8 bits) with 32 bits per output.
In 4 bits, bits 4k to 4k+3 are input (0, 2, 4, 6, 1, 3, 5, 7)[k]: one mask and a shift then give the pairs (0, 1),
(2, 3), (4, 5) and (6, 7) as 16 bits each, or the quadruples (0, 4, 1, 5) and (2, 6, 3, 7) as bytes. In 8 bits the two
vectors are those quadruples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specdec_ref.kernels.quantise import GROUP, OCTET

OUTPUTS = 16


@dataclass(frozen=True)
class Blocks:
    """A matrix as a GGUF file stores it, in groups of 32 inputs that share a scale.

    levels: `[out, in]`, uint8 from 0 to 15 (4 bits) or int8 (8 bits).
    scale, minimum: float16 `[out, in / 32]`; w = scale * level + minimum, and 8 bits have no minimum.
    """

    levels: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray | None = None

    @property
    def bits(self) -> int:
        """Of a level: 4 or 8."""
        return 8 if self.minimum is None else 4

    def dequantised(self) -> np.ndarray:
        """The weights that these stand for, float32 `[out, in]`."""
        out, width = self.levels.shape
        groups = self.levels.reshape(out, width // GROUP, GROUP).astype(np.float32)
        w = groups * self.scale[..., None].astype(np.float32)
        if self.minimum is not None:
            w += self.minimum[..., None].astype(np.float32)
        return w.reshape(out, width)


def packed(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Levels and scales as `product` reads them, uint8 each.

    Raises ValueError for a matrix whose outputs do not divide by 16, or its inputs by 32.
    """
    out, width = blocks.levels.shape
    if out % OUTPUTS or width % GROUP:
        raise ValueError(f"a matrix of {out} x {width}: its rows must divide by {OUTPUTS}, its columns by {GROUP}")
    n, groups = out // OUTPUTS, width // GROUP
    octets = blocks.levels.view(np.uint8).reshape(n, OUTPUTS, groups, 4, 8)[..., list(OCTET)]
    if blocks.bits == 8:
        levels = octets.reshape(n, OUTPUTS, groups, 4, 2, 4).transpose(0, 2, 3, 4, 1, 5)
        scales = blocks.scale.reshape(n, OUTPUTS, groups).transpose(0, 2, 1)
    else:
        levels = (octets[..., :4] | octets[..., 4:] << 4).transpose(0, 2, 3, 1, 4)
        both = np.stack([blocks.scale, blocks.minimum], -1)  # type: ignore[list-item]
        scales = both.reshape(n, OUTPUTS, groups, 2).transpose(0, 2, 3, 1)
    return _bytes(levels), _bytes(scales.astype(np.float16))


def some_outputs(data: np.ndarray, outs: int, chosen: np.ndarray, unit: int) -> np.ndarray:
    """Levels (unit 4) or scales (unit 2) of the chosen outputs, in their order, of a packed matrix with `outs` of them.

    Raises IndexError for an output that it does not have, ValueError for a number of them that does not divide by 16.
    """
    if len(chosen) % OUTPUTS:
        raise ValueError(f"{len(chosen)} outputs do not divide by {OUTPUTS}: repeat some of them")
    blocks = data.reshape(outs // OUTPUTS, -1, OUTPUTS, unit)
    rows = blocks[chosen // OUTPUTS, :, chosen % OUTPUTS]  # [n, parts, unit]
    return _bytes(rows.reshape(len(chosen) // OUTPUTS, OUTPUTS, -1, unit).transpose(0, 2, 1, 3))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
