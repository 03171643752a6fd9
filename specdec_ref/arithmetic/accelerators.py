"""Accelerators: the peak bandwidth, peak dense matrix rates and memory of chips."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from specdec_ref.arithmetic.lookup import look_up, plain_name


@dataclass(frozen=True)
class Accelerator:
    """A chip's peaks: `bandwidth` in bytes/s, `capacity` in bytes, `rates` in dense FLOP/s by number format.

    A measured machine is one, too. Raises ValueError for peaks that are not
    positive, and for a rate that is marked as reached only with structured sparsity.
    """

    name: str
    bandwidth: float
    capacity: int
    rates: Mapping[str, float]
    dense: bool = True
    label: str = ""
    source: str = ""
    date: str = ""
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.capacity <= 0 or not self.rates or min(self.rates.values()) <= 0:
            raise ValueError(f"{self.name}: bandwidth, capacity and every rate must be positive")
        if not self.dense:
            raise ValueError(
                f"{self.name}: the rates are marked as sparse; give the dense ones (for 2:4 sparsity, half)"
            )

    def rate(self, dtype: str = "bf16") -> float:
        """Peak dense matrix rate in FLOP/s for `dtype`. Raises ValueError where the chip lists none."""
        if dtype not in self.rates:
            raise ValueError(f"{self.name} lists no {dtype} rate, only {', '.join(self.rates)}")
        return self.rates[dtype]

    def ridge(self, dtype: str = "bf16") -> float:
        """FLOP/byte at which work stops being bound by memory: rate / bandwidth (Williams et al. 2009)."""
        return self.rate(dtype) / self.bandwidth

    @property
    def half_precision(self) -> str:
        """The 16-bit format that the chip multiplies: bf16, or fp16 on chips from before it."""
        return "bf16" if "bf16" in self.rates or "fp16" not in self.rates else "fp16"


@cache
def accelerators() -> dict[str, Accelerator]:
    """The known chips by name, each with its source and date."""
    text = resources.files(__package__).joinpath("accelerators.json").read_text(encoding="utf-8")
    return {name: Accelerator(name, **row) for name, row in json.loads(text)["accelerators"].items()}


def accelerator(name: str) -> Accelerator:
    """The chip called `name`, such as `h100-sxm`. Raises `UnknownName` with the nearest known names."""
    return look_up(accelerators(), plain_name(name), "chip")
