"""Measuring, on a clock that the tests set: products and passes take exactly as long as it says."""

import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_llama
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_ref import NGramDrafter, measure
from specdec_ref.arithmetic import attainable, decode
from specdec_ref.kernels.linear import PackedLinear, can_pack
from specdec_ref.kernels.packing import Blocks
from specdec_ref.kernels.stored import StoredLinear
from specdec_ref.measure import machine
from specdec_ref.models import llama
from specdec_ref.models.layout import pack
from specdec_ref.models.llama import Llama
from specdec_ref.models.scripted import ScriptedModel

BANDWIDTH = {torch.float32: 8e9, torch.bfloat16: 5e9}  # bytes/s of one thread
RATE = {torch.float32: 100e9, torch.bfloat16: 900e9}  # FLOP/s of one thread


class Clock:
    """A clock that stands still but for what is added to it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """A clock, and products that take the larger of their bytes over BANDWIDTH and their FLOP over RATE."""
    clock = Clock()
    clock.products = []

    def linear(x, weight):
        threads = torch.get_num_threads()
        flops = 2 * len(x) * weight.numel()
        clock.products.append((weight.dtype, threads, weight.data_ptr(), weight.shape))
        clock.spend(max(weight.nbytes / BANDWIDTH[weight.dtype], flops / RATE[weight.dtype]) / threads)

    monkeypatch.setattr(machine, "F", SimpleNamespace(linear=linear))
    monkeypatch.setattr(machine, "can_pack", lambda: False)
    return clock


def tiny(n_layers=4, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    return Llama(tiny_config(n_layers=n_layers, **changes), dtype).eval()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("width", [64, 500])
def test_a_stream_gives_bytes_a_second(clock, dtype, width):
    stream = measure.WeightStream(dtype, width, 2**22, clock=clock, matrix_bytes=2**18)
    assert stream.bandwidth() == pytest.approx(BANDWIDTH[stream.dtype])
    assert len(stream.matrices) * stream.matrix_bytes <= 2**22 and len(stream.matrices) >= 16


@pytest.mark.parametrize(("dtype", "packs"), [("bf16", True), ("bf16", False), ("fp32", True)])
def test_a_stream_multiplies_as_the_models_do(monkeypatch, dtype, packs):
    """A model in bfloat16 is packed where that works; a stream that was not would be slower than what it predicts."""
    monkeypatch.setattr(machine, "can_pack", lambda: packs and can_pack())
    stream = measure.WeightStream(dtype, 64, 2**18, matrix_bytes=2**14)
    model = tiny(1, stream.dtype)
    model = pack(model) if packs else model
    expected = PackedLinear if isinstance(model.layers[0].qkv, PackedLinear) else partial
    assert {type(matrix) for matrix in stream.matrices} == {expected}
    assert expected is PackedLinear or not (packs and can_pack() and dtype == "bf16")
    for matrix in stream.matrices:
        out = matrix(torch.ones(3, 64, dtype=stream.dtype))
        assert out.shape == (3, stream.rows) and (out == 64).all()


def test_a_matrix_comes_round_again_only_after_all_others(clock):
    stream = measure.WeightStream("fp32", 64, 2**20, clock=clock, matrix_bytes=2**16)
    for n_tokens in (1, 4, 1):
        stream.seconds(n_tokens, matrices=10)
    order = [pointer for _, _, pointer, _ in clock.products]
    assert len(stream.matrices) == 16 and len(order) == 30
    assert len(set(order[:16])) == 16 and order[16:] == order[:14]


def test_products_during_which_the_system_did_something_else_do_not_count(clock):
    stream = measure.WeightStream("fp32", 64, 2**20, clock=clock, matrix_bytes=2**16)
    quiet = machine.F.linear

    def disturbed(x, weight):
        quiet(x, weight)
        clock.spend(0.5 * (len(clock.products) % 3 == 0))

    machine.F.linear = disturbed
    assert stream.bandwidth() == pytest.approx(8e9)


def test_more_tokens_never_take_less(clock):
    """Free until the ridge, and in proportion from there: 100e9 / 8e9 = 12.5 FLOP/byte are 25 tokens of 2 FLOP."""
    stream = measure.WeightStream("fp32", 64, 2**20, clock=clock, matrix_bytes=2**16)
    seconds = [stream.seconds(n) for n in (1, 2, 12, 25, 50, 100)]
    assert seconds == sorted(seconds)
    assert [s / seconds[0] for s in seconds] == pytest.approx([1, 1, 1, 1, 2, 4])


@pytest.mark.parametrize("arguments", [{"nbytes": 2**16}, {"width": 2**20, "matrix_bytes": 2**16}])
def test_a_stream_of_one_matrix_is_refused(arguments):
    with pytest.raises(ValueError, match="hold no two matrices"):
        measure.WeightStream("fp32", **({"width": 64, "nbytes": 2**20, "matrix_bytes": 2**16} | arguments))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_product_gives_flop_a_second_and_is_large_enough(clock, dtype):
    product = measure.SquareProduct(dtype, clock=clock, least_seconds=0.001)
    assert product.rate() == pytest.approx(RATE[product.dtype])
    assert product.seconds() >= 0.001 > 2 * (product.n / 2) ** 3 / RATE[product.dtype]


def test_a_machine_is_measured_by_format_and_threads_in_turns(clock):
    measured = measure.measure_machine(threads=(1, 2), seconds=2, clock=clock, nbytes=2**26)
    assert [(r.dtype, r.threads) for r in measured.rates] == [("fp32", 1), ("fp32", 2), ("bf16", 1), ("bf16", 2)]
    for r in measured.rates:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[r.dtype]
        assert r.bandwidth == pytest.approx(r.threads * BANDWIDTH[dtype])
        assert r.matrix_rate == pytest.approx(r.threads * RATE[dtype])
        assert r.ridge == pytest.approx(RATE[dtype] / BANDWIDTH[dtype])
        assert r.steadiness == pytest.approx(1)
        assert len(r.bandwidths) == len(r.matrix_rates) >= 3
    assert 100 + 2 <= clock.now < 100 + 2.6
    arms = [(dtype, threads) for dtype, threads, *_ in clock.products]
    turns = [arm for arm, before in zip(arms, [None, *arms], strict=False) if arm != before]
    assert len(turns) >= 16 and turns[4:] == turns[:-4] and len(set(turns[:4])) == 4


def test_three_rounds_are_made_however_short_the_time(clock):
    measured = measure.measure_machine(dtypes=("fp32",), threads=(1,), seconds=0, clock=clock, nbytes=2**26)
    assert len(measured.rates[0].bandwidths) == 3


def test_the_number_of_threads_is_given_back_also_after_an_error(clock):
    before = torch.get_num_threads()
    measure.measure_machine(dtypes=("fp32",), threads=(2,), seconds=0, clock=clock, nbytes=2**26)
    assert torch.get_num_threads() == before
    machine.F.linear = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        measure.measure_machine(dtypes=("fp32",), threads=(2,), seconds=0, clock=clock, nbytes=2**26)
    assert torch.get_num_threads() == before


def rates(dtype, threads, bandwidths, matrix_rates):
    return measure.Rates(dtype, threads, bandwidths, matrix_rates)


MACHINE = measure.Machine(
    "2 cores",
    8_000_000_000,
    (
        rates("fp32", 1, (9e9, 10e9, 5e9), (90e9, 80e9, 70e9)),
        rates("fp32", 2, (15e9, 14e9, 16e9), (180e9, 160e9, 170e9)),
        rates("bf16", 1, (12e9, 8e9, 9e9), (500e9, 400e9, 600e9)),
        rates("bf16", 2, (11e9, 8e9, 10e9), (800e9, 900e9, 700e9)),
    ),
)


def test_a_machine_goes_onto_the_same_roofline_as_a_chip():
    chip = MACHINE.accelerator()
    assert chip.bandwidth == 16e9 and chip.capacity == 8_000_000_000
    assert chip.rates == {"fp32": 180e9, "bf16": 900e9}
    assert chip.source == "measured here" and chip.date
    assert chip.ridge("fp32") == pytest.approx(11.25)
    assert attainable(5, chip, "fp32") == pytest.approx(80e9)


def test_a_format_has_the_bandwidth_that_its_own_weights_reach():
    assert MACHINE.accelerator("bf16").bandwidth == 12e9, "of the number of threads that streams bf16 fastest"
    assert MACHINE.best("bf16").threads == 1 and MACHINE.best("fp32").threads == 2
    assert MACHINE.best("fp32").steadiness == pytest.approx(15 / 16)
    with pytest.raises(ValueError, match=r"fp16 was not measured, only fp32 with 1, .*, bf16 with 2 threads"):
        MACHINE.accelerator("fp16")


def test_one_thread_has_a_roofline_of_its_own():
    chip = MACHINE.accelerator("bf16", threads=1)
    assert (chip.bandwidth, chip.rates) == (12e9, {"fp32": 90e9, "bf16": 600e9})
    assert MACHINE.accelerator(threads=1).bandwidth == 12e9
    with pytest.raises(ValueError, match="bf16 with 4 was not measured"):
        MACHINE.accelerator("bf16", threads=4)


def test_a_real_measurement_has_the_right_order_of_magnitude():
    """Any computer that runs this reads between 0.1 and 10,000 GB/s and multiplies between 0.1 and 10^6 GFLOP/s."""
    measured = measure.measure_machine(dtypes=("fp32",), threads=(1,), seconds=0, nbytes=2**26)
    assert 1e8 < measured.rates[0].bandwidth < 1e13
    assert 1e8 < measured.rates[0].matrix_rate < 1e15
    assert 2**28 < measured.capacity < 2**50


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied_head", [False, True])
def test_the_arithmetic_counts_the_models_real_bytes(n_kv_heads, tied_head):
    model = tiny(n_kv_heads=n_kv_heads, tied_head=tied_head)
    shape = measure.shape_of(model)
    assert shape.weight_bytes("fp32") == sum(p.nbytes for p in model.parameters())
    cache = model.new_cache(10)
    assert decode(shape, 9, weights="fp32", kv="fp32").kv_read_bytes == cache.nbytes // 10 * 9


class Operations(TorchDispatchMode):
    """Counts the operations that reach the backend."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("n_tokens", [1, 3])
def test_a_narrowed_model_runs_the_same_operations(n_tokens, dtype, packed):
    model = tiny(3, dtype)
    if packed:
        pack(model)
    seen = []
    for m in (model, measure.narrowed(model)):
        cache = m.new_cache(8)
        with torch.inference_mode(), Operations() as operations:
            m.forward(torch.arange(n_tokens), cache)
        seen.append(operations.names)
    assert seen[0] == seen[1] and len(seen[0]) > 30
    assert sum(p.nbytes for p in measure.narrowed(model).layers.parameters()) < 3 * 2**18


class Slow(ScriptedModel):
    """Takes 10 ms a pass and 1 ms a token on the tests' clock."""

    def __init__(self, clock, **options):
        super().__init__(lambda tokens: [0.5, 0.5], 2, **options)
        self.clock = clock

    def forward(self, tokens, cache, rows=slice(None)):
        self.clock.spend(0.010 + 0.001 * len(tokens))
        return super().forward(tokens, cache, rows)


def test_a_pass_takes_what_it_takes_and_the_context_is_not_timed():
    clock = Clock()
    seconds = measure.pass_seconds(Slow(clock), (1, 2, 8), context=50, repeats=5, clock=clock)
    assert {n: pytest.approx([0.010 + 0.001 * n] * 5) for n in (1, 2, 8)} == seconds
    assert measure.relative_cost(seconds) == pytest.approx({1: 1, 2: 12 / 11, 8: 18 / 11})


def test_passes_take_turns_and_begin_where_the_context_ends():
    passes = []

    class Spy(Slow):
        def forward(self, tokens, cache, rows=slice(None)):
            passes.append((cache.length, len(tokens)))
            return super().forward(tokens, cache, rows)

    measure.pass_seconds(Spy(Clock()), (1, 3), context=7, repeats=2)
    assert passes == [(0, 7), (7, 1), (7, 3), (7, 1), (7, 3), (7, 1), (7, 3)]


def test_a_context_that_does_not_fit_is_cut_and_a_pass_that_does_not_is_refused():
    for wanted, used in ((10, 8), (7, 7), (100, 8)):
        model = Slow(Clock(), max_context=12)
        lengths, forward = [], model.forward
        model.forward = lambda tokens, cache, *a: lengths.append(cache.length) or forward(tokens, cache, *a)  # noqa: B023
        measure.pass_seconds(model, (1, 4), context=wanted, repeats=1)
        assert lengths == [0, used, used, used, used]
    with pytest.raises(ValueError, match="a pass over 13 tokens exceeds the model's context of 12"):
        measure.pass_seconds(Slow(Clock(), max_context=12), (1, 13))


@pytest.mark.parametrize("max_context", [2, 5, 12, 13, 100])
def test_every_measurement_fits_a_small_context(max_context):
    clock = Clock()
    model = Slow(clock, max_context=max_context)
    policy = measure.controller(model, NGramDrafter(), clock=clock)
    assert policy.most == min(11, max_context - 1)
    assert measure.fastest_threads(model, (1, 2), repeats=1, clock=clock) in (1, 2)
    times = measure.decode_times(tiny(max_context=max_context), rounds=1)
    assert times.work.kv_read_bytes == decode(measure.shape_of(tiny()), min(64, max_context - 1)).kv_read_bytes * 2


def test_a_relative_cost_is_that_of_medians():
    """Neither a lucky pass nor a disturbed one decides."""
    seconds = {1: [1.0, 2.0, 9.0], 2: [2.0, 5.0, 6.0]}
    assert measure.relative_cost(seconds) == pytest.approx({1: 1.0, 2: 2.5})


def test_a_relative_cost_needs_a_pass_over_one_token():
    with pytest.raises(ValueError, match="include 1"):
        measure.relative_cost({2: [1.0]})


@pytest.fixture
def physics(monkeypatch, clock):
    """Layers that take 1 ms each for the framework, and their bytes at the rate of the stream."""
    forward = llama.Layer.forward
    clock.framework = 0.001

    def timed(layer, *args):
        clock.spend(clock.framework + sum(p.nbytes for p in layer.parameters()) / BANDWIDTH[torch.float32])
        return forward(layer, *args)

    monkeypatch.setattr(llama.Layer, "forward", timed)
    return clock


def wide():
    return tiny(4, hidden_size=512, intermediate_size=1024, head_dim=64, vocab_size=16)


def test_a_decode_step_is_predicted_from_bytes_bandwidth_and_overhead(physics):
    model = wide()
    times = measure.decode_times(model, context=5, rounds=4, clock=physics)
    assert times.work == decode(measure.shape_of(model), 5, weights="fp32", kv="fp32")
    assert times.bandwidths == pytest.approx([8e9] * 4)
    assert len(times.overheads) == len(times.measured) == 4
    layers = sum(p.nbytes for p in model.layers.parameters()) / 8e9
    assert times.measured == pytest.approx([0.004 + layers] * 4)
    # What the narrow model's own few weights take counts as overhead.
    narrow = sum(p.nbytes for p in measure.narrowed(model).layers.parameters()) / 8e9
    assert times.overheads == pytest.approx([0.004 + narrow] * 4)
    assert times.ratio == pytest.approx(1, abs=0.02) and times.within(0.02)


def test_the_framework_is_measured_apart(physics):
    quick = measure.decode_times(wide(), context=5, rounds=2, clock=physics)
    physics.framework = 0.005
    slow = measure.decode_times(wide(), context=5, rounds=2, clock=physics)
    assert slow.overheads[0] - quick.overheads[0] == pytest.approx(4 * 0.004)
    assert slow.bandwidths == pytest.approx(quick.bandwidths)
    assert slow.ratio == pytest.approx(1, abs=0.02)


def test_a_delay_that_only_the_model_has_is_not_predicted_away(physics):
    model = wide()
    honest = measure.decode_times(model, context=5, rounds=3, clock=physics)
    model.norm.register_forward_hook(lambda *_: physics.spend(honest.measured[0]))
    delayed = measure.decode_times(model, context=5, rounds=3, clock=physics)
    assert delayed.predicted == pytest.approx(honest.predicted)
    assert delayed.ratio == pytest.approx(honest.ratio / 2, rel=1e-3) and not delayed.within(0.3)
    assert str(delayed).startswith("0.50 of what was measured (0.50 to 0.50)")


def test_decode_times_of_something_else_are_refused():
    with pytest.raises(ValueError, match="need a reference Llama in fp32 or bf16 or fp16, got Slow"):
        measure.decode_times(Slow(Clock()))
    with pytest.raises(ValueError, match="reference Llama"):
        measure.decode_times(tiny(dtype=torch.float64))
    four = tiny(1, torch.bfloat16)
    blocks = Blocks(np.zeros((64, 64), np.uint8), np.ones((64, 2), np.float16), np.zeros((64, 2), np.float16))
    four.layers[0].down = StoredLinear(blocks, four.layers[0].down)
    with pytest.raises(ValueError, match=r"in 4 bits, .* load it with weights='full'"):
        measure.decode_times(four)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_decode_time_of_smollm_is_predicted_within_30_percent(dtype):
    """One thread, in processor time: other work on the machine then costs bandwidth, which both sides share.

    Three tries, since memory traffic of others may change within one. The failure says what each of them measured.
    """
    from specdec_ref import load_model

    model = load_model(dtype=dtype)
    assert torch.get_num_threads() == 1
    tries = []
    for _ in range(3):
        times = measure.decode_times(model, rounds=8, clock=time.thread_time)
        tries.append(str(times))
        if times.within(0.3):
            break
    else:
        pytest.fail(f"predicted {'; then '.join(tries)}")
    assert times.work.bytes / max(times.bandwidths) < min(times.measured), "memory alone is a lower bound"


@pytest.mark.parametrize("crowded", [False, True])
def test_threads_are_chosen_by_what_a_pass_takes(crowded):
    """On a scripted clock: two threads halve the time, or take ten times as long where something else wants a core."""
    model, now = tiny_llama(1), 0.0
    real, before = model.forward, torch.get_num_threads()

    def forward(tokens, cache, rows=slice(None)):
        nonlocal now
        now += {1: 1.0, 2: 10.0 if crowded else 0.5}[torch.get_num_threads()]
        return real(tokens, cache, rows)

    model.forward = forward
    assert measure.fastest_threads(model, (1, 2), clock=lambda: now) == (1 if crowded else 2)
    assert torch.get_num_threads() == before
    assert measure.fastest_threads(model, (1,)) == 1


def test_what_the_first_pass_sets_up_does_not_decide_on_threads():
    model, now, passes = tiny_llama(1), 0.0, []
    real = model.forward

    def forward(tokens, cache, rows=slice(None)):
        nonlocal now
        threads = torch.get_num_threads()
        now += 100.0 if (threads, len(tokens)) not in passes else 1 / threads
        passes.append((threads, len(tokens)) if threads == 2 else (1, len(tokens)))
        return real(tokens, cache, rows)

    passes.append((1, 1))  # one thread has been used before
    model.forward = forward
    assert measure.fastest_threads(model, (1, 2), repeats=1, clock=lambda: now) == 2
