"""Chips and the roofline: published peaks and ridges, exactness at the ridge, and the traps of public calculators."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arithmetic_models import SHAPES

from specdec_ref.arithmetic import (
    Accelerator,
    ModelShape,
    UnknownName,
    Work,
    accelerator,
    accelerators,
    all_reduces_per_token,
    attainable,
    batch_crossover,
    compute_bound_batch,
    decode,
    draft_cost,
    forward_kernels,
    forward_work,
    kv_bytes,
    kv_bytes_per_token,
    linear_intensity,
    model_shape,
    prefill,
    speedup,
    step_time,
    tokens_per_second,
    verification,
    verify_curve,
)

# dense 16-bit TFLOP/s, TB/s, GB, ridge in FLOP/byte
DATASHEETS = {
    "a100-sxm": (312, 2.04, 80, 153),
    "h100-sxm": (989, 3.35, 80, 295),
    "h100-pcie": (756, 2.0, 80, 378),
    "h200-sxm": (989, 4.8, 141, 206),
    "b200": (2250, 7.7, 180, 292),
    "l4": (121, 0.30, 24, 403),
    "rtx-4090": (165, 1.008, 24, 164),
    "mi300x": (1307, 5.3, 192, 247),
    "tpu-v5e": (197, 0.82, 16, 240),
}
SPARSE = {"h100-sxm": 1979, "h100-pcie": 1513, "h200-sxm": 1979, "l4": 242, "b200": 4500}


@pytest.mark.parametrize("name", DATASHEETS)
def test_datasheet_values_and_ridges(name: str) -> None:
    tflops, tb, gb, ridge = DATASHEETS[name]
    chip = accelerator(name)
    assert chip.rate("bf16") / 1e12 == pytest.approx(tflops, abs=0.5)
    assert chip.bandwidth / 1e12 == pytest.approx(tb, abs=0.002)
    assert chip.capacity == gb * 10**9
    assert chip.ridge() == pytest.approx(ridge, abs=1)


@pytest.mark.parametrize("name", SPARSE)
def test_no_sparse_figure_is_taken_for_dense(name: str) -> None:
    assert accelerator(name).rate("bf16") / 1e12 == pytest.approx(SPARSE[name] / 2, rel=0.001)


@pytest.mark.parametrize("name", accelerators())
def test_every_chip_states_its_source_its_date_and_dense_rates(name: str) -> None:
    chip = accelerator(name)
    assert chip.dense and chip.source and chip.label
    year, month = chip.date.split("-")
    assert 2017 <= int(year) <= 2026 and 1 <= int(month) <= 12
    assert chip.half_precision in chip.rates
    for dtype, at_least in (("fp8", 1.9), ("int8", 1.9)):
        if dtype in chip.rates:
            assert chip.rates[dtype] >= at_least * chip.rate(chip.half_precision)


def test_a_sparse_or_impossible_chip_is_refused() -> None:
    with pytest.raises(ValueError, match="give the dense ones"):
        Accelerator("mine", 1e12, 10**9, {"bf16": 2e12}, dense=False)
    with pytest.raises(ValueError, match="must be positive"):
        Accelerator("mine", 0, 10**9, {"bf16": 1e12})
    with pytest.raises(ValueError, match="must be positive"):
        Accelerator("mine", 1e11, 10**9, {})
    with pytest.raises(ValueError, match="v100-sxm lists no fp8 rate, only fp16, fp32"):
        accelerator("v100-sxm").rate("fp8")


@pytest.mark.parametrize(("typed", "nearest"), [("h100", "h100-sxm"), ("a100-smx", "a100-sxm"), ("4090", "rtx-4090")])
def test_unknown_chips_name_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=nearest):
        accelerator(typed)


def test_spelling_of_chips_does_not_matter() -> None:
    assert accelerator("H100 SXM") is accelerator("h100_sxm") is accelerator("h100-sxm")


def test_70b_by_hand() -> None:
    """140 GB in 16 bits at 3.35 TB/s is 41.8 ms, 23.9 tokens/s; two ranks halve it. The embedding is not read."""
    chip = accelerator("h100-sxm")
    assert 70e9 * 2 / chip.bandwidth == pytest.approx(41.79e-3, abs=5e-6)
    shape = model_shape("llama-3-70b")
    one, two = step_time(decode(shape), chip), step_time(decode(shape.shard(2)), chip)
    assert one.bound == two.bound == "memory"
    assert one.memory_s == pytest.approx((70_553_706_496 - 128_255 * 8192) * 2 / 3.35e12, rel=1e-4)
    assert two.memory_s == pytest.approx(20.8e-3, abs=0.1e-3)
    assert tokens_per_second(shape.shard(2), chip) == pytest.approx(48.2, abs=0.1)


def test_intensities_of_a_layer_and_of_the_passes() -> None:
    assert [round(linear_intensity(n, 8192)) for n in (1, 128, 512, 2048)] == [1, 124, 455, 1365]
    shape = model_shape("llama-3-70b")
    assert decode(shape).intensity == pytest.approx(1.0, abs=0.01)
    assert verification(shape, 5).intensity == pytest.approx(6.0, abs=0.05)
    assert decode(shape, batch=32).intensity == pytest.approx(32, abs=0.2)
    assert prefill(shape, 512).intensity > accelerator("h100-sxm").ridge() > prefill(shape, 128).intensity
    assert decode(shape, weights="int4-g128").intensity > 3.5 * decode(shape).intensity


def test_a_verify_pass_of_5_drafts_uses_2_percent_of_the_units() -> None:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    time = step_time(verification(shape, 5), chip)
    assert time.bound == "memory"
    assert time.compute_s / time.overlapped_s == pytest.approx(6 / chip.ridge(), rel=0.01)


def test_bytes_of_a_pass_are_its_parts() -> None:
    shape = model_shape("llama-3-8b")
    work = forward_work(shape, 3, 100, batch=4)
    assert work.weight_bytes == shape.weight_bytes_read(12)
    assert work.kv_read_bytes == kv_bytes(shape, 100, 4)
    assert work.kv_write_bytes == 12 * kv_bytes_per_token(shape)
    assert work.bytes == work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes
    assert (work.tokens, work.flops) == (12, 4 * shape.flops(3, 100))


@given(SHAPES, st.integers(1, 8), st.integers(0, 9000), st.integers(1, 512))
def test_the_kernels_of_a_pass_are_all_of_it(shape: ModelShape, n: int, context: int, batch: int) -> None:
    whole, kernels = forward_work(shape, n, context, batch), forward_kernels(shape, n, context, batch)
    for part in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
        assert sum(getattr(k, part) for k in kernels) == getattr(whole, part)
    linear, attention = kernels
    assert linear.flops == batch * (n * sum(m.flops_per_token for m in shape.matrices()))
    assert attention.weight_bytes == 0 and linear.bytes == linear.weight_bytes
    one = forward_kernels(shape, n, context)[1]
    assert attention.intensity == pytest.approx(one.intensity), "company does not change attention's intensity"


@pytest.mark.parametrize(
    ("batch", "context", "as_one", "by_kernel"),
    [(64, 1024, 1.15, 1.26), (256, 1024, 3.28, 3.60), (256, 8192, 1.01, 1.71), (300, 4096, 1.69, 2.30)],
)
def test_what_waits_in_attention_cannot_hide_the_linear_layers(
    batch: int, context: int, as_one: float, by_kernel: float
) -> None:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")

    def seconds(n: int) -> tuple[float, float]:
        kernels = forward_kernels(shape, n, context, batch)
        whole = step_time(forward_work(shape, n, context, batch), chip)
        total = sum(step_time(kernel, chip).overlapped_s for kernel in kernels)
        assert whole.overlapped_s * (1 - 1e-9) <= total <= whole.serial_s * (1 + 1e-9)
        return whole.overlapped_s, total

    prices = [check / plain for check, plain in zip(seconds(6), seconds(1), strict=True)]
    assert prices == pytest.approx([as_one, by_kernel], abs=0.005)


def test_a_sliding_layer_reads_its_window_less_the_token_itself() -> None:
    shape = model_shape("mistral-7b-v0.1")
    per_token = kv_bytes_per_token(shape)
    assert decode(shape, 10_000).kv_read_bytes == 4095 * per_token
    assert decode(shape, 4000).kv_read_bytes == 4000 * per_token
    assert prefill(shape, 10_000).kv_write_bytes == 4096 * per_token


@given(st.floats(1e9, 1e13), st.floats(1e9, 1e16), st.integers(1, 10**15), st.integers(1, 10**15))
def test_step_time_is_the_larger_part_and_the_sum_is_named(
    bandwidth: float, rate: float, flops: int, moved: int
) -> None:
    chip = Accelerator("x", bandwidth, 1, {"bf16": rate})
    time = step_time(Work(flops, moved, 0, 0, 1), chip)
    assert time.overlapped_s == max(time.memory_s, time.compute_s) <= time.serial_s
    assert time.serial_s <= 2 * time.overlapped_s
    assert flops / time.overlapped_s == pytest.approx(attainable(flops / moved, chip), rel=1e-9)


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 2**20))
def test_memory_and_arithmetic_take_equal_time_exactly_at_the_ridge(bandwidth: int, ridge: int, moved: int) -> None:
    chip = Accelerator("x", bandwidth, 1, {"bf16": bandwidth * ridge})
    assert chip.ridge() == ridge
    assert step_time(Work(moved * ridge, moved, 0, 0, 1), chip).bound == "ridge"
    assert step_time(Work(moved * ridge + moved, moved, 0, 0, 1), chip).bound == "compute"
    assert step_time(Work(moved * ridge - moved, moved, 0, 0, 1), chip).bound == ("memory")
    assert attainable(ridge, chip) == chip.rate("bf16")
    assert attainable(ridge / 2, chip) == pytest.approx(chip.rate("bf16") / 2)
    assert attainable(2 * ridge, chip) == chip.rate("bf16")


@settings(max_examples=40)
@given(SHAPES, st.integers(1, 12), st.integers(0, 80), st.integers(1, 12))
def test_work_grows_and_intensity_rises_with_the_batch(shape: ModelShape, n: int, context: int, batch: int) -> None:
    work, wider = forward_work(shape, n, context, batch), forward_work(shape, n, context, batch + 1)
    assert wider.flops > work.flops and wider.bytes > work.bytes
    assert wider.intensity >= work.intensity * (1 - 1e-12)
    longer = forward_work(shape, n, context + 1, batch)
    assert longer.bytes >= work.bytes and longer.flops >= work.flops


@pytest.mark.parametrize(
    ("model", "chip", "n", "context"),
    [("llama-3-8b", "h100-sxm", 1, 0), ("llama-3-8b", "l4", 6, 256), ("mixtral-8x7b", "a100-sxm", 1, 0)],
)
def test_the_compute_bound_batch_is_the_first_one(model: str, chip: str, n: int, context: int) -> None:
    shape, device = model_shape(model), accelerator(chip)
    batch = compute_bound_batch(shape, device, n, context)
    assert batch is not None
    assert step_time(forward_work(shape, n, context, batch), device).bound != "memory"
    assert step_time(forward_work(shape, n, context, batch - 1), device).bound == "memory"


def test_decode_turns_compute_bound_near_the_ridge_and_sooner_by_gamma_plus_one() -> None:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    assert compute_bound_batch(shape, chip) == pytest.approx(chip.ridge(), rel=0.01)
    assert compute_bound_batch(shape, chip, n_tokens=6) == pytest.approx(chip.ridge() / 6, rel=0.02)
    assert compute_bound_batch(shape, chip, weights="fp8") == pytest.approx(chip.ridge() / 2, rel=0.02)


def test_with_a_long_context_no_batch_makes_decode_compute_bound() -> None:
    assert compute_bound_batch(model_shape("llama-3-70b"), accelerator("h100-sxm"), context=8192) is None


def test_verification_is_nearly_free_until_the_ridge_and_costs_in_full_beyond() -> None:
    shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
    assert verify_curve(shape, chip)(5) == pytest.approx(1, abs=0.001)
    assert verify_curve(shape, chip)(0) == 1
    assert verify_curve(shape, chip, batch=2048)(5) == pytest.approx(6, rel=0.02)


@given(st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite"]), st.integers(0, 20), st.integers(1, 600))
@settings(max_examples=30, deadline=None)
def test_a_verify_pass_costs_between_one_step_and_as_many_as_it_has_tokens(name: str, gamma: int, batch: int) -> None:
    shape = model_shape(name)
    v = verify_curve(shape, accelerator("h100-sxm"), batch=batch)
    arithmetic = shape.flops(gamma + 1) / shape.flops(1)  # gamma + 1, and a little attention between the tokens
    assert 1 <= v(gamma) <= v(gamma + 1)
    assert v(gamma) <= arithmetic * (1 + 1e-12)


def test_batch_eats_the_gain_sooner_with_a_short_context_than_with_a_long_one() -> None:
    target, draft, chip = model_shape("llama-3-70b"), model_shape("llama-3.2-1b"), accelerator("h100-sxm")

    def gain(batch: int, context: int) -> float:
        c = draft_cost(draft, target, chip, context, batch)
        return speedup(0.7, 5, c, verify_curve(target, chip, context, batch))

    crossover = batch_crossover(lambda batch: gain(batch, 0), 256)
    assert crossover is not None
    assert gain(crossover, 0) <= 1 < gain(crossover - 1, 0)
    assert batch_crossover(lambda batch: gain(batch, 8192), 256) is None


def test_draft_cost_of_1b_for_70b_is_the_ratio_of_bytes() -> None:
    draft, target = model_shape("llama-3.2-1b"), model_shape("llama-3-70b")
    ratio = decode(draft).bytes / decode(target).bytes
    assert draft_cost(draft, target, accelerator("h100-sxm")) == pytest.approx(ratio)
    assert ratio == pytest.approx(0.0178, abs=0.0001)


def test_tensor_parallel_runs_reduce_twice_a_layer_a_pass() -> None:
    target, draft = model_shape("llama-3-70b"), model_shape("llama-3.2-1b")
    assert all_reduces_per_token(target) == 160
    assert all_reduces_per_token(target, 3.2) == 50
    assert all_reduces_per_token(target, 3.2, draft, gamma=5) == (160 + 5 * 32) / 3.2
    with pytest.raises(ValueError, match="at least one token"):
        all_reduces_per_token(target, 0.5)


def test_gpt_fast_published_bandwidth_is_what_the_arithmetic_says_a_token_reads() -> None:
    """104.9 tokens/s of Llama-2-7B in bf16 at 1,397 GB/s, 69% of the datasheet's."""
    assert 104.9 * decode(model_shape("llama-2-7b")).weight_bytes == pytest.approx(1397e9, rel=0.02)
    assert 1397e9 / accelerator("a100-sxm").bandwidth == pytest.approx(0.685, abs=0.001)


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.2-1b"])
@pytest.mark.parametrize("n", [1, 100])
def test_a_pass_without_logits_reads_no_head_and_one_row_of_the_embedding_per_token(name: str, n: int) -> None:
    """An untied head is left alone; of a tied one only the tokens' rows are read, as from any embedding."""
    shape = model_shape(name)
    none, one = forward_work(shape, n, logits=0), forward_work(shape, n, logits=1)
    head, rows = shape.vocab_size * shape.hidden_size, n * shape.hidden_size
    assert one.weight_bytes - none.weight_bytes == 2 * (head - (rows if shape.tied else 0))
    assert one.flops - none.flops == 2 * head
    assert none.weight_bytes == 2 * (sum(m.parameters for m in shape.matrices()) - head + shape.vectors + rows)


def test_a_chip_without_bf16_is_timed_at_fp16_and_a_wider_rate_can_be_asked() -> None:
    shape = model_shape("smollm2-135m")
    assert step_time(decode(shape), accelerator("t4")).compute_s == decode(shape).flops / 65e12
    h100 = accelerator("h100-sxm")
    assert step_time(decode(shape), h100, "fp8").compute_s < step_time(decode(shape), h100).compute_s


def test_a_measured_machine_is_an_accelerator_too() -> None:
    mine = Accelerator("my laptop", bandwidth=20e9, capacity=16 * 2**30, rates={"fp32": 1e11, "bf16": 2e11})
    assert mine.ridge("fp32") == 5
    assert step_time(decode(model_shape("smollm2-135m")), mine).overlapped_s == pytest.approx(269.1e6 / 20e9, rel=1e-3)
    assert dataclasses.replace(mine, bandwidth=40e9).ridge("fp32") == 2.5


def test_impossible_passes_are_refused() -> None:
    shape = model_shape("smollm2-135m")
    with pytest.raises(ValueError, match="batch must be at least 1"):
        decode(shape, batch=0)
    with pytest.raises(ValueError, match="n_tokens >= 1 and context >= 0"):
        decode(shape, context=-1)
    with pytest.raises(ValueError, match="gamma must not be negative"):
        verification(shape, -1)
