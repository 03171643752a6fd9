"""How many bytes a number takes in memory, with the scales that block formats carry.

A format stores each row of a matrix, or each head's key or value vector, on its own, so a row never shares a
scale with the next one. Sources: llama.cpp `ggml-common.h` for the Q formats, the OCP microscaling
specification v1.0 for mxfp4, and KIVI (arXiv 2402.02750) for integer groups with a scale and a zero point.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdec_ref.arithmetic.lookup import look_up


@dataclass(frozen=True)
class NumberFormat:
    """`bits` per value, and `scale_bytes` for every `group` of neighbouring values in a row.

    `group` None means that the whole row shares one scale. `whole_groups` formats are made of blocks that
    cannot be cut short. A single scale for a whole tensor is too small to count, so `fp8` has none.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    group: int | None = None
    whole_groups: bool = False

    def nbytes(self, row: int, rows: int = 1) -> int:
        """Exact bytes of `rows` rows of `row` values each, scales included.

        Raises ValueError if `row` cannot be stored in this format.
        """
        if row < 0 or rows < 0:
            raise ValueError(f"got {rows} rows of {row} values; sizes must not be negative")
        groups = 1 if self.group is None else -(-row // self.group)
        if self.whole_groups and self.group and row % self.group:
            raise ValueError(
                f"{self.name} stores whole blocks of {self.group} values; a row of {row} is not a multiple: "
                f"take a format whose last group may be short, such as int{self.bits}-g{self.group}"
            )
        return rows * (-(-row * self.bits // 8) + groups * self.scale_bytes)


FORMATS: dict[str, NumberFormat] = {
    fmt.name: fmt
    for fmt in (
        NumberFormat("fp32", 32),
        NumberFormat("bf16", 16),
        NumberFormat("fp16", 16),
        NumberFormat("fp8", 8),
        NumberFormat("int8", 8, scale_bytes=2),
        NumberFormat("q8-0", 8, scale_bytes=2, group=32, whole_groups=True),
        NumberFormat("q4-0", 4, scale_bytes=2, group=32, whole_groups=True),
        NumberFormat("q4-1", 4, scale_bytes=4, group=32, whole_groups=True),
        NumberFormat("mxfp4", 4, scale_bytes=1, group=32, whole_groups=True),
        NumberFormat("int4-g32", 4, scale_bytes=4, group=32),
        NumberFormat("int4-g64", 4, scale_bytes=4, group=64),
        NumberFormat("int4-g128", 4, scale_bytes=4, group=128),
    )
}


def number_format(name: str | NumberFormat) -> NumberFormat:
    """The format called `name`: one of `FORMATS`, or `int<bits>-g<group>` for any integer groups.

    Underscores and capitals do not matter (`Q4_1` is `q4-1`). Raises `UnknownName` with the nearest names.
    """
    if isinstance(name, NumberFormat):
        return name
    groups = re.fullmatch(r"int([1-8])-g([1-9]\d*)", name.lower())
    if groups:
        bits, group = int(groups[1]), int(groups[2])
        return NumberFormat(f"int{bits}-g{group}", bits, scale_bytes=4, group=group)
    return look_up(FORMATS, name, "number format")


@dataclass(frozen=True)
class WeightFormats:
    """Which format each part of a model's weights is kept in.

    `layers` holds the matrices of the layers, `experts` those of mixture-of-experts blocks (None: as the
    layers), `head` the embedding and the output head, `rest` routers, norms and biases.
    """

    layers: NumberFormat
    head: NumberFormat
    rest: NumberFormat
    experts: NumberFormat | None = None

    @property
    def for_experts(self) -> NumberFormat:
        """The format of the experts' matrices."""
        return self.experts or self.layers


def weight_formats(weights: str | WeightFormats) -> WeightFormats:
    """The formats of a model's weights from one name.

    A float format of 16 or 32 bits is used throughout. A narrower one is used for the layers' matrices, and
    the rest stays in bf16, as most quantised checkpoints have it. `gguf-q4-1` (Q4_1 layers, Q8_0 embedding
    and head, 32-bit norms) and `gpt-oss` (mxfp4 experts, bf16 otherwise) are two mixtures in use.
    """
    if isinstance(weights, WeightFormats):
        return weights
    bf16 = FORMATS["bf16"]
    mixtures = {
        "gguf-q4-1": WeightFormats(layers=FORMATS["q4-1"], head=FORMATS["q8-0"], rest=FORMATS["fp32"]),
        "gpt-oss": WeightFormats(layers=bf16, head=bf16, rest=bf16, experts=FORMATS["mxfp4"]),
    }
    key = weights.lower().replace("_", "-")
    if key in mixtures:
        return mixtures[key]
    layers = number_format(weights)
    rest = layers if layers.bits >= 16 else bf16
    return WeightFormats(layers=layers, head=rest, rest=rest)
