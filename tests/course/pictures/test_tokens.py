"""A generation as coloured text: nothing lost, everything escaped, counts as in the statistics."""

import pytest

from specdec_course.pictures.tokens import LINE_STYLES, ORIGIN_COLOURS, legend_html, side_by_side_html, tokens_html
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
def test_a_line_begins_each_round_where_any_gave_several_tokens(smollm):
    message = prompt("rewrite-1").messages
    plain = SpeculativeEngine(smollm).generate(message, 20)
    guessed = SpeculativeEngine(smollm, NGramDrafter(), 4).generate(message, 20)
    assert "border-left" not in tokens_html(plain, smollm.tokenizer)
    assert tokens_html(guessed, smollm.tokenizer).count("border-left") == guessed.stats.rounds < 20
    page = side_by_side_html({"plain": plain, "guessed": guessed}, smollm.tokenizer)
    assert page.count("<span title") == 40
    assert page.index("<b>plain</b>") < page.index("<b>guessed</b>")


def test_every_origin_has_a_colour_and_a_line_of_its_own():
    assert set(ORIGIN_COLOURS) >= set(ORIGINS)
    assert len(set(ORIGIN_COLOURS.values())) == len(ORIGIN_COLOURS) == len(set(LINE_STYLES.values()))
