"""`specdec train-draft`: data from the target, drafts trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specdec_ref.cli.options import model_option

KINDS = ("eagle", "block", "medusa", "lm")
"""As in `train.kinds`, which takes seconds to import."""


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


@train_draft.command("run", short_help="Train a draft on a folder of data.")
@click.option(
    "--kind", required=True, type=click.Choice(KINDS), help="EAGLE-style head, block drafter, Medusa heads, draft LM."
)
@click.option(
    "--data", required=True, type=click.Path(path_type=Path, exists=True, file_okay=False), help="From `data`."
)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the draft.")
@click.option("--minutes", required=True, type=click.FloatRange(0, min_open=True), help="Of training in all.")
@minutes_option
@click.option("--layers", help="0,1,28,29: the target's layers that a draft LM keeps, or whose states a head reads.")
@click.option("--places", default=5, show_default=True, type=click.IntRange(1), help="Tokens drafted per round.")
@click.option(
    "--vocabulary", default=8192, show_default=True, type=click.IntRange(1), help="Tokens a head drafts from."
)
@click.option("--width", type=float, help="Feed-forward part, in the target's width: 2 for eagle, 1 for block.")
@click.option("--depth", default=1, show_default=True, type=click.IntRange(1), help="Layers of a block drafter.")
@click.option("--learning-rate", default=1e-3, show_default=True)
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1), help="Answers per step.")
@click.option("--anchors", default=512, show_default=True, type=click.IntRange(1), help="Trained places per step.")
@click.option(
    "--start", type=click.Path(path_type=Path, exists=True), help="An earlier draft.safetensors to begin from."
)
@click.option("--keep-states", is_flag=True, help="Keep the target's states, 5 kB per token: later epochs are faster.")
@click.option("--measure-every", default=10.0, show_default=True, help="Minutes between points of the curve.")
@click.option("--seed", default=0, show_default=True)
@model_option
@click.option("--dtype", default="auto", show_default=True, help="Of the target's pass: auto, float32 or bfloat16.")
def run_command(
    kind: str,
    data: Path,
    out: Path,
    minutes: float,
    limit_minutes: float | None,
    layers: str | None,
    places: int,
    vocabulary: int,
    width: float | None,
    depth: int,
    learning_rate: float,
    batch: int,
    anchors: int,
    start: Path | None,
    keep_states: bool,
    measure_every: float,
    seed: int,
    model: str,
    dtype: str,
) -> None:
    """Train a draft, measure it on prompts that it was not trained on, and write it with its model card.

    A run that was stopped goes on from its last checkpoint.
    """
    from tqdm import tqdm

    from specdec_ref.train.kinds import DraftOptions
    from specdec_ref.train.loop import RunOptions, State
    from specdec_ref.train.run import run

    draft = DraftOptions(kind, _numbers(layers), vocabulary, places, width, depth, start=start)
    options = RunOptions(
        minutes, seed=seed, learning_rate=learning_rate, batch=batch, anchors=anchors, measure_every=measure_every
    )
    target = load_target(model, dtype)
    with tqdm(total=60 * minutes, unit="s", bar_format="{l_bar}{bar}| {n:.0f} of {total:.0f} s{postfix}") as bar:

        def show(state: State) -> None:
            bar.update(min(state.seconds, bar.total) - bar.n)
            last = {k: f"{v:.2f}" for k, v in state.curve[-1].items() if " " in k} if state.curve else {}
            bar.set_postfix(step=state.step, anchors=state.anchors, loss=f"{state.loss:.3f}", **last)

        limit = None if limit_minutes is None else 60 * limit_minutes
        result = run(
            draft,
            options,
            target,
            lambda: load_target(model, "float32"),
            data,
            out,
            stop_after=limit,
            keep_states=keep_states,
            report=show,
        )
    if result is None:
        click.echo(f"{out}: stopped; the same command goes on from here")
        return
    for name, figures in result["tokens_per_round"].items():
        click.echo(f"{name}: {figures['mean']:.2f} tokens per round, mean over kinds")
    click.echo(f"{out}: draft, report and model card written")


@train_draft.command(short_help="A whole Hugging Face folder of a draft LM.")
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder to write.")
@model_option
def export(draft: Path, out: Path, model: str) -> None:
    """Write DRAFT, a folder or file of `run --kind lm`, as a model that transformers loads.

    The file itself holds layers only; embedding, head and tokenizer come from the target.
    """
    from specdec_ref.draft.for_target import check_target
    from specdec_ref.draft.weights import read_draft
    from specdec_ref.train.draft_lm import export_draft_lm
    from specdec_ref.train.run import WEIGHTS

    tensors, about = read_draft(draft / WEIGHTS if draft.is_dir() else draft)
    if about["kind"] != "lm":
        raise click.ClickException(f"{draft} is a draft of kind {about['kind']}: only a draft LM stands alone")
    target = load_target(model, "float32")
    check_target(target, target.config.hidden_size, about["target"])
    export_draft_lm(target, tensors, about["sizes"]["n_layers"], out)
    click.echo(f"{out}: give it to transformers as assistant_model, or to this package by its path")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """ "0,1,29" as (0, 1, 29). Raises BadParameter."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: give numbers such as 0,1,28,29", param_hint="--layers") from None
