"""Races as pictures and words: every outcome has words of its own, and a guess that was not made is not drawn."""

import pytest
from support.tiny_models import tiny_llama

from specdec_course.pictures.races import predicted_speedup, ratio_figure, together_words
from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.measure import Race

TARGET = tiny_llama(1)
PLAIN = SpeculativeEngine(TARGET).generate([1], 11)
DRAFTED = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), 4).generate([1], 11)


def with_ratios(*ratios):
    return Race(PLAIN, DRAFTED, list(ratios), [1.0] * len(ratios))


@pytest.mark.parametrize(
    "both, words",
    [
        ((3.4, 3.6), "slower than guesses alone"),
        ((3.9, 4.3), "about as much as guesses alone"),
        ((5.0, 5.2), "more than either alone"),
        ((7.9, 8.3), "hardly got in each other's way"),
    ],
)
def test_what_two_optimisations_do_together_has_words_for_every_outcome(both, words):
    text = together_words({"guesses": with_ratios(3.9, 4.1), "4 bits": with_ratios(1.9, 2.1)}, with_ratios(*both))
    assert words in text
    assert "guesses 4.0x, 4 bits 2.0x" in text and "8.0x" in text


def test_a_prediction_divides_tokens_by_the_cost_of_their_rounds():
    cost = {n: 1 + 0.1 * (n - 1) for n in range(1, 6)}
    drafts = [r.drafted for r in DRAFTED.stats.by_round]
    assert 4 in drafts
    assert predicted_speedup(DRAFTED.stats, cost) == pytest.approx(11 / sum(1 + 0.1 * d for d in drafts))
    assert predicted_speedup(PLAIN.stats, cost) == 1.0


def test_only_guesses_that_were_made_are_drawn():
    races = {"chat": with_ratios(1.0, 1.1), "rewrite": with_ratios(2.0, 2.5, 3.0)}

    def labels(figure):
        return {line.get_label(): list(line.get_xdata()) for line in figure.axes[0].lines}

    assert "your guess" not in labels(ratio_figure(races, [None, None]))
    assert labels(ratio_figure(races, [None, 1.5]))["your guess"] == [1.5]
    assert "your guess" not in labels(ratio_figure(races, ["much", None]))
    assert labels(ratio_figure(races, predicted=[1.0, 2.4]))["predicted"] == [1.0, 2.4]
