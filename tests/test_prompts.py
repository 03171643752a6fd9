"""Prompts of files and our own: one schema, one reader."""

import pytest

from specdec_ref.bench.run import PROMPTS
from specdec_ref.prompts import OURS, Prompt, prompt, prompts, read_prompts

A = '{"id": "1", "domain": "a", "user": "x"}'


def test_a_file_is_read_line_by_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(f"{A}\n\n" + '{"id": "2", "domain": "b", "user": "\u00e9"}\n', encoding="utf-8")
    assert read_prompts(path) == [Prompt("1", "a", "x"), Prompt("2", "b", "\u00e9")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "line 1: give"),
        ("[]", "line 1: give"),
        ('{"id": "1", "domain": "a"}', "line 1: give"),
        ('{"id": "1", "domain": "a", "user": 3}', "line 1: give"),
        ('{"id": "1", "domain": "a", "user": ""}', "line 1: give"),
        ('{"id": "1", "domain": "a", "prompt": "x"}', "line 1: give"),
        (f"{A}\n{A}", "line 2: the id '1' comes twice"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path, text, message):
    path = tmp_path / "p.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("path", [OURS, PROMPTS], ids=["ours", "bench"])
def test_the_files_of_the_package_have_the_one_schema(path):
    assert len(read_prompts(path)) >= 20


def test_our_own_prompts_are_found_by_domain_and_by_id():
    assert {p.domain for p in prompts()} >= {"open chat", "summary", "code editing", "translation", "arithmetic"}
    assert prompt("chat-1") in prompts("open chat")
    assert prompt("chat-1").messages[0]["content"] == prompt("chat-1").user
    with pytest.raises(ValueError, match="no domain 'poetry': there are"):
        prompts("poetry")
    with pytest.raises(KeyError):
        prompt("chat-999")
