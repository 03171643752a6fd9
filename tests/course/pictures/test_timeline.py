"""The timeline of a race: nothing lost, complete as a still, and its explorer takes a prompt of one's own."""

import base64
import re
from types import MappingProxyType
from xml.etree import ElementTree

import pytest
from support.tiny_models import tiny_llama

from specdec_course.pictures import timeline
from specdec_course.pictures.timeline import TimedRun, race_explorer, timed_run, timeline_html, timeline_svg
from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.prompts import prompt

SVG = "{http://www.w3.org/2000/svg}"


class Letters:
    """A tokenizer of one letter, or an awkward piece, per token."""

    added_tokens_decoder = MappingProxyType({})
    pieces = (" a", "<b>", "\n", "&", " word")

    def decode(self, tokens, **_options):
        return "".join(self.pieces[t % 5] for t in tokens)


TARGET = tiny_llama(1)
PLAIN = timed_run(SpeculativeEngine(TARGET), [1, 2, 3], 30)
DRAFTED = timed_run(SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), 4), [1, 2, 3], 30)
RUNS = [("plain", PLAIN), ("drafted", DRAFTED)]


def test_a_run_has_a_time_for_each_pass():
    for _, run in RUNS:
        assert len(run.ends) == run.generation.stats.rounds
        assert list(run.ends) == sorted(run.ends) and run.ends[0] > 0
        stats = run.generation.stats
        assert run.seconds <= stats.seconds - stats.prefill_seconds
    with pytest.raises(ValueError, match="nothing was written"):
        timed_run(SpeculativeEngine(TARGET), [1, 2, 3], 0)


def test_every_pass_has_a_column_with_a_box_and_a_word_per_token():
    root = ElementTree.fromstring(timeline_svg(RUNS, Letters()))
    falling = [g for g in root.iter(f"{SVG}g") if g.get("class") == "fall"]
    rounds = [r for _, run in RUNS for r in run.generation.stats.by_round]
    assert [len(g.findall(f"{SVG}rect")) for g in falling] == [r.emitted for r in rounds]
    words = [t.text or "" for g in root.iter(f"{SVG}g") if g.get("class") == "appear" for t in g.iter(f"{SVG}text")]
    texts = [Letters().decode(run.generation.tokens).replace("\n", "↵") for _, run in RUNS]
    assert "".join(words) == "".join(texts)


def test_columns_stand_at_the_time_of_their_pass_on_one_axis():
    quick = TimedRun(PLAIN.generation, tuple((i + 1) / 60 for i in range(30)))
    slow = TimedRun(PLAIN.generation, tuple((i + 1) / 30 for i in range(30)))
    root = ElementTree.fromstring(timeline_svg([("quick", quick), ("slow", slow)], Letters()))
    x = [float(g.find(f"{SVG}line").get("x1")) for g in root.iter(f"{SVG}g") if g.get("class") == "fall"]
    assert x[:30:2] == pytest.approx([timeline._x((i + 1) / 60, 1.0) for i in range(0, 30, 2)], abs=0.1)
    assert x[59] == pytest.approx(timeline.WIDTH - timeline.RIGHT)


def test_nothing_is_hidden_but_by_the_animation():
    """A still is whatever stands in the file: no element may begin out of sight, save the line that sweeps over it."""
    picture = timeline_svg(RUNS, Letters())
    body = picture.split("</style>")[1]
    assert "opacity" not in body and "display" not in body and "visibility" not in body
    assert re.search(r"prefers-reduced-motion", picture)


def test_the_picture_has_words():
    page = timeline_html(RUNS, Letters())
    assert re.search(r'alt="[^"]*plain: 30 tokens in 30 target passes', page)
    data = re.search(r"base64,([^\"]+)", page).group(1)
    ElementTree.fromstring(base64.b64decode(data))


@pytest.mark.model
def test_the_explorer_takes_a_prompt_of_ones_own(smollm):
    box = race_explorer(smollm, [prompt("rewrite-1")], gamma=0)
    _, own, gamma, output = box.children
    assert "gamma 0: 48 tokens in 48 target passes; 0 drafted" in output.value
    assert "Both texts are the same" in output.value
    gamma.value = 6
    assert int(re.match(r"<p>gamma 6: 48 tokens in (\d+) target passes", output.value).group(1)) < 20
    own.value = "Say: one two three"
    assert "gamma 6" in output.value
    assert "tokens in" in box.still and "gamma (guesses per round, at most): <b>0</b>" in box.still
