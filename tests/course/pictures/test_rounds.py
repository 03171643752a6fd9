"""The stepper and its pictures: what they say is what the engine did."""

import ipywidgets
import pytest
from matplotlib.colors import to_hex
from support.words import Words

from specdec_course.pictures.rounds import (
    CacheLengths,
    RecordedRound,
    describe,
    record_rounds,
    round_html,
    round_stepper,
    rounds_figure,
    time_shares,
    times_figure,
)
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import SpeculativeEngine, Stats
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


def test_html_of_a_round():
    _, steps = recorded(Errs(at=1))
    page = round_html(steps[0], Words(t5=" <b>", t4="\n"), "round 1 & more")
    assert "round 1 &amp; more" in page
    assert "␣&lt;b&gt;" in page and "<b>1" not in page, "text of tokens is escaped"
    assert "↵" in page
    assert page.count("✓ accepted") == 2, "drafted and emitted"
    assert page.count("✗ rejected") == 1 and page.count("– not tested") == 2
    assert page.count("→ corrected") == 1
    assert "<td>3</td><td>8</td><td>5</td><td>3</td><td>1</td>" in page, "cache lengths, rolled back, lacking"
    assert "draft's" not in page


def test_html_shows_what_a_stop_cut():
    _, steps = recorded(Errs(at=9), eos_token_id=7)
    assert round_html(steps[0]).count("✂ cut: after the end") == 2


def test_html_of_a_draft_model_has_both_caches():
    _, steps = recorded(DraftModelDrafter(counter()), budget=10)
    page = round_html(steps[1])
    assert "draft's cache" in page and "+ bonus" in page
    assert "<td>7</td><td>12</td><td>12</td><td>0</td><td>2</td>" in page


def test_stepper_follows_its_controls():
    runs = {"errs": recorded(Errs(at=2))[1], "knows": recorded(Errs(at=9))[1]}
    box = round_stepper(runs)
    drafter, number, output = box.children
    assert isinstance(number, ipywidgets.IntSlider)
    assert (number.min, number.max) == (1, 3)
    assert "errs, round 1 of 3" in output.value
    number.value = 2
    assert output.value == round_html(runs["errs"][1], None, "errs, round 2 of 3")
    number.value = 3
    drafter.value = "knows"
    assert output.value == round_html(runs["knows"][1], None, "knows, round 2 of 2"), (
        "a shorter run shows its last round"
    )


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


def test_time_shares():
    stats = Stats(prefill_seconds=9.0, draft_seconds=1.0, verify_seconds=2.5, other_seconds=0.5)
    assert time_shares(stats) == {"draft": 0.25, "verify": 0.625, "rest": 0.125}
    with pytest.raises(ValueError, match="no round was timed"):
        time_shares(Stats())
    (ax,) = times_figure({"one": stats}).axes
    assert [group[0].get_width() for group in ax.containers] == [0.25, 0.625, 0.125]
    assert [group[0].get_x() for group in ax.containers] == [0.0, 0.25, 0.875]


def test_a_recorded_round_is_plain_data():
    step = RecordedRound((1,), (), 0, 2, "bonus", (2,), 2, CacheLengths(0, 1, 1), None)
    assert describe(step) == "0 drafted, 0 accepted, 1 bonus token: the text grows by 1."
