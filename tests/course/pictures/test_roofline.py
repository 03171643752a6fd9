"""Rooflines: figures drawn from the numbers they show, words for every outcome, widgets that redraw."""

import re

import pytest

from specdec_course.pictures import roofline
from specdec_course.pictures.roofline import Point
from specdec_ref.arithmetic import (
    accelerator,
    decode,
    forward_kernels,
    model_shape,
    prefill,
    step_time,
    verification,
)

H100 = accelerator("h100-sxm")


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_the_roof_bends_at_the_ridge():
    figure = roofline.roofline_figure([H100, accelerator("l4")])
    assert "ridge: 295 FLOP/byte" in [text.get_text() for text in figure.axes[0].texts]
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


def test_the_table_of_chips_has_all_of_them_with_their_ridge():
    rows = {row[0]: row[1:] for row in roofline.chips_rows()}
    assert rows["h100-sxm"][:4] == ("989", "3.35", "80", "295")
    assert rows["v100-sxm"][3] == "139", "a chip without bf16, at fp16"


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


def test_the_picture_of_passes_says_what_a_verification_adds():
    words = [text.get_text() for text in roofline.passes_figure("llama-3-70b", "h100-sxm").axes[0].texts]
    assert "6.0 x the arithmetic\n+0.00% time" in words


def test_the_linear_layers_cross_the_ridge_whatever_the_context():
    llama = model_shape("llama-3-70b")
    first = roofline.crossing_batch(llama, H100)
    assert [
        step_time(forward_kernels(llama, 1, context, batch)[0], H100).bound
        for batch in (first - 1, first)
        for context in (0, 8192)
    ] == ["memory", "memory", "compute", "compute"]
    assert roofline.crossing_batch(llama, H100, 6) == pytest.approx(first / 6, abs=1)


def test_the_page_of_kernels_says_what_fits_and_what_a_verification_costs():
    large = roofline.kernels_html("llama-3-70b", "h100-sxm", 64, 1024)
    assert "141 GB, do not fit on one such chip" in large and ">1.26<" in large
    assert "turn compute-bound at a batch of 296 in decode, of 50 in verification" in large
    small = roofline.kernels_html("llama-3-8b", "h100-sxm", context=1024)
    assert "The caches of 416 such sequences fit on one chip" in small and ">1.00<" in small
    assert re.search(r'alt="[^"]*decode, linear: 1.0 FLOP/byte', small)


def test_the_roofline_moves_with_its_sliders():
    box = roofline.kernels_explorer()
    controls = {c.description.split(" (")[0]: c for c in box.children[:-1]}
    page = box.children[-1]
    before = page.value
    controls["batch"].value = 256
    assert page.value == roofline.kernels_html("llama-3-8b", "h100-sxm", batch=256)
    assert page.value != before
    controls["weights"].value = "int4-g128"
    controls["chip"].value = "l4"
    controls["gamma"].value = 2
    controls["model"].value = "llama-3-70b"
    controls["context"].value = 2048
    assert page.value == roofline.kernels_html("llama-3-70b", "l4", 256, 2048, 2, "int4-g128")


def test_every_choice_of_the_roofline_can_be_drawn():
    for model in roofline.MODELS:
        assert "decode" in roofline.kernels_html(model, "t4", context=0, gamma=0)
        for weights in roofline.WEIGHTS:
            assert all(work.intensity > 0 for work in roofline.passes(model, weights=weights).values())
