"""The command line as a user types it."""

import json
import re
import subprocess
import sys

import pytest

from specdec_ref.cli import main


def run(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "specdec_ref.cli", *args], capture_output=True, text=True, encoding="utf-8", **options
    )


def test_help_lists_every_command_and_comes_without_torch():
    code = "import sys, specdec_ref.cli; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    out = run("--help").stdout
    for command in ("demo", "generate", "try", "roofline", "kv", "fetch", "doctor"):
        assert f"\n  {command} " in out
        assert not re.search(r"\w\.\.\.$", out, re.MULTILINE), "a short help that is cut off"


@pytest.mark.parametrize("command", ["demo", "generate", "try", "roofline", "kv", "fetch", "doctor"])
def test_each_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert "Usage: specdec" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["generate"], 2, "Missing argument"),
        (["generate", "x", "--gamma", "-1"], 2, "-1 is not in the range"),
        (["generate", "x", "--model", "nope"], 1, "no model 'nope'"),
        (["generate", "x", "--dtype", "int3"], 1, "dtype 'int3' is not known"),
        (["fetch", "nope"], 1, "no model 'nope' in the catalogue"),
        (["try", "--prompts", "/nowhere/at/all"], 2, "does not exist"),
        (["roofline", "--model", "lama-3-70b", "--chip", "h100-sxm"], 2, "llama-3-70b"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(args, code, words, capsys):
    assert main(args) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("specdec: ")
    assert words in captured.err


@pytest.mark.model
def test_generate_prints_text_and_counts():
    done = run("generate", "Say hello.", "--max-new-tokens", "8")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "8 tokens in" in done.stderr


@pytest.mark.model
def test_generate_as_json_reads_standard_input():
    done = run("generate", "-", "--raw", "--json", "--max-new-tokens", "6", "--draft", "suffix", input="One two three")
    got = json.loads(done.stdout)
    assert len(got["tokens"]) == 6 == got["stats"]["emitted"]
    assert got["finish_reason"] == "length"


@pytest.mark.model
def test_a_context_that_overflows_is_an_error_of_one_line(capsys):
    assert main(["generate", "word " * 9000, "--raw"]) == 1
    assert "no room for a new token" in capsys.readouterr().err


@pytest.mark.model
def test_fetch_says_what_the_default_is(capsys):
    assert main(["fetch"]) == 0
    assert "quantised to 4 bits" in capsys.readouterr().out


@pytest.mark.model
def test_doctor_finds_this_environment_sound():
    done = run("doctor", "--json")
    findings = {f["name"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"Python", "torch", "kernel python3", "model smollm2-135m", "memory", "bfloat16"} <= set(findings)


def test_doctor_says_what_to_do_about_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "missing" in out
    assert "specdec fetch" in out


@pytest.mark.model
def test_demo_shows_both_ways_with_counts_and_ratio():
    done = run("demo", "--prompt", "Repeat: one two three four five", "--max-new-tokens", "8", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    for words in ("plainly", "speculatively", "target passes", "Speculation: ", "this machine, now"):
        assert words in done.stdout


@pytest.mark.model
def test_try_measures_our_own_prompts(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Repeat: a b c a b c\n\nSay hello.\n", encoding="utf-8")
    options = ["--prompts", str(prompts), "--max-new-tokens", "6", "--repeats", "1", "--gamma", "2", "--json"]
    done = run("try", *options)
    got = json.loads(done.stdout)
    assert set(got["predicted_speedup"]) == {"1", "2"}
    assert got["measured_speedup"] > 0
    assert got["verdict"]
