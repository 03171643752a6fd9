"""`specdec demo`: the same text, written plainly and speculatively, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from specdec_ref.cli.options import dtype_option, gamma_option, model_option

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from specdec_ref.engine import SpeculativeEngine
    from specdec_ref.interfaces import Origin
    from specdec_ref.measure.race import Race

COLOURS: dict[Origin, str] = {"accepted": "green", "corrected": "red", "bonus": "blue", "plain": "default"}
SCENES = {"open chat": "chat-1", "rewrite": "rewrite-1"}


@click.command(short_help="A real model writes the same text plainly and speculatively.")
@click.option("--prompt", help="Your own prompt instead of the two built-in ones.")
@model_option
@gamma_option
@click.option("--max-new-tokens", default=80, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=6, show_default=True, type=click.IntRange(1), help="Timed pairs of runs.")
@dtype_option
def demo(prompt: str | None, model: str, gamma: int, max_new_tokens: int, repeats: int, dtype: str) -> None:
    """Watch a real model write the same text plainly and speculatively.

    Drafts are looked up in the text so far: no second model. Each prompt is first run before your eyes, then both
    ways are timed in turns for the ratio.
    """
    import torch
    from rich.console import Console
    from rich.markup import escape

    from specdec_ref.draft import NGramDrafter
    from specdec_ref.engine import SpeculativeEngine
    from specdec_ref.engine.prompt import as_chat
    from specdec_ref.interfaces import ORIGINS
    from specdec_ref.measure import fastest_threads
    from specdec_ref.measure.race import race
    from specdec_ref.models.load import load_model
    from specdec_ref.prompts import prompt as built_in

    console = Console()
    with console.status(f"loading {model}"):
        target = load_model(model, dtype)
        torch.set_num_threads(fastest_threads(target))
    plain = SpeculativeEngine(target)
    speculative = SpeculativeEngine(target, NGramDrafter(), gamma)
    scenes = {"your prompt": prompt} if prompt is not None else {name: built_in(id).user for name, id in SCENES.items()}
    for name, text in scenes.items():
        console.rule(escape(f"{name}: {_first_line(text)}"))
        message = as_chat(text, target.tokenizer)
        _watch(console, plain, speculative, message, max_new_tokens)
        with console.status(f"timing {repeats} pairs of runs"):
            result = race(
                lambda m=message: plain.generate(m, max_new_tokens),  # type: ignore[misc]
                lambda m=message: speculative.generate(m, max_new_tokens),  # type: ignore[misc]
                repeats,
            )
        _report(console, result, target, message)
    key = ", ".join(f"[{colour} underline]{name}[/]: {ORIGINS[name]}" for name, colour in COLOURS.items())
    console.print(f"\n{key}.")
    console.print("Times are of this machine, now; only their ratio means something.")


def _first_line(text: str) -> str:
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= 70 else line[:67] + "..."


def _watch(
    console: Console, plain: SpeculativeEngine, speculative: SpeculativeEngine, message: Any, n_tokens: int
) -> None:
    """Write left, then right, as the tokens come; the right side coloured by the tokens' origin."""
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from specdec_ref.engine.text import pieces

    left, right = Text(), Text()
    footers = ["", ""]

    def both() -> RenderableType:
        table = Table(expand=True, show_footer=True)
        table.add_column("plainly, one token per pass", footer=footers[0], ratio=1)
        table.add_column("speculatively", footer=footers[1], ratio=1)
        table.add_row(left, right)
        return table

    with Live(both(), console=console, refresh_per_second=12) as live:
        for side, (engine, text) in enumerate([(plain, left), (speculative, right)]):
            stream = engine.stream(message, n_tokens)
            for chunk in stream:
                text.append(chunk.text)
                live.update(both())
            result = stream.result
            if side:
                text.truncate(0)
                for piece, origin in pieces(result.tokens, result.stats.origins, engine.target.tokenizer):
                    text.append(
                        piece, style=f"{COLOURS[origin]} underline" if origin == "accepted" else COLOURS[origin]
                    )
            stats = result.stats
            footers[side] = f"{stats.emitted} tokens, {stats.rounds} target passes" + (
                f", {stats.accepted} of {stats.tested} tested drafts accepted" if side else ""
            )
            live.update(both())


def _report(console: Console, result: Race, target: Any, message: Any) -> None:
    from specdec_ref.measure.race import describe_difference

    a, b = (sum(s) / len(s) for s in (result.first_seconds, result.second_seconds))
    console.print(f"decoding: plain {a:.2f} s, speculative {b:.2f} s per run. Speculation: {result.verdict()}.")
    console.print(describe_difference(result, target, message), markup=False)
