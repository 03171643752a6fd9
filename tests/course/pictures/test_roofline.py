"""Lessons 01 and 02: figures drawn from the numbers they show, words that fit every outcome, widgets that redraw."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config

from specdec_course import answers
from specdec_course.article.table import claims_html
from specdec_course.pictures import cache as cache_plots
from specdec_course.pictures import roofline as roofline_plots
from specdec_course.pictures.roofline import Point
from specdec_ref.arithmetic import (
    accelerator,
    decode,
    fit,
    kv_bytes,
    kv_bytes_per_token,
    linear_intensity,
    model_shape,
    prefill,
    verification,
)
from specdec_ref.measure import DecodeTimes, Machine, Rates, WeightStream
from specdec_ref.models.llama import Llama
from specdec_ref.models.scripted import ScriptedModel

H100 = accelerator("h100-sxm")


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


# Roofline


def test_the_roof_bends_at_the_ridge():
    figure = roofline_plots.roofline_figure([H100, accelerator("l4")])
    for chip in (H100, accelerator("l4")):
        roof = lines(figure)[f"{chip.name}, ridge {chip.ridge():.0f}"]
        x, y = roof.get_data()
        assert x[1] == pytest.approx(chip.ridge()) and x[0] < x[1] < x[2]
        assert y[0] / x[0] == pytest.approx(y[1] / x[1]) == chip.bandwidth / 1e12
        assert y[1] == pytest.approx(y[2]) == chip.rate() / 1e12
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_points_lie_on_the_roof_unless_measured():
    figure = roofline_plots.roofline_figure([H100], [Point("a", 10), Point("b", 1000), Point("c", 10, 5e12)])
    found = lines(figure)
    assert found["a: 10.0 FLOP/byte"].get_ydata() == pytest.approx([33.5])
    assert found["b: 1,000 FLOP/byte"].get_ydata() == pytest.approx([989])
    assert found["c: 10.0 FLOP/byte"].get_ydata() == pytest.approx([5])


def test_no_roof_is_refused():
    with pytest.raises(ValueError, match="give at least one"):
        roofline_plots.roofline_figure([])


def test_passes_are_those_of_the_arithmetic():
    shape = model_shape("llama-3-8b")
    works = roofline_plots.passes("llama-3-8b", batch=4, context=100, gamma=3, weights="fp8", prompt=50)
    assert works == {
        "prefill of 50": prefill(shape, 50, 4, weights="fp8"),
        "decode": decode(shape, 100, 4, weights="fp8"),
        "verify 3": verification(shape, 3, 100, 4, weights="fp8"),
    }
    row = roofline_plots.passes_rows(H100, works)[1]
    assert row[0] == "decode" and row[3] == "memory" and row[1] == f"{works['decode'].intensity:,.1f}"
    assert float(row[4].rstrip("%")) == pytest.approx(100 * works["decode"].intensity / H100.ridge(), abs=0.05)


def test_the_page_says_what_fits_and_where_decode_turns():
    large = roofline_plots.passes_html("llama-3-70b", "h100-sxm", context=1024)
    assert "do not fit on one such chip: 141 GB" in large
    assert "turns compute-bound at batch 965, but caches for only 0 fit" in large
    small = roofline_plots.passes_html("llama-3-8b", "h100-sxm", context=512)
    assert "The weights fit on one such chip" in small
    assert "bound by memory at every batch" in roofline_plots.passes_html("llama-3-70b", "h100-sxm", context=8192)
    assert re.search(r'alt="[^"]*decode: 1.0 FLOP/byte, memory-bound', large)


def test_the_roofline_moves_with_its_sliders():
    box = roofline_plots.passes_explorer()
    controls = {c.description.split(" (")[0]: c for c in box.children[:-1]}
    page = box.children[-1]
    before = page.value
    controls["batch"].value = 64
    assert page.value == roofline_plots.passes_html("llama-3-70b", "h100-sxm", batch=64)
    assert page.value != before
    controls["weights"].value = "int4-g128"
    controls["chip"].value = "l4"
    controls["gamma"].value = 2
    controls["model"].value = "llama-3-8b"
    controls["context"].value = 2048
    assert page.value == roofline_plots.passes_html(
        "llama-3-8b", "l4", batch=64, context=2048, gamma=2, weights="int4-g128"
    )


def test_every_choice_of_the_roofline_can_be_drawn():
    for model in roofline_plots.MODELS:
        assert "decode" in roofline_plots.passes_html(model, "t4", context=0, gamma=0)
        for weights in roofline_plots.WEIGHTS:
            assert all(work.intensity > 0 for work in roofline_plots.passes(model, weights=weights).values())


def test_a_layer_is_placed_by_what_was_measured(monkeypatch):
    stream = WeightStream("bf16", 64, 2**16, matrix_bytes=2**14)
    turns = iter([4.0, 8.0, 2.0, 9.0])
    monkeypatch.setattr(stream, "seconds", lambda n, matrices: next(turns))
    one, eight = roofline_plots.layer_points(stream, (1, 8), repeats=2)
    assert (one.label, eight.label) == ("1 token", "8 tokens")
    assert one.rate == 2 * 1 * 64 * 128 / 2.0 and eight.rate == 2 * 8 * 64 * 128 / 8.0
    assert eight.intensity == linear_intensity(8, 64, 128, 2)


@pytest.mark.parametrize(
    ("rates", "words"),
    [((10e12, 12e12), "bounds it from the start"), ((10e12, 900e12), "up to 91%"), ((10e12, 2e15), "was disturbed")],
)
def test_the_words_on_a_layer_fit_what_was_measured(rates, words):
    points = [Point("1 token", 1, rates[0]), Point("64 tokens", 60, rates[1])]
    assert words in roofline_plots.layer_verdict(points, H100, "bf16")


def times(bandwidth, overhead, measured):
    work = decode(model_shape("smollm2-135m"), 64)
    return DecodeTimes(work, (bandwidth,) * 3, (overhead,) * 3, (measured,) * 3)


@pytest.mark.parametrize(
    ("measured", "words"),
    [(0.040, "within 30%, and nothing was fitted"), (0.080, "The step was slower"), (0.020, "The step was faster")],
)
def test_the_words_on_a_prediction_fit_both_outcomes(measured, words):
    found = times(10e9, 0.012, measured)
    assert words in roofline_plots.decode_verdict(found)
    rows = dict(roofline_plots.decode_rows(found))
    assert rows["so reading takes"] == "27.1 ms" and rows["predicted step"] == "39.1 ms"
    assert rows["measured step"] == f"{measured * 1e3:.1f} ms"


def test_a_machine_in_rows_says_whether_it_was_quiet():
    rates = (Rates("fp32", 1, (10e9, 9.9e9), (1e11, 1e11)), Rates("bf16", 2, (10e9, 1e9, 1e9), (2e11, 1e11, 1e11)))
    rows = roofline_plots.machine_rows(Machine("2 cores", 1, rates))
    assert rows[0] == ("fp32", "1", "10.0", "100", "10", "quiet: median 100% of the best")
    assert rows[1] == ("bf16", "2", "10.0", "200", "20", "disturbed: median 10% of the best")


def test_the_predicted_cost_of_a_pass_is_flat_while_memory_decides_and_then_rises():
    model = Llama(tiny_config(), torch.float32)
    found = times(1e9, 0.0, 1.0)
    assert roofline_plots.predicted_pass_cost(model, found, 1e18, (1, 8), context=0) == pytest.approx(
        {1: 1, 8: 1}, rel=0.2
    )
    slow = roofline_plots.predicted_pass_cost(model, found, 1e6, (1, 2, 8), context=0)
    assert slow[1] == 1 and slow[2] == pytest.approx(2, rel=0.05) and slow[8] == pytest.approx(8, rel=0.1)
    overhead = roofline_plots.predicted_pass_cost(model, times(1e9, 10.0, 1.0), 1e6, (1, 8), context=0)
    assert overhead[8] == pytest.approx(1, abs=0.1)


def test_the_cost_of_a_pass_is_drawn_as_measured():
    figure = roofline_plots.verify_cost_figure({1: 1.0, 4: 1.5}, {1: 1.0, 4: 1.1})
    assert list(lines(figure)["one pass, measured"].get_ydata()) == [1.0, 1.5]
    assert list(lines(figure)["one pass, predicted"].get_ydata()) == [1.0, 1.1]


# Cache


def test_variants_of_attention_change_nothing_but_the_heads():
    llama = model_shape("llama-3-70b")
    variants = cache_plots.attention_variants(llama)
    sizes = [kv_bytes_per_token(s) for s in variants.values()]
    assert sizes == [8 * 327_680, 327_680, 327_680 // 8]
    assert list(variants) == ["MHA, 64 heads", "GQA, 8 heads (as it is)", "MQA, 1 head"]
    assert {s.hidden_size for s in variants.values()} == {8192}
    assert list(cache_plots.attention_variants(model_shape("llama-2-7b"))) == ["MHA, 32 heads", "MQA, 1 head"]
    with pytest.raises(ValueError, match="caches a latent"):
        cache_plots.attention_variants(model_shape("deepseek-v3"))


def test_the_growth_of_caches_is_that_of_the_arithmetic():
    figure = cache_plots.growth_figure(["llama-3-8b", "mistral-7b-v0.1"], batch=2, kv="fp8")
    for name in ("llama-3-8b", "mistral-7b-v0.1"):
        x, y = lines(figure)[name].get_data()
        assert list(y) == pytest.approx([kv_bytes(model_shape(name), int(n), 2, "fp8") / 1e9 for n in x])


def test_the_bars_are_the_sizes():
    figure = cache_plots.attention_figure({"a MHA": 100, "b MLA": 10})
    assert [bar.get_width() for bar in figure.axes[0].patches] == [100, 10]
    assert [text.get_text().strip() for text in figure.axes[0].texts] == ["100 B", "10 B"]


def test_the_page_of_a_cache_says_whether_all_fit():
    room = fit(model_shape("llama-3-70b"), H100, 8192, tp=8, block_size=1).sequences
    assert "all fit" in cache_plots.cache_html("llama-3-70b", "h100-sxm", 8, room, 8192)
    page = cache_plots.cache_html("llama-3-70b", "h100-sxm", 8, room + 1, 8192)
    assert "they do not fit" in page and f">{room}<" in page
    assert "the weights do not fit" in cache_plots.cache_html("llama-3-70b", "h100-sxm", 1, 1, 512)


def test_heads_that_do_not_divide_are_explained_and_replicas_named():
    assert "9 query heads cannot be split over 2 ranks" in cache_plots.cache_html("smollm2-135m", "h100-sxm", 2, 1, 512)
    assert "replicated" in cache_plots.cache_html("llama-3-70b", "h100-sxm", 16, 1, 512)
    assert "replicated" not in cache_plots.cache_html("llama-3-70b", "h100-sxm", 8, 1, 512)


def test_the_cache_moves_with_its_sliders():
    box = cache_plots.cache_explorer()
    controls = {c.description.split(" (")[0]: c for c in box.children[:-1]}
    page = box.children[-1]
    controls["users"].value = 7
    controls["context"].value = 1024
    controls["cache format"].value = "int8"
    controls["chips"].value = 4
    assert page.value == cache_plots.cache_html("llama-3-70b", "h100-sxm", 4, 7, 1024, "int8")


def test_every_choice_of_the_cache_can_be_drawn():
    for model in cache_plots.MODELS:
        assert "users that fit" in cache_plots.cache_html(model, "b200", 1, 2, 131_072)
        for kv in cache_plots.KV_FORMATS:
            assert kv_bytes(model_shape(model), 512, 1, kv) > 0


def test_users_by_context_and_format():
    (row,) = cache_plots.users_rows(model_shape("llama-3-70b"), "h100-sxm", 8, [8192])
    assert row[:3] == ("8,192", "162", "324")


def test_reserving_for_the_longest_wastes_more_the_longer_it_is():
    shares = cache_plots.reserved_shares(2048, n=300)
    assert 0 < shares["max"] < shares["pow2"] < shares["oracle"] == 1
    assert shares == cache_plots.reserved_shares(2048, n=300)
    assert cache_plots.reserved_shares(4096, n=300)["max"] < shares["max"]
    figure = cache_plots.reserved_figure(shares, {"max": "longest"})
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths[:3] == pytest.approx([100 * s for s in shares.values()])
    assert [a + b for a, b in zip(widths[:3], widths[3:], strict=True)] == pytest.approx([100] * 3)


@pytest.mark.parametrize("kind", ["MHA", "GQA", "MQA"])
def test_transformers_allocates_what_is_estimated(kind):
    estimated, allocated = cache_plots.allocated_bytes(kind, 7)
    assert estimated == allocated > 0


class Slow(ScriptedModel):
    """1 ms a token, on a clock of its own."""

    def __init__(self):
        super().__init__(lambda tokens: [0.5, 0.5], 2)
        self.now = 0.0
        self.seen = []

    def forward(self, tokens, cache, rows=slice(None)):
        self.seen.append((cache.length, len(tokens)))
        self.now += 0.001 * len(tokens)
        return super().forward(tokens, cache, rows)


def test_a_step_with_a_cache_passes_one_token_and_without_all():
    model = Slow()
    seconds = cache_plots.step_seconds(model, (4, 9), repeats=2, clock=lambda: model.now)
    assert seconds == {4: pytest.approx((0.001, 0.005)), 9: pytest.approx((0.001, 0.010))}
    assert model.seen[2:] == 3 * [(4, 1), (0, 5), (9, 1), (0, 10)]
    figure = cache_plots.step_time_figure(seconds)
    assert list(lines(figure)["without: all tokens again"].get_ydata()) == pytest.approx([5, 10])
    assert "10.0 times as long" in cache_plots.step_time_verdict(seconds)
    assert "no clear difference" in cache_plots.step_time_verdict({8: (0.01, 0.011)})


# Answers


@pytest.mark.parametrize("name", answers.QUESTIONS)
def test_an_answer_is_right_or_its_mistake_is_explained(name):
    question = answers.QUESTIONS[name]()
    assert answers.check(name, question.right).startswith("Yes: ")
    assert answers.check(name, 1.019 * question.right).startswith("Yes: ")
    for wrong, why in question.mistakes.items():
        assert answers.check(name, wrong).startswith("Not ") and answers.check(name, wrong).endswith(why)
    assert "place of None" in answers.check(name, None)
    assert "more than nothing" in answers.check(name, 0)
    assert "1,000 times too large" in answers.check(name, 1000 * question.right)
    assert "1,000 times too small" in answers.check(name, question.right / 1000)


@pytest.mark.parametrize("given", ["162", "about 160", (162, 5), [162], {}, math.nan, math.inf])
def test_what_is_no_number_is_told_so(given):
    assert "no number" in answers.check("chats on eight H100s", given)


@pytest.mark.parametrize("given", [162, 162.0, Fraction(162), np.int64(162), torch.tensor(162)])
def test_any_kind_of_number_will_do(given):
    assert answers.check("chats on eight H100s", given) == "Yes: 162 chats."


def test_an_answer_3_percent_off_is_not_right():
    assert not answers.check("ridge of an H100", 1.03 * 295.2).startswith("Yes")


def test_guesses_are_told_without_judgement():
    assert answers.guess_text(200, 23.93, "tokens/s") == "23.9 tokens/s (you guessed 200)"
    assert answers.guess_text(20, 23.93) == "23.9 (about as you guessed)"
    assert answers.guess_text(1, 162) == "162 (you guessed 1)"


def test_claims_are_shown_with_what_is_computed_now():
    table = claims_html(3, 10)
    assert table.count("<tr>") == 3 and "989 TFLOP/s" in table and "<b>wrong</b>" in table and "2.68 GB" in table
    with pytest.raises(KeyError):
        claims_html(999)
