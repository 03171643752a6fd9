"""`specdec generate`: text from a prompt, streamed."""

from __future__ import annotations

import json

import click

from specdec_ref.cli.options import (
    activations_option,
    dtype_option,
    gamma_option,
    make_drafter,
    model_option,
    sampling_options,
    standard_input,
    weights_option,
)


@click.command(short_help="Text from a prompt, streamed.")
@click.argument("prompt")
@model_option
@click.option(
    "--draft",
    default="lookup",
    show_default=True,
    help="lookup, suffix, eagle (the trained head that comes with the package), early-exit:LAYERS, the file of another "
    "head, a model to draft with, combined:OTHER (suffix in long matches, otherwise the other one), or none.",
)
@gamma_option
@click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(0))
@sampling_options
@click.option("--stop", multiple=True, help="End the text before this string; may be given again.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print tokens, text, reason and counts as JSON.")
@dtype_option
@weights_option
@activations_option
def generate(
    prompt: str,
    model: str,
    draft: str,
    gamma: int,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    raw: bool,
    as_json: bool,
    dtype: str,
    weights: str,
    activations: str,
) -> None:
    """Generate text after PROMPT ("-" reads it from standard input).

    The text goes to standard output as it is committed, the counts to standard error.
    """
    from specdec_ref.engine import SpeculativeEngine
    from specdec_ref.engine.prompt import as_chat
    from specdec_ref.models.load import load_model

    text = standard_input() if prompt == "-" else prompt
    target = load_model(model, dtype, weights=weights, activations=int(activations))
    engine = SpeculativeEngine(target, make_drafter(draft, dtype), gamma)
    stream = engine.stream(
        text if raw else as_chat(text, target.tokenizer),
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
    )
    for chunk in stream:
        if not as_json:
            click.echo(chunk.text, nl=False)  # which flushes
    result = stream.result
    stats = result.stats
    if as_json:
        click.echo(
            json.dumps(
                {
                    "tokens": result.tokens,
                    "text": result.text,
                    "finish_reason": result.finish_reason,
                    "stats": stats.as_dict(),
                }
            )
        )
        return
    click.echo()
    click.echo(
        f"{stats.emitted} tokens in {stats.seconds:.2f} s on this machine, now; {stats.rounds} target passes, "
        f"{stats.accepted} of {stats.tested} tested drafts accepted; ended by {result.finish_reason}",
        err=True,
    )
