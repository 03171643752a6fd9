"""Bytes as text. GB is 10^9 bytes and GiB is 2^30: 7% apart, and often confused."""

from __future__ import annotations


def size_text(nbytes: float) -> str:
    """`nbytes` in GB and GiB, or in MB and MiB below one GB: `10.74 GB (10.00 GiB)`."""
    if abs(nbytes) >= 1e9:
        return f"{nbytes / 1e9:,.2f} GB ({nbytes / 2**30:,.2f} GiB)"
    return f"{nbytes / 1e6:,.2f} MB ({nbytes / 2**20:,.2f} MiB)"
