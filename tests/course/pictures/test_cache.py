"""The key-value cache: figures drawn from the numbers they show, words for every outcome, widgets that redraw."""

import pytest

from specdec_course.pictures import cache as pictures
from specdec_ref.arithmetic import accelerator, fit, kv_bytes, kv_bytes_per_token, model_shape
from specdec_ref.models import ScriptedModel

H100 = accelerator("h100-sxm")


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_variants_of_attention_change_nothing_but_the_heads():
    llama = model_shape("llama-3-70b")
    variants = pictures.attention_variants(llama)
    sizes = [kv_bytes_per_token(s) for s in variants.values()]
    assert sizes == [8 * 327_680, 327_680, 327_680 // 8]
    assert list(variants) == ["MHA, 64 heads", "GQA, 8 heads (as it is)", "MQA, 1 head"]
    assert {s.hidden_size for s in variants.values()} == {8192}
    assert list(pictures.attention_variants(model_shape("llama-2-7b"))) == ["MHA, 32 heads", "MQA, 1 head"]
    with pytest.raises(ValueError, match="caches a latent"):
        pictures.attention_variants(model_shape("deepseek-v3"))


def test_the_growth_of_caches_is_that_of_the_arithmetic():
    figure = pictures.growth_figure(["llama-3-8b", "mistral-7b-v0.1"], batch=2, kv="fp8")
    for name in ("llama-3-8b", "mistral-7b-v0.1"):
        x, y = lines(figure)[name].get_data()
        assert list(y) == pytest.approx([kv_bytes(model_shape(name), int(n), 2, "fp8") / 1e9 for n in x])


def test_the_bars_are_the_sizes():
    figure = pictures.attention_figure({"a MHA": 100, "b MLA": 10})
    assert [bar.get_width() for bar in figure.axes[0].patches] == [100 / 1e6, 10 / 1e6]
    assert figure.axes[0].get_xscale() == "linear", "a bar has no length on a logarithmic axis"
    assert [text.get_text().strip() for text in figure.axes[0].texts] == ["100 bytes", "10 bytes"]


def test_the_page_of_a_cache_says_whether_all_fit():
    room = fit(model_shape("llama-3-70b"), H100, 8192, tp=8, block_size=1).sequences
    assert "all fit" in pictures.cache_html("llama-3-70b", "h100-sxm", 8, room, 8192)
    page = pictures.cache_html("llama-3-70b", "h100-sxm", 8, room + 1, 8192)
    assert "they do not fit" in page and f">{room}<" in page
    assert "the weights do not fit" in pictures.cache_html("llama-3-70b", "h100-sxm", 1, 1, 512)


def test_heads_that_do_not_divide_are_explained_and_copies_counted():
    assert "9 query heads cannot be split over 2 ranks" in pictures.cache_html("smollm2-135m", "h100-sxm", 2, 1, 512)
    assert "2: more chips than key/value heads" in pictures.cache_html("llama-3-70b", "h100-sxm", 16, 1, 512)
    assert "copies of each" not in pictures.cache_html("llama-3-70b", "h100-sxm", 8, 1, 512)


def test_the_cache_moves_with_its_sliders():
    box = pictures.cache_explorer()
    controls = {c.description.split(" (")[0]: c for c in box.children[:-1]}
    page = box.children[-1]
    controls["users"].value = 8
    controls["context"].value = 1024
    controls["cache format"].value = "int8"
    controls["chips"].value = 4
    assert page.value == pictures.cache_html("llama-3-70b", "h100-sxm", 4, 8, 1024, "int8")


def test_every_choice_of_the_cache_can_be_drawn():
    for model in pictures.MODELS:
        assert "users that fit" in pictures.cache_html(model, "b200", 1, 2, 131_072)
        for kv in pictures.KV_FORMATS:
            assert kv_bytes(model_shape(model), 512, 1, kv) > 0


def test_users_by_context_and_format():
    (row,) = pictures.users_rows(model_shape("llama-3-70b"), "h100-sxm", 8, [8192])
    assert row[:3] == ("8,192", "162", "324")


def test_reserving_for_the_longest_wastes_more_the_longer_it_is():
    shares = pictures.reserved_shares(2048, n=300)
    assert 0 < shares["max"] < shares["pow2"] < shares["oracle"] == 1
    assert shares == pictures.reserved_shares(2048, n=300)
    assert pictures.reserved_shares(4096, n=300)["max"] < shares["max"]


@pytest.mark.parametrize("kind", ["MHA", "GQA", "MQA"])
def test_transformers_allocates_what_is_estimated(kind):
    estimated, allocated = pictures.allocated_bytes(kind, 7)
    assert estimated == allocated > 0


class Slow(ScriptedModel):
    """A model that takes 1 ms per token, by its own clock."""

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
    seconds = pictures.step_seconds(model, (4, 9), repeats=2, clock=lambda: model.now)
    assert seconds == {4: pytest.approx((0.001, 0.005)), 9: pytest.approx((0.001, 0.010))}
    assert model.seen[2:] == 3 * [(4, 1), (0, 5), (9, 1), (0, 10)]
    figure = pictures.step_time_figure(seconds)
    assert list(lines(figure)["without a cache: all tokens again"].get_ydata()) == pytest.approx([5, 10])
    said = pictures.step_time_words(seconds)
    assert "After 4 tokens, the next one takes 5.0 times" in said and "after 9, 10.0 times" in said
    assert "From 4 tokens on" in said
    assert "does not halve" in pictures.step_time_words({8: (0.01, 0.011)})
