"""Simulations: a server's cache memory, with and without paging."""

from specdec_course.simulate.paging import (
    Holding,
    Lengths,
    Policy,
    Waste,
    block_utilisation,
    draw_lengths,
    fit_samples,
    reservation,
    serve_contiguous,
    serve_paged,
)

__all__ = [
    "Holding",
    "Lengths",
    "Policy",
    "Waste",
    "block_utilisation",
    "draw_lengths",
    "fit_samples",
    "reservation",
    "serve_contiguous",
    "serve_paged",
]
