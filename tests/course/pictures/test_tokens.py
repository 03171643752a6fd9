"""A generation as coloured text: nothing lost, everything escaped, counts as in the statistics."""

import pytest

from specdec_course.pictures.tokens import LINE_STYLES, ORIGIN_COLOURS, draft_explorer, legend_html, tokens_html
from specdec_ref import NGramDrafter, SpeculativeEngine
from specdec_ref.engine.text import pieces
from specdec_ref.interfaces import ORIGINS
from specdec_ref.prompts import prompt


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
    for origin in ("accepted", "corrected", "bonus"):
        assert f"<b>{got.stats.origins.count(origin)} {origin}</b>" in legend_html(got)


@pytest.mark.model
def test_the_draft_explorer_follows_its_slider(smollm):
    box = draft_explorer(smollm, [prompt("rewrite-1")], gamma=0)
    _, gamma, output = box.children
    assert "gamma 0: 40 tokens in 40 target passes" in output.value
    gamma.value = 6
    assert "gamma 6" in output.value


def test_every_origin_has_a_colour_and_a_line_of_its_own():
    assert set(ORIGIN_COLOURS) >= set(ORIGINS)
    assert len(set(ORIGIN_COLOURS.values())) == len(ORIGIN_COLOURS) == len(set(LINE_STYLES.values()))
