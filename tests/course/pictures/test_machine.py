"""The learner's machine in pictures: drawn from what was measured, words for every outcome."""

import pytest
import torch
from support.tiny_models import tiny_config

from specdec_course.pictures import machine
from specdec_course.pictures.roofline import Point
from specdec_ref.arithmetic import accelerator, decode, linear_intensity, model_shape
from specdec_ref.measure import DecodeTimes, Machine, Rates, WeightStream
from specdec_ref.models import Llama

H100 = accelerator("h100-sxm")


def test_a_layer_is_placed_by_what_was_measured(monkeypatch):
    stream = WeightStream("bf16", 64, 2**16, matrix_bytes=2**14)
    turns = iter([4.0, 8.0, 2.0, 9.0])
    monkeypatch.setattr(stream, "seconds", lambda n, matrices: next(turns))
    one, eight = machine.layer_points(stream, (1, 8), repeats=2)
    assert (one.label, eight.label) == ("1 token", "8 tokens")
    assert one.rate == 2 * 1 * 64 * 128 / 2.0 and eight.rate == 2 * 8 * 64 * 128 / 8.0
    assert eight.intensity == linear_intensity(8, 64, 128, 2)


def test_no_measured_point_lies_above_the_roof():
    rates = (Rates("fp32", 1, (9e9, 8e9), (1e11, 1e11)), Rates("bf16", 1, (7e9,), (2e11,)))
    points = [Point("1 token", 1, 6e9), Point("4 tokens", 4, 60e9), Point("256 tokens", 200, 3e11)]
    roof = machine.roof_of(Machine("2 cores", 1, rates), 1, points, "bf16")
    assert roof.bandwidth == 15e9 and roof.rate("bf16") == 3e11
    assert machine.roof_of(Machine("2 cores", 1, rates), 1, points[:1], "bf16").bandwidth == 9e9, "of any format"
    figure = machine.machine_figure(roof, points, "bf16", H100)
    near, far = figure.axes
    assert near.get_ylabel() == "GFLOP/s" and far.get_ylabel() == "TFLOP/s"
    line = next(line for line in near.lines if line.get_marker() == "o")
    assert list(line.get_ydata()) == [6, 60, 300]
    assert [t.get_text() for t in near.texts if t.get_text().isdigit()] == ["1", "4", "256"]


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (
            (3.3e12, 900e12),
            ("99% of the fastest reading", "Memory sets its time", "91% of the flat roof", "up to the roof"),
        ),
        ((2e12, 500e12), ("60% of the fastest reading", "Its kernel or a busy machine", "stays below the roof")),
        ((3.3e12, 4e12), ("1.2 times", "does not climb")),
    ],
)
def test_the_words_on_a_layer_fit_what_was_measured(rates, words):
    points = [Point("1 token", 1, rates[0]), Point("64 tokens", 60, rates[1])]
    said = machine.layer_words(points, H100, "bf16")
    assert all(w in said for w in words)


def test_how_busy_others_are_is_said(monkeypatch):
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda seconds: 3.0)
    assert "a good time to measure" in machine.others_text(0)
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda seconds: 47.0)
    assert "use 47% of the processors" in machine.others_text(0) and "too slow" in machine.others_text(0)


def times(bandwidth, overhead, measured):
    work = decode(model_shape("smollm2-135m"), 64)
    return DecodeTimes(work, (bandwidth,) * 3, (overhead,) * 3, (measured,) * 3)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (0.040, "within 30%. Reading and overhead explain the step"),
        (0.080, "The step was slower"),
        (0.020, "The step was faster"),
    ],
)
def test_the_words_on_a_prediction_fit_both_outcomes(measured, words):
    found = times(10e9, 0.012, measured)
    assert words in machine.decode_verdict(found)
    rows = dict(machine.decode_rows(found))
    assert rows["so reading takes"] == "27.1 ms" and rows["predicted step: the sum"] == "39.1 ms"
    assert rows["measured step"] == f"{measured * 1e3:.1f} ms"


def test_a_prediction_is_the_sum_of_what_stands_above_it():
    rows = dict(machine.decode_rows(times(12.9e9, 0.00816, 0.030)))
    reading, overhead, total = (
        float(rows[k].split()[0])
        for k in ("so reading takes", "the framework's overhead (measured)", "predicted step: the sum")
    )
    assert total == pytest.approx(reading + overhead, abs=1e-9)


def test_a_machine_in_rows_says_how_far_its_rounds_differ():
    rates = (Rates("fp32", 1, (10e9, 9.9e9), (1e11, 1e11)), Rates("bf16", 2, (10e9, 1e9, 1e9), (2e11, 1e11, 1e11)))
    rows = machine.machine_rows(Machine("2 cores", 1, rates))
    assert rows[0] == ("fp32", "1", "10.0", "100", "10", "99 to 100%")
    assert rows[1] == ("bf16", "2", "10.0", "200", "20", "10 to 100%")


def test_the_cost_of_passes_with_ranges_and_words():
    ranges = machine.cost_ranges({1: [1.0, 1.1, 0.9], 4: [0.8, 0.9, 1.0], 16: [2.0, 3.0, 4.0]})
    assert ranges[1] == (0.9, 1.0, 1.1) and ranges[16] == (2.0, 3.0, 4.0)
    said = machine.cost_words(ranges, {1: 1.0, 4: 1.0, 16: 1.5})
    assert "Largest gap: n = 16, measured 3.00, predicted 1.50." in said
    assert "A pass over 4 tokens took less than one over a single token" in said and "may be noise" in said
    assert "room here" in said
    apart = machine.cost_words({1: (0.9, 1.0, 1.1), 4: (0.7, 0.8, 0.85)}, {1: 1.0, 4: 1.0})
    assert "the kernel for one token is the slower one" in apart
    flat = machine.cost_words({1: (1, 1, 1), 2: (2, 2, 2)}, {1: 1.0, 2: 1.0})
    assert "faster than" not in flat and "little room" in flat
    figure = machine.predicted_cost_figure(ranges, {1: 1.0, 4: 1.0, 16: 1.5})
    (bars,) = figure.axes[0].containers
    drawn = [list(segment[:, 1]) for segment in bars.lines[2][0].get_segments()]
    assert drawn == [pytest.approx([low, high]) for low, _, high in ranges.values()]


def test_the_predicted_cost_of_a_pass_is_flat_while_memory_decides_and_then_rises():
    model = Llama(tiny_config(), torch.float32)
    found = times(1e9, 0.0, 1.0)
    assert machine.predicted_pass_cost(model, found, 1e18, (1, 8), context=0) == pytest.approx({1: 1, 8: 1}, rel=0.2)
    slow = machine.predicted_pass_cost(model, found, 1e6, (1, 2, 8), context=0)
    assert slow[1] == 1 and slow[2] == pytest.approx(2, rel=0.05) and slow[8] == pytest.approx(8, rel=0.1)
    overhead = machine.predicted_pass_cost(model, times(1e9, 10.0, 1.0), 1e6, (1, 8), context=0)
    assert overhead[8] == pytest.approx(1, abs=0.1)
