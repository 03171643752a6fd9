"""The recorded kernel times: the picture shows the record, above the floor that its bytes give."""

import json

import pytest
from support.paths import ROOT

from specdec_course.pictures.kernel_times import kernel_figure, kernel_times, kernel_words


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "lessons" / "recorded" / "paged_attention_gpu.json").read_text(encoding="utf-8"))


def test_the_shares_of_the_memorys_speed(record):
    """268 MB at 4.8 TB/s are 56 us; dense attention took 822 us, the kernel 210 us, and 556 us for five tokens."""
    shares = [kernel_times(record, way, n).share(65_536) for way, n in (("dense", 1), ("kernel", 1), ("kernel", 5))]
    assert shares == [pytest.approx(x, abs=0.005) for x in (0.068, 0.266, 0.101)]


def test_twenty_rows_need_two_readings(record):
    assert [kernel_times(record, "kernel", n).readings for n in (1, 5)] == [1, 2]


def test_what_the_lesson_says_of_the_record(record):
    """Who wins at the longest context; and one to two hundred microseconds a call at the short ones."""
    times = {way: kernel_times(record, way, 1) for way in ("dense", "gathered", "kernel", "one_part")}
    longest = {way: t.median[-1] for way, t in times.items()}
    assert 3.5 < longest["dense"] / longest["kernel"] < 4.5
    assert longest["gathered"] < longest["one_part"]
    assert all(75 < us < 250 for t in times.values() for us in t.median[:3]) and times["kernel"].floor[2] < 4
    same = [times["kernel"].median[i] / times["one_part"].median[i] for i in (0, 1)]
    assert same == [pytest.approx(1.17, abs=0.01), pytest.approx(1.31, abs=0.01)], "the same code, so this is noise"


def test_lines_bars_and_floor_are_drawn(record):
    figure = kernel_figure(record)
    for ax, n in zip(figure.axes, (1, 5), strict=True):
        drawn = {tuple(line.get_ydata()) for line in ax.lines}
        for way in ("dense", "gathered", "kernel", "one_part"):
            assert tuple(kernel_times(record, way, n).median) in drawn
        assert tuple(kernel_times(record, "dense", n).floor) in drawn
    assert len(figure.axes[0].containers) == len(figure.axes[1].containers) == 4
    assert "5 new, one piece (dense): 196 µs at 256" in kernel_words(record)


def test_a_run_that_is_not_recorded_is_refused(record):
    with pytest.raises(ValueError, match="with 3 new tokens"):
        kernel_times(record, "dense", 3)
    with pytest.raises(ValueError, match="'sparse'"):
        kernel_times(record, "sparse", 1)
