"""`specdec bench`: this engine beside what one would run otherwise, on this machine, with intervals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specdec_ref.cli.options import model_option, read_json
from specdec_ref.files import write_atomic

if TYPE_CHECKING:
    from specdec_ref.bench.compare import Ratio

PEERS = ("transformers", "openvino", "llamacpp")


@click.command(short_help="This engine against transformers or OpenVINO, in six domains.")
@click.option(
    "--against",
    default="",
    help="Comma-separated: transformers, openvino (pip install '.[peers]'), llamacpp (npm install node-llama-cpp).",
)
@click.option("--short", is_flag=True, help="Two prompts per domain, 32 tokens, one run each: under 3 minutes.")
@click.option(
    "--weights", default="q4,bf16", show_default=True, help="Ours: q4, q4a8 (activations in 8 bits), bf16, or several."
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your own, as JSON lines with id, domain and user.",
)
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(2))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Times that all arms take turns.")
@click.option("--gamma", default=11, show_default=True, type=click.IntRange(1), help="Most drafts per round.")
@click.option("--lookups", default="3,5,10", show_default=True, help="Settings of transformers' lookup to try.")
@click.option("--threads", type=click.IntRange(1), help="For every arm; else each library's own choice.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the record here, as JSON.")
@click.option(
    "--read", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Show a record; run nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print rows and ratios as JSON.")
@model_option
def bench(
    against: str,
    short: bool,
    weights: str,
    prompts: Path | None,
    max_new_tokens: int,
    repeats: int,
    gamma: int,
    lookups: str,
    threads: int | None,
    out: Path | None,
    read: Path | None,
    as_json: bool,
    model: str,
) -> int:
    """Time greedy generation of the same token ids by several arms that take turns, prompt by prompt.

    All arms make the same number of tokens of the same prompts. Ratios are geometric means over domains with a 95%
    interval. Close other programs first: on a busy machine nothing can be concluded, and the verdict then says so.
    """
    from rich.console import Console
    from rich.progress import Progress

    from specdec_ref.bench.arms import OURS
    from specdec_ref.bench.run import PROMPTS, first_of_each_domain, run
    from specdec_ref.bench.worker import WorkerFailed
    from specdec_ref.prompts import read_prompts

    console = Console(stderr=True)
    if read is not None:
        record: dict[str, Any] = _record(read)
    else:
        ours, peers = _names(weights, tuple(OURS), "--weights"), _names(against, PEERS, "--against")
        if not ours:
            raise click.UsageError("--weights is empty: give one or more of " + ", ".join(OURS))
        if out is not None and not os.access(out.parent, os.W_OK):  # not after an hour
            raise click.UsageError(f"--out {out}: its folder is missing or may not be written")
        chosen = read_prompts(prompts or PROMPTS)
        if short:
            chosen = first_of_each_domain(chosen, 2)
            max_new_tokens, repeats = min(max_new_tokens, 32), 1
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            try:
                record = run(
                    chosen,
                    [*ours, *peers],
                    model,
                    max_new_tokens=max_new_tokens,
                    repeats=repeats,
                    gamma=gamma,
                    lookups=[3] if short else _numbers(lookups),
                    threads=threads,
                    progress=lambda what, share: bar.update(task, description=what, completed=share),
                )
            except WorkerFailed as error:
                hint = " (pip install '.[peers]')" if "ModuleNotFoundError" in str(error) else ""
                raise click.ClickException(f"{error}{hint}") from error
        if out is not None:
            write_atomic(out, json.dumps(record, indent=1) + "\n")
    return _show(record, as_json)


def _record(path: Path) -> dict[str, Any]:
    """The record in a file. Raises ClickException for another kind of file."""
    record = read_json(path)
    needed = {"arms", "workers", "prompts", "samples", "differences", "machine", "bandwidth_bytes_per_second"}
    if not isinstance(record, dict) or needed - record.keys():
        raise click.ClickException(f"{path} is no record of this benchmark: give a file that --out wrote")
    return record


def _names(text: str, known: tuple[str, ...], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.UsageError(f"{option} {name!r} is not known: give {', '.join(known)}")
    return list(dict.fromkeys(names))


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(n) for n in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.UsageError(f"--lookups {text!r}: give whole numbers above 0, such as 3,5,10")
    return numbers


def _show(record: dict[str, Any], as_json: bool) -> int:
    """Print what the record says; 1 where an output of our own differs by more than rounding."""
    from specdec_ref.bench.compare import noise, verdict
    from specdec_ref.bench.explain import unexplained
    from specdec_ref.bench.run import comparisons, ratio, samples_of, table

    rows, faults = table(record), unexplained(record["differences"])
    domains = list(dict.fromkeys(p["domain"] for p in record["prompts"].values()))
    noises = {arm: noise(by) for arm, by in samples_of(record).items()}
    ratios = []
    for first, second, words in comparisons(record):
        whole = ratio(record, first, second)
        ratios.append(
            {
                "first": first,
                "second": second,
                "words": words,
                "ratio": _interval(whole),
                "by_domain": {d: _interval(ratio(record, first, second, d)) for d in domains},
                "decoding": _interval(ratio(record, first, second, what="tpot")),
                "decoding_by_domain": {d: _interval(ratio(record, first, second, d, "tpot")) for d in domains},
                "verdict": verdict(whole, [noises[first], noises[second]]),
            }
        )
    if as_json:
        click.echo(json.dumps({"rows": rows, "ratios": ratios, "differences": record["differences"], "faults": faults}))
        return int(bool(faults))
    _print(record, rows, ratios, domains)
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    return int(bool(faults))


def _interval(r: Ratio) -> list[float]:
    return [r.mean, r.low, r.high]


def _print(
    record: dict[str, Any], rows: list[dict[str, Any]], ratios: list[dict[str, Any]], domains: list[str]
) -> None:
    from collections import Counter

    from rich.console import Console
    from rich.table import Table

    machine = record["machine"]
    console = Console(width=max(110, Console().width))  # the tables need it, in a narrow window or a file, too
    console.print(
        f"{record['model']} on {machine['cpu']}, {machine['cores']} cores, {record['date']}; "
        f"{len(record['prompts'])} prompts, up to {record['max_new_tokens']} tokens, {record['repeats']} runs per arm",
        highlight=False,
    )
    arms = Table(title="what each arm did")
    columns = ("arm", "tokens/s", "TTFT ms", "TPOT ms", "tokens/pass", "MB/token", "of bandwidth", "noise", "memory GB")
    for i, name in enumerate(columns):
        arms.add_column(name, justify="right" if i else "left")
    for r in rows:
        mb = r["weight_bytes_per_token"]
        share = mb * r["tokens_per_second"] / record["bandwidth_bytes_per_second"] if mb else None
        arms.add_row(
            r["arm"],
            f"{r['tokens_per_second']:.1f}",
            f"{1e3 * r['ttft_seconds']:.0f}",
            f"{1e3 * r['tpot_seconds']:.1f}",
            _or_dash(r["tokens_per_pass"], ".2f"),
            _or_dash(mb and mb / 1e6, ".0f"),
            _or_dash(share, ".0%"),
            _or_dash(r["noise"], ".0%"),
            _or_dash(r["peak_bytes"] and r["peak_bytes"] / 1e9, ".1f"),
        )
    console.print(arms)
    for title, key in (("decoding alone, after the first token", "decoding"), ("all, prefill included", "ratio")):
        table = Table(title=f"times as fast, {title}: geometric mean (95% interval), and by domain")
        for i, name in enumerate(("", "all", *(d.split("-")[0] for d in domains))):
            table.add_column(name, justify="right" if i else "left")
        for r in ratios:
            mean, low, high = r[key]
            by_domain = r["by_domain" if key == "ratio" else "decoding_by_domain"]
            table.add_row(
                r["words"], f"{mean:.2f} ({low:.2f} to {high:.2f})", *(f"{d[0]:.2f}" for d in by_domain.values())
            )
        console.print(table)
    for r in ratios:
        console.print(f"{r['words']}, prefill included: {r['verdict']}", highlight=False)
    kinds = Counter((d["arm"], d["kind"]) for d in record["differences"])
    for (arm, kind), count in kinds.items():
        console.print(f"{arm}: {count} of {len(record['prompts'])} outputs diverge from the reference: {kind}")


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
