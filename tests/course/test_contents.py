"""What notebooks import: colours, pictures, widgets, prompts, the course's table."""

import re

import ipywidgets
import pytest

from specdec_course.contents import course_html, lessons
from specdec_course.pictures import plots, widgets
from specdec_course.pictures.tokens import COLOURS, legend_html, tokens_html
from specdec_ref import NGramDrafter, SpeculativeEngine
from specdec_ref.engine.text import pieces
from specdec_ref.prompts import prompt, prompts


def test_there_are_at_least_twenty_prompts_each_with_its_own_id():
    assert len({p.id for p in prompts()}) == len(prompts()) >= 20
    assert {p.domain for p in prompts()} >= {"open chat", "summary", "code editing", "translation", "arithmetic"}
    assert prompts("summary")
    with pytest.raises(ValueError, match="no domain 'poetry': there are"):
        prompts("poetry")
    assert prompt("chat-1").messages[0]["content"] == prompt("chat-1").user


@pytest.mark.model
def test_pieces_join_to_the_text_whatever_the_tokens_cut(smollm):
    """Emoji and accents are several tokens here; no piece shows half of one."""
    text = "Repeat: naïve café 😀👍🏽 übergrößen 東京"
    got = SpeculativeEngine(smollm, NGramDrafter(), 4).generate([{"role": "user", "content": text}], 24)
    assert "".join(t for t, _ in pieces(got.tokens, got.stats.origins, smollm.tokenizer)) == got.text
    assert len(pieces(got.tokens, got.stats.origins, smollm.tokenizer)) == len(got.tokens)
    page = tokens_html(got, smollm.tokenizer, "a <title>")
    assert "&lt;title&gt;" in page
    assert page.count("<span") == len(got.tokens)
    for origin in COLOURS:
        assert f"<b>{got.stats.origins.count(origin)} {origin}</b>" in legend_html(got)


def test_a_picture_carries_its_words():
    figure = plots.ratio_figure(["chat", "rewrite"], [[1.0, 1.1], [2.0, 2.5, 3.0]], [1.5, 1.5])
    page = plots.show(figure, 'two "bars"').data
    assert re.search(r'<img [^>]*alt="two &quot;bars&quot;"', page)
    with pytest.raises(ValueError, match="describe the figure"):
        plots.show(figure, " ")


def test_the_pass_cost_figure_has_both_lines():
    figure = plots.pass_cost_figure({1: 1.0, 2: 1.1, 4: 1.2})
    lines = figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[1, 2, 4], [1.0, 1.1, 1.2]]


def test_an_explorer_draws_at_once_and_again_at_each_change():
    box = widgets.explorer(
        lambda a, b: f"{a}-{b}", a=widgets.slider("a", 1, 0, 5), b=widgets.choice("b", ["x", "y"], "x")
    )
    a, b, output = box.children
    assert isinstance(output, ipywidgets.HTML)
    assert output.value == "1-x"
    a.value = 3
    b.value = "y"
    assert output.value == "3-y"
    assert a.continuous_update is False


@pytest.mark.model
def test_the_draft_explorer_follows_its_slider(smollm):
    box = widgets.draft_explorer(smollm, [prompt("rewrite-1")], gamma=0)
    _, gamma, output = box.children
    assert "gamma 0: 40 tokens in 40 target passes" in output.value
    gamma.value = 6
    assert "gamma 6" in output.value


def test_the_table_links_only_lessons_that_are_there(tmp_path):
    (tmp_path / "00_start_here.ipynb").write_text("", encoding="utf-8")
    page = course_html(tmp_path)
    assert page.count("<a href") == 1
    assert page.count("still to come") == len(lessons()) - 1
    assert [int(x["lesson"][:2]) for x in lessons()] == list(range(len(lessons())))
