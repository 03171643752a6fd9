"""The stepper and its pictures: what they say is what the engine did."""

import html

import ipywidgets
import pytest
from matplotlib.colors import to_hex

from specdec_course.pictures.recorded import CacheLengths, RecordedRound, describe, record_rounds
from specdec_course.pictures.rounds import (
    round_stepper,
    rounds_figure,
    times_figure,
    times_per_token,
    times_words,
)
from specdec_course.pictures.strip import strip_words
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import SpeculativeEngine, Stats
from specdec_ref.engine.stats import RoundCounts
from specdec_ref.interfaces import Drafter, Proposal
from specdec_ref.models import ScriptedModel

VOCAB = 30


def counter():
    return ScriptedModel(lambda tokens: [float(x == (tokens[-1] + 1) % VOCAB) for x in range(VOCAB)], VOCAB)


class Errs(Drafter):
    """Counts on, as the target does, but for a wrong token at place `at` of each draft."""

    def __init__(self, at):
        self.at = at

    def propose(self, tokens, gamma, source):
        right = [(tokens[-1] + 1 + i) % VOCAB for i in range(gamma)]
        return Proposal([0 if i == self.at else x for i, x in enumerate(right)])


def recorded(drafter, budget=9, **options):
    return record_rounds(SpeculativeEngine(counter(), drafter, gamma=4), [1, 2, 3, 4], max_new_tokens=budget, **options)


def test_recorded_rounds_add_up_to_the_generation():
    got, steps = recorded(Errs(at=2))
    assert [t for s in steps for t in s.kept] == got.tokens == list(range(5, 14))
    assert [(len(s.drafted), s.accepted, s.origin) for s in steps] == [(4, 2, "corrected")] * 2 + [(2, 2, "bonus")]
    assert sum(len(s.drafted) for s in steps) == got.stats.drafted
    assert steps[1].context == (3, 4, 5, 6, 7), "the last of these is pending"
    assert steps[-1].committed == 4 + 9


def test_the_targets_cache_lacks_the_pending_token_only():
    _, steps = recorded(Errs(at=2))
    assert steps[0].target == CacheLengths(before=3, fullest=8, after=6)
    assert steps[1].target == CacheLengths(before=6, fullest=11, after=9)
    assert all(s.committed - s.target.after == 1 for s in steps)
    assert steps[0].draft is None


def test_a_draft_models_cache_lacks_two_where_all_was_accepted():
    _, steps = recorded(DraftModelDrafter(counter()), budget=10)
    assert [s.accepted for s in steps] == [4, 4]
    assert steps[0].draft == CacheLengths(before=0, fullest=7, after=7)
    assert [s.committed - s.draft.after for s in steps] == [2, 2]


def test_a_draft_models_cache_lengths_after_a_rejection():
    off = ScriptedModel(lambda t: [float(x == (0 if t[-1] == 6 else t[-1] + 1)) for x in range(VOCAB)], VOCAB)
    _, steps = recorded(DraftModelDrafter(off), budget=5)
    assert steps[0].drafted[:3] == (5, 6, 0) and steps[0].accepted == 2
    assert steps[0].draft == CacheLengths(before=0, fullest=7, after=6)


def test_lengths_recorded_are_those_of_the_caches():
    """`fullest` follows from what a round feeds; here the caches themselves are watched."""
    target, draft, peaks = counter(), counter(), {}

    def watch(model, name):
        plain = model.forward

        def forward(tokens, cache, rows=slice(None)):
            logits = plain(tokens, cache, rows)
            peaks[name] = max(peaks.get(name, 0), cache.length)
            return logits

        model.forward = forward

    watch(target, "target")
    watch(draft, "draft")
    engine = SpeculativeEngine(target, DraftModelDrafter(draft), gamma=3)
    _, steps = record_rounds(engine, [1, 2], max_new_tokens=4)
    assert (steps[0].target.fullest, steps[0].draft.fullest) == (peaks["target"], peaks["draft"])


def test_fates():
    _, steps = recorded(Errs(at=1))
    assert steps[0].fates == ["accepted", "rejected", "not tested", "not tested"]
    _, steps = recorded(Errs(at=9), budget=5)
    assert steps[0].fates == ["accepted"] * 4
    _, steps = recorded(None, budget=1)
    assert steps[0].fates == []


def test_a_round_in_words():
    _, steps = recorded(Errs(at=1))
    assert describe(steps[0]) == (
        "4 drafted, 1 accepted, 1 rejected, 2 not tested, 1 corrected token: the text grows by 2."
    )
    _, steps = recorded(Errs(at=9), eos_token_id=7)
    assert describe(steps[0]) == "4 drafted, 4 accepted, 2 cut off after the end: the text grows by 3."


def test_stepper_follows_its_controls():
    runs = {"errs": recorded(Errs(at=2))[1], "knows": recorded(Errs(at=9))[1]}
    box = round_stepper(runs, number=2)
    drafter, number, output = box.children
    assert isinstance(number, ipywidgets.IntSlider)
    assert (number.min, number.max, number.value) == (1, 3, 2)
    assert "errs, round 2 of 3" in output.value and describe(runs["errs"][1]) in output.value
    assert strip_words(runs["errs"][1]) in html.unescape(output.value), "the picture's description"
    number.value = 3
    drafter.value = "knows"
    assert "knows, round 2 of 2" in output.value, "a shorter run shows its last round"


def test_rounds_figure_shows_the_counts():
    figure = rounds_figure({"a": [(4, 4), (4, 1)], "b": [(2, 0)]})
    left, right = figure.axes
    heights = [[bar.get_height() for bar in group] for group in left.containers]
    assert heights == [[4, 1], [1, 1], [0, 3]]
    assert [bar.get_y() for bar in left.containers[1]] == [4, 1]
    assert left.get_title() == "a: 2 passes" and right.get_title() == "b: 1 passes"
    assert len({to_hex(group[0].get_facecolor(), keep_alpha=True) for group in left.containers}) == 3
    with pytest.raises(ValueError, match="at least one round"):
        rounds_figure({"a": []})


def timed(draft, verify, rest, emitted):
    counts = [RoundCounts(drafted=0, tested=0, accepted=0, last="plain")] * emitted
    return Stats(counts, prefill_seconds=9.0, draft_seconds=draft, verify_seconds=verify, other_seconds=rest)


def test_times_are_in_units_of_the_first_run_repeat_by_repeat():
    runs = {"plain": [timed(0, 4, 0, 4), timed(0, 8, 0, 4)], "fast": [timed(1, 2, 1, 8), timed(2, 4, 2, 8)]}
    times = times_per_token(runs)
    assert [sum(r.values()) for r in times["plain"]] == [1, 1]
    assert times["fast"] == [{"draft": 0.125, "verify": 0.25, "rest": 0.125}] * 2
    assert times_words(runs) == [
        "plain: 1.00 per token; draft 0.00, verify 1.00, rest 0.00",
        "fast: 0.50 per token; draft 0.12, verify 0.25, rest 0.12",
    ]
    (ax,) = times_figure(runs).axes
    assert [[bar.get_width() for bar in group] for group in ax.containers] == [[0, 0.125], [1, 0.25], [0, 0.125]]
    assert [bar.get_x() for bar in ax.containers[2]] == [1, 0.375]
    assert [list(line.get_xdata()) for line in ax.lines[:2]] == [[1, 1], [0.5, 0.5]], "a dot for each repeat"


def test_times_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="as many repeats: a 1, b 2"):
        times_per_token({"a": [timed(0, 1, 0, 1)], "b": [timed(0, 1, 0, 1)] * 2})
    with pytest.raises(ValueError, match="no round was timed"):
        times_per_token({"a": [Stats()]})


def test_a_recorded_round_is_plain_data():
    step = RecordedRound((1,), (), 0, 2, "bonus", (2,), 2, CacheLengths(0, 1, 1), None)
    assert describe(step) == "0 drafted, 0 accepted, 1 bonus token: the text grows by 1."
