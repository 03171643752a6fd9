"""Options that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

model_option = click.option(
    "--model", default="smollm2-135m", show_default=True, help="Catalogue name, local folder, GGUF file or hub id."
)
dtype_option = click.option(
    "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16 or float64."
)
weights_option = click.option(
    "--weights",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "full", "q4", "q8"]),
    help="q4 keeps a GGUF file's 4 and 8 bits as they are, full converts all to --dtype, q8 rounds a Llama to 8 bits.",
)
activations_option = click.option(
    "--activations",
    default="16",
    show_default=True,
    type=click.Choice(["16", "8"]),
    help="Bits of activations where weights stay in 4 bits: 16, or 8, faster and less accurate.",
)
gamma_option = click.option(
    "--gamma", default=8, show_default=True, type=click.IntRange(0), help="Draft tokens per round; 0 decodes plainly."
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
    """A drafter by the name used on the command line: "lookup", "suffix", "eagle" (the trained head that comes with the
    package), "early-exit:N" (the target's first N layers), "none" (None), the file of a trained head (.safetensors), a
    model to draft with, or "combined:" and one of these."""
    if name == "none":
        return None
    from specdec_ref.draft import (
        CombinedDrafter,
        DraftModelDrafter,
        EagleDrafter,
        EarlyExitDrafter,
        NGramDrafter,
        SuffixDrafter,
    )

    if name == "lookup":
        return NGramDrafter()
    if name == "suffix":
        return SuffixDrafter()
    if name == "eagle":
        return EagleDrafter.read()
    if name.startswith("combined:"):
        other = make_drafter(name.partition(":")[2] or "none", dtype, device)
        if other is None:
            raise click.UsageError(f"--draft {name}: say who drafts where no match is long: combined:MODEL")
        return CombinedDrafter(SuffixDrafter(), other)
    exit_, _, n_layers = name.partition(":")
    if exit_ == "early-exit":
        if not n_layers.isdecimal():
            raise click.UsageError(f"--draft {name}: say after how many layers, for instance early-exit:20")
        return EarlyExitDrafter(int(n_layers))
    if name.endswith(".safetensors"):
        return EagleDrafter.read(name)
    from specdec_ref.models.load import load_model

    return DraftModelDrafter(load_model(name, dtype, device))


def standard_input() -> str:
    """All text from standard input. Raises UsageError where it is closed."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: give the prompt as an argument")
    return sys.stdin.read()


def text_of(path: Path) -> str:
    """A file as text. Raises ClickException for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def read_json(path: Path) -> Any:
    """A file's JSON. Raises ClickException for what is none."""
    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error


def check_device(context: click.Context, parameter: click.Parameter, device: str) -> str:
    """A device that PyTorch knows and this machine has; a callback for click. Raises BadParameter."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise click.BadParameter(f"{device!r} is no device: give cpu, or cuda where there is a GPU") from None
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise click.BadParameter(f"this machine or this PyTorch has no {kind} device that can be used: give cpu")
    return device
