"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

model_option = click.option(
    "--model", default="smollm2-135m", show_default=True, help="Catalogue name, local folder or hub id."
)
dtype_option = click.option(
    "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16 or float64."
)
gamma_option = click.option(
    "--gamma", default=8, show_default=True, type=click.IntRange(0), help="Draft tokens a round; 0 decodes plainly."
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--temperature, --top-k, --top-p, --seed."""
    for option in (
        click.option("--seed", type=int, help="Makes sampled text repeatable."),
        click.option("--top-p", type=float, help="Sample from the smallest set with this much probability."),
        click.option("--top-k", type=int, help="Sample from the k most likely tokens."),
        click.option("--temperature", default=0.0, show_default=True, help="0 is greedy."),
    ):
        command = option(command)
    return command


def make_drafter(name: str, dtype: str = "auto", device: str = "cpu") -> Any:
    """A drafter by the name used on the command line: "lookup", "none" (None), or a model to draft with."""
    if name == "none":
        return None
    from specdec_ref.draft import DraftModelDrafter, NGramDrafter

    if name == "lookup":
        return NGramDrafter()
    from specdec_ref.models.load import load_model

    return DraftModelDrafter(load_model(name, dtype, device))
