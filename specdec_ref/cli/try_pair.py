"""`specdec try`: what speculation would give your own pair of models, before you deploy it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specdec_ref.cli.options import check_device, dtype_option, make_drafter, sampling_options, text_of

if TYPE_CHECKING:
    from specdec_ref.measure.pair import Tryout


@click.command("try", short_help="Acceptance, costs and speedup of your own pair of models.")
@click.option("--target", "target_name", default="smollm2-135m", show_default=True, help="Name, folder or hub id.")
@click.option(
    "--draft", default="lookup", show_default=True, help="As in generate: lookup, suffix, eagle, a model, ..."
)
@click.option(
    "--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="One prompt per line; else our own."
)
@click.option("--gamma", default=8, show_default=True, type=click.IntRange(1), help="The largest gamma to be tried.")
@click.option("--max-new-tokens", default=48, show_default=True, type=click.IntRange(2))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Timed pairs of runs per prompt.")
@sampling_options
@click.option("--device", default="cpu", show_default=True, callback=check_device, help="cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@dtype_option
def try_pair(
    target_name: str,
    draft: str,
    prompts: Path | None,
    gamma: int,
    max_new_tokens: int,
    repeats: int,
    device: str,
    as_json: bool,
    dtype: str,
    **sampling: Any,
) -> None:
    """Measure a pair of models on this machine: acceptance by position, what a verify pass and a draft step cost, the
    speedup now, and the speedup predicted for each gamma.
    """
    from rich.console import Console

    from specdec_ref.engine.prompt import as_chat
    from specdec_ref.measure.pair import try_pair as measure
    from specdec_ref.models.load import load_model
    from specdec_ref.prompts import prompts as our_prompts

    texts = [p.user for p in our_prompts() if p.id.endswith("-1")]
    if prompts is not None:
        texts = [line for line in text_of(prompts).splitlines() if line.strip()]
        if not texts:
            raise click.UsageError(f"{prompts} has no prompt: write one per line")
    console = Console(stderr=True)
    with console.status("loading") as status:
        target = load_model(target_name, dtype, device)
        drafter = make_drafter(draft, dtype, device)
        if drafter is None:
            raise click.UsageError("--draft none drafts nothing: give lookup or a model")
        messages = [as_chat(text, target.tokenizer) for text in texts]
        result = measure(
            target,
            drafter,
            messages,
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            report=lambda what: status.update(what),
            **sampling,
        )
    if as_json:
        click.echo(json.dumps(_as_data(result)))
    else:
        _print(result, target_name, draft, len(messages))


def _as_data(result: Tryout) -> dict[str, Any]:
    return {
        "gamma": result.gamma,
        "alpha": result.alpha,
        "alpha_interval": result.alpha_interval(),
        "tested_by_position": result.tested,
        "accepted_by_position": result.accepted,
        "tokens_per_round": result.tokens_per_round,
        "verify_cost": result.verify_cost,
        "draft_cost": result.draft_cost,
        "measured_speedup": result.measured,
        "measured_range": result.measured_range,
        "predicted_speedup": {g: result.predicted(g) for g in range(1, result.gamma + 1)},
        "best_gamma": result.best[0],
        "verdict": result.verdict(),
    }


def _print(result: Tryout, target: str, draft: str, n_prompts: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    low, high = result.alpha_interval()
    console.print(f"target {target}, draft {draft}, {n_prompts} prompts; on this machine, now", highlight=False)
    console.print(
        f"acceptance rate of tested drafts {result.alpha:.2f} (95%: {low:.2f} to {high:.2f}), "
        f"{result.tokens_per_round:.2f} tokens per target pass; a draft step costs {result.draft_cost:.2f} target steps"
    )
    positions = Table(title="acceptance by position in the draft")
    for name in ("position", "tested", "accepted", "rate"):
        positions.add_column(name, justify="right")
    for i, (tested, accepted) in enumerate(zip(result.tested, result.accepted, strict=True)):
        positions.add_row(str(i + 1), str(tested), str(accepted), f"{accepted / tested:.2f}" if tested else "-")
    console.print(positions)
    gammas = Table(title="by gamma", caption="predicted for decoding alone")
    for name in ("gamma", "verify pass / plain step", "speedup predicted"):
        gammas.add_column(name, justify="right")
    for g in range(1, result.gamma + 1):
        gammas.add_row(str(g), f"{result.verify_cost[g + 1]:.2f}", f"{result.predicted(g):.2f}x")
    console.print(gammas)
    console.print(f"Verdict: {result.verdict()}")
