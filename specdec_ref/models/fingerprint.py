"""Which model this is, whatever its number format: drafts are trained for one target and refuse another."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from specdec_ref.models.llama import Llama

ROWS = 1_024
"""Rows of the embedding that are read."""


def fingerprint(model: Llama) -> str:
    """Hex sha256 of the model's sizes, its norms and the first rows of its embedding, rounded to bfloat16.

    The same for a model in 4 bits, in bfloat16, in float32 and in float64; another one for other weights, as those of
    the same model before it was quantised. Matrices are not read: their layout differs from machine to machine.
    """
    digest = hashlib.sha256(repr(model.config).encode())
    norms = [m.weight for _, m in sorted(model.named_modules()) if isinstance(m, nn.RMSNorm)]
    for weight in (model.embed.weight[:ROWS], *norms):
        digest.update(weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
