"""`specdec roofline` and `specdec kv`: exact numbers in JSON, whole numbers in tables, one line for an error."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from specdec_ref.arithmetic import accelerator, fit, model_catalogue, model_shape, size_text
from specdec_ref.cli.arithmetic import kv, layers_text, roofline

COMMANDS: dict[str, click.Command] = {"roofline": roofline, "kv": kv}


def run(line: str) -> Result:
    command, *arguments = line.split()
    return CliRunner().invoke(COMMANDS[command], arguments)


def run_json(line: str) -> dict[str, Any]:
    result = run(line + " --json")
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.output)
    return values


def test_kv_of_70b_in_fp8() -> None:
    values = run_json("kv --model llama-3-70b --context 8192 --batch 1 --kv-dtype fp8")
    assert values["bytes_per_token"] == 163_840
    assert values["bytes"] == values["bytes_per_sequence"] == 8192 * 163_840
    assert all(type(number) is int for name, number in values.items() if name.startswith("bytes"))


def test_kv_table_shows_both_units_as_what_they_are() -> None:
    result = run("kv --model llama-3-70b --context 32768")
    assert result.exit_code == 0
    assert "10.74 GB (10.00 GiB)" in result.output
    assert "80 x GQA 64:8 heads of 128" in result.output


def test_kv_of_more_ranks_than_heads_and_of_whole_blocks() -> None:
    values = run_json("kv --model llama-3-70b --context 17 --batch 3 --tp 16 --block-size 16")
    assert values["bytes"] == 3 * 32 * 327_680
    assert values["bytes_on_each_chip"] == 3 * 32 * 327_680 // 8


def test_kv_of_windowed_layers_is_shown_for_caches_that_drop_and_that_keep_old_tokens() -> None:
    line = "kv --model gpt-oss-20b --context 8200 --batch 32 --block-size 16 --chip h100-sxm"
    values, shown = run_json(line), run(line).output
    per_layer = 2 * 8 * 64 * 2
    assert values["bytes"] == 32 * per_layer * (12 * 8208 + 12 * 144)
    assert values["bytes_if_windowed_layers_keep_all"] == 32 * per_layer * 24 * 8208
    both = [values["sequences_that_fit"], values["sequences_that_fit_if_windowed_layers_keep_all"]]
    assert both[0] > 1.9 * both[1]
    assert shown.count("if windowed layers keep every token") == 2
    for size in ("6.57 GB", "12.91 GB", f"{both[0]} sequences", f"{both[1]} sequences"):
        assert size in shown
    assert "keep every token" not in run("kv --model llama-3-8b --chip h100-sxm").output


def test_kv_beside_the_weights_of_a_chip() -> None:
    values = run_json("kv --model llama-3-70b --tp 4 --chip h100-sxm --block-size 16")
    assert values["sequences_that_fit"] == 54
    assert "the weights do NOT fit" in run("kv --model llama-3-70b --chip h100-sxm").output
    assert "1 sequence " in run("kv --model llama-3-70b --tp 2 --chip h100-sxm").output


def test_what_fits_has_room_for_a_rounds_drafts_and_one_token_more() -> None:
    """1,024 tokens fill 64 blocks of 16, and a round's 5 drafts and the token after them begin another."""
    values = run_json("roofline --model llama-3-8b --chip h100-sxm --context 1024 --gamma 5")
    plain, verified = (fit(model_shape("llama-3-8b"), accelerator("h100-sxm"), 1024 + n).sequences for n in (0, 6))
    assert values["sequences_that_fit"] == verified < plain


def test_roofline_of_70b_on_two_chips() -> None:
    values = run_json("roofline --model llama-3-70b --chip h100-sxm --tp 2 --context 0")
    decode = values["passes"]["decode"]
    assert values["ridge_flop_per_byte"] == pytest.approx(295.2, abs=0.1)
    assert decode["bound"] == "memory"
    assert decode["overlapped_s"] == max(decode["memory_s"], decode["compute_s"])
    assert decode["serial_s"] == decode["memory_s"] + decode["compute_s"]
    assert decode["memory_s"] == decode["bytes"] / 3.35e12
    assert decode["bytes"] == decode["weight_bytes"] + decode["kv_read_bytes"] + decode["kv_write_bytes"]
    assert type(decode["bytes"]) is int and type(values["weight_bytes"]) is int
    assert values["decode_tokens_per_s_at_most"] == pytest.approx(48.2, abs=0.1)
    assert values["verify_cost_in_decode_steps"] == pytest.approx(1, abs=0.001)
    assert values["passes"]["prefill"]["bound"] == "compute"
    assert values["weights_fit"] and not run_json("roofline --model llama-3-70b --chip h100-sxm")["weights_fit"]


def test_roofline_table_is_whole_within_80_columns() -> None:
    result = run("roofline --model llama-3-70b --chip h100-sxm --tp 2 --context 8192 --batch 64")
    assert result.exit_code == 0 and "…" not in result.output
    (table_row,) = [line for line in result.output.splitlines() if line.strip().startswith("decode  ")]
    assert len(table_row.rstrip()) <= 80
    assert table_row.split()[1:] == ["64", "5.135", "155.4", "33.04", "46.39", "5.193", "memory"]
    assert "stays memory-bound at every batch" in result.output
    assert (
        "turns compute-bound at batch 966, more than fit"
        in run("roofline --model llama-3-70b --chip h100-sxm --tp 2").output
    )


def test_narrower_weights_move_fewer_bytes_and_a_faster_format_computes_faster() -> None:
    plain = run_json("roofline --model llama-3-8b --chip h100-sxm")["passes"]["decode"]
    int4 = run_json("roofline --model llama-3-8b --chip h100-sxm --weights int4-g128")["passes"]["decode"]
    fp8 = run_json("roofline --model llama-3-8b --chip h100-sxm --compute-dtype fp8")["passes"]["decode"]
    assert int4["weight_bytes"] < 0.4 * plain["weight_bytes"]
    assert fp8["compute_s"] < plain["compute_s"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("kv --model llama-3-71b", ["unknown model 'llama-3-71b'", "llama-3-70b"]),
        ("roofline --model llama-3-8b --chip h100", ["unknown chip 'h100'", "h100-sxm, h100-pcie"]),
        ("kv --model llama-3-8b --kv-dtype fp7", ["unknown number format 'fp7'", "fp8"]),
        ("roofline --model llama-3-8b --chip l4 --weights int5", ["unknown number format 'int5'", "int8"]),
        ("roofline --model smollm2-135m --chip l4 --tp 2", ["9 query heads cannot be split over 2 ranks"]),
        ("roofline --model llama-3-8b --chip v100-sxm --compute-dtype fp8", ["lists no fp8 rate"]),
        ("kv --model llama-3-8b --context -1", ["context >= 0"]),
        ("kv --model llama-3-8b --tp 0", ["at least 1"]),
        ("roofline --model llama-3-8b --chip l4 --batch 0", ["batch must be at least 1"]),
        ("roofline --model llama-3-8b --chip l4 --prompt 0", ["n_tokens >= 1"]),
        ("roofline --model llama-3-8b --chip l4 --gamma -1", ["gamma must not be negative"]),
        ("kv --model llama-3-8b --chip l4 --context 0", ["at least one token"]),
    ],
)
def test_errors_are_one_line_with_the_nearest_known_name(line: str, parts: list[str]) -> None:
    result = run(line)
    assert result.exit_code == 2
    assert result.output.startswith("Error: ") and result.output.count("\n") == 1
    for part in parts:
        assert part in result.output


def test_a_model_can_be_a_config_file_or_its_folder(tmp_path: Path) -> None:
    config = model_catalogue()["qwen3-4b"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in (tmp_path, tmp_path / "config.json"):
        assert run_json(f"kv --model {name}")["bytes_per_token"] == 147_456
    assert (
        "nearest known" in run(f"kv --model {tmp_path}/qwen3").output or run(f"kv --model {tmp_path}/qwen3").exit_code
    )


def test_a_damaged_config_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    result = run(f"kv --model {tmp_path}")
    assert result.exit_code == 1 and result.output.startswith(f"Error: {tmp_path}") and result.output.count("\n") == 1
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    assert "not a list" in run(f"kv --model {tmp_path}").output


@pytest.mark.parametrize("window", [-1, 0])
def test_a_window_of_nothing_in_a_file_is_no_window(window: int, tmp_path: Path) -> None:
    config = model_catalogue()["mistral-7b-v0.1"]["config"] | {"sliding_window": window}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    values = run_json(f"kv --model {tmp_path} --context 8192 --chip h100-sxm")
    assert values["bytes"] == 8192 * 131_072 and values["sequences_that_fit"] > 0


def test_sizes_carry_the_unit_that_they_are_in() -> None:
    assert size_text(10 * 2**30) == "10.74 GB (10.00 GiB)"
    assert size_text(2**20) == "1.05 MB (1.00 MiB)"


def test_layers_in_words() -> None:
    assert layers_text(model_shape("gpt-oss-20b")) == (
        "12 x GQA 64:8 heads of 64 within 128 tokens; 12 x GQA 64:8 heads of 64"
    )
    assert layers_text(model_shape("deepseek-v3")) == "61 x MLA"
