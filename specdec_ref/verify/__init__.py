"""The proposal, and the rules that decide which of it stays."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdec_ref.sampling import RandomSource
from specdec_ref.verify.proposal import Proposal, Verdict
from specdec_ref.verify.tokenwise import acceptance_probability, residual_distribution, verify_tokenwise

Rule = Callable[[Proposal, Tensor, RandomSource], Verdict]

RULES: dict[str, Rule] = {"token": verify_tokenwise}

__all__ = [
    "RULES",
    "Proposal",
    "Rule",
    "Verdict",
    "acceptance_probability",
    "residual_distribution",
    "verify_tokenwise",
]
