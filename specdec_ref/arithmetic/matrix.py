"""A kind of weight matrix: its sizes, its parameters and its FLOP per token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Matrix:
    """`count` weight matrices of `rows` outputs by `cols` inputs; a token meets `used` of them (None: all)."""

    part: str
    rows: int
    cols: int
    count: int = 1
    used: int | None = None

    @property
    def parameters(self) -> int:
        """Parameters of all `count` matrices."""
        return self.count * self.rows * self.cols

    @property
    def flops_per_token(self) -> int:
        """2 FLOP per weight that the token meets."""
        return 2 * (self.count if self.used is None else self.used) * self.rows * self.cols
