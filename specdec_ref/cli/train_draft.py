"""`specdec train-draft`: data from the target, drafts trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specdec_ref.cli.options import model_option


@click.group("train-draft", short_help="Make training data and train drafts.")
def train_draft() -> None:
    """Train small drafts for a target, on the target's own answers: first `data`, then `run`."""


def _part(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    """ "1/2" as (0, 2). Raises BadParameter."""
    try:
        i, n = map(int, text.split("/"))
    except ValueError:
        i, n = 0, 0
    if not 1 <= i <= n:
        raise click.BadParameter(f"{text!r}: give 1/2 and 2/2 to two processes that fill one folder")
    return i - 1, n


def load_target(name: str, dtype: str) -> Any:
    """The target with its weights in 16 or 32 bits, since it takes in many tokens at a time.

    Raises ClickException for a model other than the reference Llama.
    """
    from specdec_ref.models.llama import Llama
    from specdec_ref.models.load import load_model

    model = load_model(name, dtype, weights="full")
    if not isinstance(model, Llama):
        raise click.ClickException(f"{name} is no Llama that this package runs itself: drafts are trained for those")
    return model


minutes_option = click.option("--limit-minutes", type=click.FloatRange(0), help="Stop after this time; go on later.")


@train_draft.command(short_help="The target answers thousands of prompts.")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the shards.")
@click.option("--tokens", default=3_000_000, show_default=True, type=click.IntRange(1), help="Answer tokens in all.")
@click.option("--seed", default=0, show_default=True, help="Decides prompts, their order and every draw.")
@click.option("--rows", default=16, show_default=True, type=click.IntRange(1), help="Sequences per pass.")
@click.option(
    "--part", default="1/1", show_default=True, callback=_part, help="1/2 and 2/2: two processes, one folder."
)
@click.option("--max-new-tokens", default=256, show_default=True, type=click.IntRange(1), help="Longest answer.")
@minutes_option
@model_option
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16.")
@click.option("--show", is_flag=True, help="Only print how many prompts of which kind there are, and some of them.")
def data(
    out: Path,
    tokens: int,
    seed: int,
    rows: int,
    part: tuple[int, int],
    max_new_tokens: int,
    limit_minutes: float | None,
    model: str,
    dtype: str,
    show: bool,
) -> None:
    """Write answers of the target to our own prompts into a folder, greedy and sampled.

    A run that was stopped, or a larger --tokens, goes on where the folder ends.
    """
    from tqdm import tqdm

    from specdec_ref.train.data import DataOptions, make_data, progress

    options = DataOptions(seed=seed, max_new_tokens=max_new_tokens)
    if show:
        _show(seed)
        return
    target = load_target(model, dtype)
    held = progress(out)
    with tqdm(total=tokens, initial=held.tokens["train"], unit=" tokens", unit_scale=True, smoothing=0.05) as bar:
        done = make_data(
            target,
            out,
            tokens,
            options,
            n_rows=rows,
            part=part,
            limit_seconds=None if limit_minutes is None else 60 * limit_minutes,
            report=bar.update,
        )
    click.echo(
        f"{out}: {done.answers:,} answers; answer tokens: "
        + ", ".join(f"{n:,} {split}" for split, n in sorted(done.tokens.items()))
    )


def _show(seed: int) -> None:
    """Counts of prompts by kind and split, and one of each kind."""
    from collections import Counter

    from specdec_ref.train.prompts import build_prompts

    prompts = build_prompts(seed)
    counts = Counter((p.kind, p.split) for p in prompts)
    for kind in dict.fromkeys(p.kind for p in prompts):
        split = ", ".join(f"{n:,} {s}" for (k, s), n in sorted(counts.items()) if k == kind)
        example = next(p for p in reversed(prompts) if p.kind == kind)
        click.echo(f"{kind}: {split}\n    " + "\n >> ".join(example.turns).replace("\n", "\n    "))
    click.echo(f"{len(prompts):,} prompts")
