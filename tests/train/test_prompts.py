"""Grammars and the prompts they give: distinct, repeatable, and held out where they have to be."""

import random
from collections import Counter

import pytest

from specdec_ref.bench.run import PROMPTS
from specdec_ref.prompts import prompts as course_prompts
from specdec_ref.prompts import read_prompts
from specdec_ref.train.grammar import Grammar
from specdec_ref.train.prompts import FOLDERS, build_prompts, digest, kinds


def grammar(tmp_path, text):
    (tmp_path / "g.txt").write_text(text, encoding="utf-8")
    return Grammar([tmp_path / "g.txt"])


@pytest.fixture(scope="module")
def prompts():
    return build_prompts(0)


def test_slots_are_filled(tmp_path):
    g = grammar(
        tmp_path,
        "# a comment\n[prompt]\n{Who.1}, {who.2} and {who.1}: a(n) {thing} {of {7-7}|of {7-7}}{|}, f() { return; }"
        "\\nend\n[who]\nada\nbo\n[thing]\napple\n",
    )
    texts = {g.expand("prompt", random.Random(i)) for i in range(40)}
    rest = "an apple of 7, f() { return; }\nend"
    assert texts == {f"Ada, bo and ada: {rest}", f"Bo, ada and bo: {rest}"}


def test_blocks_keep_their_lines(tmp_path):
    g = grammar(tmp_path, "[[prompt]]\ndef f():\n\n    return {}\n---\nx = {1-1}\n")
    assert {g.expand("prompt", random.Random(i)) for i in range(9)} == {"def f():\n\n    return {}", "x = 1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("[prompt]\nto {whom}\n", "no file has a section"), ("hello\n", "before the first"), ("# x\n", "has no")],
)
def test_what_is_no_grammar_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        grammar(tmp_path, text)


def test_there_are_thousands_of_different_prompts(prompts):
    conversations = [p.turns for p in prompts]
    assert len(set(conversations)) == len(conversations) and len({p.id for p in prompts}) == len(prompts)
    counts = Counter((p.kind, p.split) for p in prompts)
    assert sum(n for (_, split), n in counts.items() if split == "train") >= 12_000
    assert len(kinds("trained")) >= 12 and all(counts[kind, "train"] >= 900 for kind in kinds("trained"))
    for kind in kinds("trained"):
        assert counts[kind, "held"] == round(0.05 * (counts[kind, "train"] + counts[kind, "held"]))
    assert {len(p.turns) for p in prompts} == {1, 3}
    assert not any("{" in p.turns[0] and "|" in p.turns[0].split("\n")[0] for p in prompts if p.kind == "chat")


def test_unseen_kinds_share_neither_prompts_nor_fillers_with_trained_ones(prompts):
    unseen = {p.kind for p in prompts if p.split == "unseen"}
    assert len(unseen) >= 4 and not unseen & {p.kind for p in prompts if p.split != "unseen"}
    ours, theirs = (Grammar(sorted((FOLDERS[f] / "common").glob("*.txt"))) for f in ("trained", "unseen"))
    fillers = {line for lines in ours.alternatives.values() for line in lines}
    assert not fillers & {line for lines in theirs.alternatives.values() for line in lines}


def test_the_same_seed_gives_the_same_prompts():
    few = build_prompts(0, 30, 4)
    assert build_prompts(0, 30, 4) == few
    assert digest(few) != digest(build_prompts(1, 30, 4))


def test_the_prompts_that_drafts_are_compared_on_are_never_trained_on(prompts):
    elsewhere = {p.user for p in [*course_prompts(), *read_prompts(PROMPTS)]}
    assert not elsewhere & {turn for p in prompts for turn in p.turns}
