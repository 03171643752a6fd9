"""`specdec train-draft`: what it refuses, and what it says before any work is done."""

import pytest

from specdec_ref.cli import main


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("data --out x --part 3/2", "give 1/2 and 2/2"),
        ("run --kind mtp --data . --out x --minutes 1", "mtp"),
        ("run --kind lm --data . --out x --minutes 1 --layers first", "give numbers such as"),
        ("run --kind lm --data nowhere --out x --minutes 1", "nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(args, message, capsys):
    assert main(["train-draft", *args.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_draft_is_refused(tmp_path, capsys):
    (tmp_path / "draft.safetensors").write_bytes(b"no")
    assert main(["train-draft", "export", str(tmp_path), "--out", str(tmp_path / "hf")]) == 1
    assert "no trained draft" in capsys.readouterr().err


def test_the_prompts_can_be_looked_at(capsys, monkeypatch):
    from specdec_ref.train import prompts

    few = prompts.build_prompts(0, 3, 1)
    monkeypatch.setattr(prompts, "build_prompts", lambda seed: few)
    assert main(["train-draft", "data", "--out", "unused", "--show"]) == 0
    out = capsys.readouterr().out
    assert f"{len(few)} prompts" in out and few[0].turns[0].splitlines()[0] in out
