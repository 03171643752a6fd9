"""A pass drawn: bars as long as what they stand for."""

import pytest

from specdec_course.pictures import passes
from specdec_ref.arithmetic import StepTime, accelerator, forward_kernels, model_shape, step_time

LLAMA, H100 = model_shape("llama-3-70b"), accelerator("h100-sxm")


def test_the_timeline_is_to_scale_and_kernels_follow_each_other():
    times = [StepTime(0.04, 0.05), StepTime(0.01, 0.002)]
    ax = passes.timeline_figure({"a pass": times}).axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert bars == [pytest.approx(b) for b in ((0, 40), (0, 50), (50, 10), (50, 2))]
    assert [t.get_text().strip() for t in ax.texts] == ["50.0 ms", "52.0 ms"]
    assert ax.get_yticklabels()[0].get_text() == "a pass\n60.0 ms"


def test_a_small_share_of_a_millisecond_is_not_rounded_away():
    ax = passes.timeline_figure({"decode": [StepTime(0.0418, 0.000142)]}).axes[0]
    assert [t.get_text().strip() for t in ax.texts] == ["41.8 ms", "0.14 ms"]


def test_the_bars_of_kernels_are_their_times():
    figure = passes.kernels_figure("llama-3-70b", "h100-sxm", (64,), (1024,), gamma=5)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    wanted = [
        1e3 * step_time(kernel, H100).overlapped_s for n in (1, 6) for kernel in forward_kernels(LLAMA, n, 1024, 64)
    ]
    assert heights == pytest.approx(wanted)
    assert [t.get_text() for t in figure.axes[0].texts] == ["1.26x"]


def test_a_tile_has_as_many_columns_as_tokens():
    one, six = passes.tile_figure((1, 6)).axes
    assert "used once: 1 FLOP/byte" in one.get_title() and "used 6 times: 6 FLOP/byte" in six.get_title()
    assert len(six.patches) - len(one.patches) == 2 * 5 * 8 + 5, "five more columns, in and out, and five more marks"


def test_the_right_roof_ends_at_the_ridge():
    _, right = passes.two_roofs_figure().axes
    assert right.lines[0].get_xydata().tolist() == [[0, 0], [0.5, 1], [1, 1]]
