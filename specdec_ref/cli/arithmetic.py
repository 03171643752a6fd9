"""`specdec roofline` and `specdec kv`: what a model costs on a chip, by calculation alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from specdec_ref.arithmetic import (
    Accelerator,
    Attention,
    ModelShape,
    StepTime,
    Work,
    accelerator,
    compute_bound_batch,
    decode,
    fit,
    kv_bytes,
    kv_bytes_per_token,
    model_shape,
    number_format,
    prefill,
    shape_from_config,
    size_text,
    step_time,
    verification,
    weight_formats,
)
from specdec_ref.cli.options import read_json

MODEL_HELP = "A known model (llama-3-70b), its hub name, or a config.json or the folder that holds one."
KV_HELP = "Format of cached keys and values: bf16, fp8, int8, int4-g64, ..."


class BadRequest(click.ClickException):
    """A request that makes no sense, reported in one line."""

    exit_code = 2


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Bad input reaches the user as one line that says what to do, not as a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadRequest(str(error)) from error


def _shape(name: str) -> ModelShape:
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        return model_shape(name)
    try:
        return shape_from_config(read_json(path), name=name)
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{path}: {error}") from error


def _four_digits(value: float) -> str:
    """`value` to four digits, without an exponent."""
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"


def _sequences(count: int) -> str:
    return f"{count:,} sequence{'' if count == 1 else 's'}"


def _print_json(values: dict[str, Any]) -> None:
    click.echo(json.dumps(values, indent=2))


def _pass_values(work: Work, time: StepTime) -> dict[str, Any]:
    return {
        **asdict(work),
        "bytes": work.bytes,
        "flop_per_byte": work.intensity,
        **asdict(time),
        "overlapped_s": time.overlapped_s,
        "serial_s": time.serial_s,
        "bound": time.bound,
    }


@click.command(short_help="What bounds a model on a chip: prefill, decode, verify.")
@click.option("--model", required=True, help=MODEL_HELP)
@click.option("--chip", required=True, help="A known chip, such as h100-sxm.")
@click.option("--tp", default=1, show_default=True, help="Tensor-parallel degree: chips that share the model.")
@click.option("--context", default=1024, show_default=True, help="Tokens in the cache when decoding.")
@click.option("--batch", default=1, show_default=True, help="Sequences decoded together.")
@click.option("--prompt", default=1024, show_default=True, help="Tokens of each prompt in the prefill.")
@click.option("--gamma", default=5, show_default=True, help="Drafted tokens that a verify pass checks.")
@click.option("--weights", default="bf16", show_default=True, help="Format of the weights.")
@click.option("--kv-dtype", default="bf16", show_default=True, help=KV_HELP)
@click.option("--compute-dtype", default=None, help="Format multiplied in [default: the chip's 16-bit one].")
@click.option("--json", "as_json", is_flag=True, help="Plain integers in bytes, floats in seconds.")
def roofline(
    model: str,
    chip: str,
    tp: int,
    context: int,
    batch: int,
    prompt: int,
    gamma: int,
    weights: str,
    kv_dtype: str,
    compute_dtype: str | None,
    as_json: bool,
) -> None:
    """What bounds a model on a chip: prefill, decode and verify against the roofline.

    Times are lower bounds: peaks of the datasheet, no activations, no launches, no synchronisation.
    """
    with _one_line_errors():
        shape, device = _shape(model), accelerator(chip)
        rank = shape.shard(tp)
        dtype = compute_dtype or device.half_precision
        formats: dict[str, Any] = {"weights": weight_formats(weights), "kv": number_format(kv_dtype)}
        passes = {
            "prefill": prefill(rank, prompt, batch, **formats),
            "decode": decode(rank, context, batch, **formats),
            "verify": verification(rank, gamma, context, batch, **formats),
        }
        times = {name: step_time(work, device, dtype) for name, work in passes.items()}
        room = fit(shape, device, max(1, context + gamma + 1), tp=tp, **formats)
        crossing = compute_bound_batch(rank, device, context=context, dtype=dtype, **formats)
    step = times["decode"].overlapped_s
    values: dict[str, Any] = {
        "model": shape.name,
        "parameters": shape.parameters,
        "chip": device.name,
        "tp": tp,
        "context": context,
        "batch": batch,
        "prompt": prompt,
        "gamma": gamma,
        "weights": weights,
        "kv_dtype": kv_dtype,
        "compute_dtype": dtype,
        "ridge_flop_per_byte": device.ridge(dtype),
        "bytes_are": "of one chip",
        "weight_bytes": room.weight_bytes,
        "usable_bytes": room.usable_bytes,
        "weights_fit": room.weights_fit,
        "sequences_that_fit": room.sequences,
        "passes": {name: _pass_values(passes[name], times[name]) for name in passes},
        "decode_tokens_per_s_at_most": batch / step,
        "verify_cost_in_decode_steps": times["verify"].overlapped_s / step,
        "compute_bound_batch": crossing,
    }
    if as_json:
        _print_json(values)
    else:
        _print_roofline(values, device, passes, times)


def _print_roofline(
    values: dict[str, Any], device: Accelerator, passes: dict[str, Work], times: dict[str, StepTime]
) -> None:
    tp, dtype = values["tp"], values["compute_dtype"]
    console = Console(highlight=False, soft_wrap=True)
    each = "" if tp == 1 else f", each of {tp} chips"
    console.print(f"{values['model']}: {values['parameters']:,} parameters, weights {values['weights']}")
    console.print(
        f"{device.label or device.name}: {device.bandwidth / 1e12:g} TB/s, "
        f"{device.rate(dtype) / 1e12:g} TFLOP/s dense {dtype}, ridge {device.ridge(dtype):.0f} FLOP/byte"
    )
    fits = "fit" if values["weights_fit"] else "do NOT fit"
    console.print(
        f"weights{each}: {size_text(values['weight_bytes'])}; they {fits} in the usable "
        f"{size_text(values['usable_bytes'])}, with room for {_sequences(values['sequences_that_fit'])}"
    )
    table = Table(
        title=f"one pass{each}: batch {values['batch']}, context {values['context']:,}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for heading in ("pass", "tokens", "TFLOP", "GB moved", "FLOP/byte", "memory ms", "compute ms", "bound"):
        table.add_column(heading, justify="left" if heading in ("pass", "bound") else "right", no_wrap=True)
    for name, work in passes.items():
        time = times[name]
        numbers = (work.flops / 1e12, work.bytes / 1e9, work.intensity, time.memory_s * 1e3, time.compute_s * 1e3)
        table.add_row(name, f"{work.tokens:,}", *map(_four_digits, numbers), time.bound)
    console.print(table)
    console.print(f"decode: at most {values['decode_tokens_per_s_at_most']:,.1f} tokens/s in all")
    console.print(f"verify: {values['gamma']} drafts cost {values['verify_cost_in_decode_steps']:.2f} decode steps")
    crossing = values["compute_bound_batch"]
    console.print(
        "decode stays memory-bound at every batch: each sequence brings its own cache to read"
        if crossing is None
        else f"decode turns compute-bound at batch {crossing:,}"
        + (", more than fit" if crossing > values["sequences_that_fit"] else "")
    )


@click.command(short_help="The size of the key-value cache, scales included.")
@click.option("--model", required=True, help=MODEL_HELP)
@click.option("--context", default=8192, show_default=True, help="Tokens of each sequence.")
@click.option("--batch", default=1, show_default=True, help="Sequences.")
@click.option("--kv-dtype", default="bf16", show_default=True, help=KV_HELP)
@click.option("--tp", default=1, show_default=True, help="Tensor-parallel degree.")
@click.option("--block-size", default=1, show_default=True, help="Tokens per block of a paged cache; 1: not paged.")
@click.option("--chip", default=None, help="Also say how many sequences fit on this chip.")
@click.option("--weights", default="bf16", show_default=True, help="Format of the weights, for --chip.")
@click.option("--json", "as_json", is_flag=True, help="Plain integers in bytes.")
def kv(
    model: str,
    context: int,
    batch: int,
    kv_dtype: str,
    tp: int,
    block_size: int,
    chip: str | None,
    weights: str,
    as_json: bool,
) -> None:
    """The size of the key-value cache, scales included.

    A layer with a sliding window keeps no more than its window, in whole blocks. Many caches keep every token there,
    too, and hide the old ones with a mask: where it makes a difference, both sizes are shown.
    """
    with _one_line_errors():
        shape = _shape(model)
        rank = shape.shard(tp)
        of_rank = kv_bytes(rank, context, batch, kv_dtype, block_size=block_size)
        kept = kv_bytes(shape, context, batch, kv_dtype, block_size=block_size, keep_all=True)
        values: dict[str, Any] = {
            "model": shape.name,
            "context": context,
            "batch": batch,
            "kv_dtype": kv_dtype,
            "tp": tp,
            "block_size": block_size,
            "bytes_per_token": kv_bytes_per_token(shape, kv_dtype),
            "bytes_per_sequence": kv_bytes(shape, context, 1, kv_dtype, block_size=block_size),
            "bytes": kv_bytes(shape, context, batch, kv_dtype, block_size=block_size),
            "bytes_on_each_chip": of_rank,
            "bytes_if_windowed_layers_keep_all": kept,
        }
        if chip is not None:
            device = accelerator(chip)
            room, room_if_kept = (
                fit(shape, device, context, weights=weights, kv=kv_dtype, tp=tp, block_size=block_size, keep_all=keep)
                for keep in (False, True)
            )
            values |= {
                "chip": device.name,
                "weight_bytes_on_each_chip": room.weight_bytes,
                "usable_bytes_on_each_chip": room.usable_bytes,
                "weights_fit": room.weights_fit,
                "sequences_that_fit": room.sequences,
                "sequences_that_fit_if_windowed_layers_keep_all": room_if_kept.sequences,
            }
    if as_json:
        _print_json(values)
        return
    table = Table(title=f"key-value cache of {shape.name}, {kv_dtype}", show_header=False)
    table.add_row("layers", layers_text(shape))
    table.add_row("per token", f"{values['bytes_per_token']:,} bytes")
    table.add_row(f"a sequence of {context:,}", size_text(values["bytes_per_sequence"]))
    table.add_row(f"batch {batch:,}", size_text(values["bytes"]))
    if kept != values["bytes"]:
        table.add_row("  if windowed layers keep every token", size_text(kept))
    if tp > 1:
        table.add_row(f"on each of {tp} chips", size_text(of_rank))
    if chip is not None:
        fits = _sequences(room.sequences) if room.weights_fit else "the weights do NOT fit"
        table.add_row(f"beside {weights} weights on {tp} x {values['chip']}", fits)
        if room.weights_fit and kept != values["bytes"]:
            table.add_row("  if windowed layers keep every token", _sequences(room_if_kept.sequences))
    Console(highlight=False).print(table)


def layers_text(shape: ModelShape) -> str:
    """The attention of a model's layers in words, such as `26 GQA 8:4 within 4,096; 26 GQA 8:4`."""
    counts: dict[str, int] = {}
    for layer in shape.layers:
        attention = layer.attention
        text = attention.kind
        if isinstance(attention, Attention):
            text += f" {attention.n_heads}:{attention.n_kv_heads} heads of {attention.head_dim}"
        if attention.window is not None:
            text += f" within {attention.window:,} tokens"
        counts[text] = counts.get(text, 0) + 1
    return "; ".join(f"{count} x {text}" for text, count in counts.items())
