"""Rooflines: figures drawn from the numbers they show, words for every outcome, widgets that redraw."""

import re

import pytest
import torch
from support.tiny_models import tiny_config

from specdec_course.pictures import roofline
from specdec_course.pictures.roofline import Point
from specdec_ref.arithmetic import accelerator, decode, linear_intensity, model_shape, prefill, verification
from specdec_ref.measure import DecodeTimes, Machine, Rates, WeightStream
from specdec_ref.models import Llama

H100 = accelerator("h100-sxm")


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_the_roof_bends_at_the_ridge():
    figure = roofline.roofline_figure([H100, accelerator("l4")])
    for chip in (H100, accelerator("l4")):
        roof = lines(figure)[f"{chip.name}, ridge {chip.ridge():.0f}"]
        x, y = roof.get_data()
        assert x[1] == pytest.approx(chip.ridge()) and x[0] < x[1] < x[2]
        assert y[0] / x[0] == pytest.approx(y[1] / x[1]) == chip.bandwidth / 1e12
        assert y[1] == pytest.approx(y[2]) == chip.rate() / 1e12
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_points_lie_on_the_roof_unless_measured():
    figure = roofline.roofline_figure([H100], [Point("a", 10), Point("b", 1000), Point("c", 10, 5e12)])
    found = lines(figure)
    assert found["a: 10.0 FLOP/byte"].get_ydata() == pytest.approx([33.5])
    assert found["b: 1,000 FLOP/byte"].get_ydata() == pytest.approx([989])
    assert found["c: 10.0 FLOP/byte"].get_ydata() == pytest.approx([5])


def test_no_roof_is_refused():
    with pytest.raises(ValueError, match="give at least one"):
        roofline.roofline_figure([])


def test_passes_are_those_of_the_arithmetic():
    shape = model_shape("llama-3-8b")
    works = roofline.passes("llama-3-8b", batch=4, context=100, gamma=3, weights="fp8", prompt=50)
    assert works == {
        "prefill of 50": prefill(shape, 50, 4, weights="fp8"),
        "decode": decode(shape, 100, 4, weights="fp8"),
        "verify 3": verification(shape, 3, 100, 4, weights="fp8"),
    }
    row = roofline.passes_rows(H100, works)[1]
    assert row[0] == "decode" and row[3] == "memory" and row[1] == f"{works['decode'].intensity:,.1f}"
    assert float(row[4].rstrip("%")) == pytest.approx(100 * works["decode"].intensity / H100.ridge(), abs=0.05)


def test_the_page_says_what_fits_and_where_decode_turns():
    large = roofline.passes_html("llama-3-70b", "h100-sxm", context=1024)
    assert "do not fit on one such chip: 141 GB" in large
    assert "becomes compute-bound at batch 965, but only 0 caches fit" in large
    small = roofline.passes_html("llama-3-8b", "h100-sxm", context=512)
    assert "The weights fit on one such chip" in small
    assert "memory-bound at every batch" in roofline.passes_html("llama-3-70b", "h100-sxm", context=8192)
    assert re.search(r'alt="[^"]*decode: 1.0 FLOP/byte, memory-bound', large)


def test_the_roofline_moves_with_its_sliders():
    box = roofline.passes_explorer()
    controls = {c.description.split(" (")[0]: c for c in box.children[:-1]}
    page = box.children[-1]
    before = page.value
    controls["batch"].value = 64
    assert page.value == roofline.passes_html("llama-3-70b", "h100-sxm", batch=64)
    assert page.value != before
    controls["weights"].value = "int4-g128"
    controls["chip"].value = "l4"
    controls["gamma"].value = 2
    controls["model"].value = "llama-3-8b"
    controls["context"].value = 2048
    assert page.value == roofline.passes_html("llama-3-8b", "l4", batch=64, context=2048, gamma=2, weights="int4-g128")


def test_every_choice_of_the_roofline_can_be_drawn():
    for model in roofline.MODELS:
        assert "decode" in roofline.passes_html(model, "t4", context=0, gamma=0)
        for weights in roofline.WEIGHTS:
            assert all(work.intensity > 0 for work in roofline.passes(model, weights=weights).values())


def test_a_layer_is_placed_by_what_was_measured(monkeypatch):
    stream = WeightStream("bf16", 64, 2**16, matrix_bytes=2**14)
    turns = iter([4.0, 8.0, 2.0, 9.0])
    monkeypatch.setattr(stream, "seconds", lambda n, matrices: next(turns))
    one, eight = roofline.layer_points(stream, (1, 8), repeats=2)
    assert (one.label, eight.label) == ("1 token", "8 tokens")
    assert one.rate == 2 * 1 * 64 * 128 / 2.0 and eight.rate == 2 * 8 * 64 * 128 / 8.0
    assert eight.intensity == linear_intensity(8, 64, 128, 2)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((10e12, 12e12), "compute-bound from the start"),
        ((10e12, 900e12), "up to 91%"),
        ((10e12, 2e15), "was disturbed"),
    ],
)
def test_the_words_on_a_layer_fit_what_was_measured(rates, words):
    points = [Point("1 token", 1, rates[0]), Point("64 tokens", 60, rates[1])]
    assert words in roofline.layer_verdict(points, H100, "bf16")


def times(bandwidth, overhead, measured):
    work = decode(model_shape("smollm2-135m"), 64)
    return DecodeTimes(work, (bandwidth,) * 3, (overhead,) * 3, (measured,) * 3)


@pytest.mark.parametrize(
    ("measured", "words"),
    [(0.040, "within 30%, and nothing was fitted"), (0.080, "The step was slower"), (0.020, "The step was faster")],
)
def test_the_words_on_a_prediction_fit_both_outcomes(measured, words):
    found = times(10e9, 0.012, measured)
    assert words in roofline.decode_verdict(found)
    rows = dict(roofline.decode_rows(found))
    assert rows["so reading takes"] == "27.1 ms" and rows["predicted step"] == "39.1 ms"
    assert rows["measured step"] == f"{measured * 1e3:.1f} ms"


def test_a_machine_in_rows_says_whether_it_was_quiet():
    rates = (Rates("fp32", 1, (10e9, 9.9e9), (1e11, 1e11)), Rates("bf16", 2, (10e9, 1e9, 1e9), (2e11, 1e11, 1e11)))
    rows = roofline.machine_rows(Machine("2 cores", 1, rates))
    assert rows[0] == ("fp32", "1", "10.0", "100", "10", "quiet: median 100% of the best")
    assert rows[1] == ("bf16", "2", "10.0", "200", "20", "disturbed: median 10% of the best")


def test_the_predicted_cost_of_a_pass_is_flat_while_memory_decides_and_then_rises():
    model = Llama(tiny_config(), torch.float32)
    found = times(1e9, 0.0, 1.0)
    assert roofline.predicted_pass_cost(model, found, 1e18, (1, 8), context=0) == pytest.approx({1: 1, 8: 1}, rel=0.2)
    slow = roofline.predicted_pass_cost(model, found, 1e6, (1, 2, 8), context=0)
    assert slow[1] == 1 and slow[2] == pytest.approx(2, rel=0.05) and slow[8] == pytest.approx(8, rel=0.1)
    overhead = roofline.predicted_pass_cost(model, times(1e9, 10.0, 1.0), 1e6, (1, 8), context=0)
    assert overhead[8] == pytest.approx(1, abs=0.1)
