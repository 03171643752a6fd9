"""The engines with one wrong line: each wrong in its own way, and the line to be found is the one that was changed."""

import inspect
import re

import pytest
import torch
from build_lessons import read_source
from support.paths import ROOT

from specdec_course import plain_engine, reply_to_order, suspect
from specdec_course.suspects import BUGS, ORDERS
from specdec_ref import RandomSource
from specdec_ref.models import ScriptedModel
from specdec_ref.proof import enumerate_distribution

NUMBERS = sorted(BUGS)
every = pytest.mark.parametrize("number", NUMBERS)


def remembers(tokens):
    """Depends on every token and its place, so that a wrong cache shows."""
    best = sum((i + 2) * (t + 1) for i, t in enumerate(tokens)) % 11
    return [1.0 if x == best else 0.05 for x in range(11)]


def errs(tokens, gamma):
    """Right and wrong by turns."""
    drafted = []
    for i in range(gamma):
        row = remembers([*tokens, *drafted])
        drafted.append((row.index(1.0) + (len(tokens) % 3 == i)) % 11)
    return drafted


def texts(engine, eos=()):
    model = ScriptedModel(remembers, 11)
    return [engine.generate(model, errs, [3, 1, 4], n, eos=eos)[0] for n in range(1, 15)]


@every
def test_the_line_to_be_found_is_the_only_one_that_differs(number):
    engine = suspect(number)
    assert "\n".join(engine.lines).count(engine.lines[engine.line - 1]) >= 1
    assert engine.reply(engine.line).startswith(f"Yes, line {engine.line}")
    others = [i for i, text in enumerate(engine.lines, 1) if text.strip() and i != engine.line]
    assert all("is as it should be" in engine.reply(i) for i in others)


@every
def test_an_engine_asks_before_it_answers(number):
    engine = suspect(number)
    assert "in place of None" in engine.reply(None)
    for odd in (0, len(engine.lines) + 1, "7", 2.5):
        assert "Write the number of a line" in engine.reply(odd)
    page = engine.find(None).data
    assert f"Engine {number}" in page and "<details>" in page and "Yes, line" not in page
    assert "<details open>" in engine.find(1 if engine.line != 1 else 2).data


def test_there_is_no_ninth_bug():
    with pytest.raises(KeyError, match="1 to 8"):
        suspect(9)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_wrong_acceptance_and_wrong_caches_change_the_text(number):
    assert texts(suspect(number)) != texts(plain_engine)


def test_engine_5_passes_over_an_end():
    assert texts(suspect(5)) == texts(plain_engine)
    whole = texts(plain_engine)[-1]
    ends = [(token,) for token in whole]
    assert all(texts(plain_engine, eos)[-1] == whole[: whole.index(eos[0]) + 1] for eos in ends)
    assert any(texts(suspect(5), eos)[-1] != texts(plain_engine, eos)[-1] for eos in ends)


def test_engine_6_oversteps_the_budget():
    assert [len(t) for t in texts(plain_engine)] == list(range(1, 15))
    assert [len(t) for t in texts(suspect(6))] != list(range(1, 15))


def test_engine_7_feeds_too_little():
    def rounds(engine):
        model = ScriptedModel(remembers, 11)
        return engine.generate(model, engine.DraftModel(model, 50), [3, 1, 4], 20)

    right, wrong = rounds(plain_engine), rounds(suspect(7))
    assert right[0] == wrong[0], "the text stays right"
    assert right[1] == [(4, 4)] * 4 != wrong[1]


def test_engine_8_draws_the_correction_from_p():
    class Rejecting(RandomSource):
        def bernoulli(self, p):
            return False

        def categorical(self, probs):
            return probs.tolist()

    p, q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    assert plain_engine.verify_tokenwise([1], q, p, Rejecting()) == (0, [0.25, 0.0])
    assert suspect(8).verify_tokenwise([1], q, p, Rejecting()) == (0, [0.5, 0.5])


def all_texts(engine, drafter):
    """The distribution of what the sampling loop writes: three tokens at most, token 1 ends a text."""
    target = ScriptedModel(lambda tokens: [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]][sum(tokens) % 3], 3)

    def program(source):
        text, _ = engine.sample(target, drafter(), [2, 2, 2], 3, source, temperature=1.0, gamma=2, eos=(1,))
        return tuple(text)

    return enumerate_distribution(program)


@every
def test_enumerating_the_loop_finds_all_but_greedy_acceptance_and_the_drafts_cache(number):
    draft = ScriptedModel(lambda tokens: [[0.1, 0.3, 0.6], [0.5, 0.4, 0.1]][sum(tokens) % 2], 3)
    right = all_texts(plain_engine, lambda: lambda tokens, gamma, source: ([], []))
    for engine in (plain_engine, suspect(number)):
        got = all_texts(engine, lambda: engine.SamplingDraft(draft, 20, 1.0))  # noqa: B023 - called at once
        wrong = max(abs(got.get(t, 0) - right.get(t, 0)) for t in {*got, *right}) > 1e-9
        assert wrong == (engine is not plain_engine and number not in (1, 7))


def test_the_lessons_own_parts_are_those_of_the_listing():
    """What the lesson gives is what suspects are compared with, line by line; comments and docstrings may differ."""
    cells = [c.source for c in read_source(ROOT / "lessons" / "src" / "05_engine.py").cells if c.cell_type == "code"]
    lesson = "\n".join(cells)

    def bare(source):
        return re.sub(r'\n *""".*"""| *#.*', "", source).strip()

    given = ("prefill", "generate", "DraftModel", "distribution", "residual", "verify_tokenwise", "sample")
    for part in (*given, "SamplingDraft"):
        assert bare(inspect.getsource(getattr(plain_engine, part))) in bare(lesson), part


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "three letters"),
        ("BCA", "Yes"),
        ("b, c, a", "Yes"),
        ("ABC", "0 of 3 are right"),
        ("BAC", "1 of 3 is right"),
        ("BCC", "each of the letters"),
        (7, "each of the letters"),
    ],
)
def test_which_suspect_has_which_fault(given, says):
    assert says in reply_to_order("05 caches", given)


def test_the_answer_does_not_stand_in_the_lesson():
    lesson = (ROOT / "lessons" / "src" / "05_engine.py").read_text(encoding="utf-8")
    assert not any(right in lesson for right, _ in ORDERS.values())
