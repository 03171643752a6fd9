"""Integer products: exact sums, every kind of CPU the same bits, a row the same alone and among others."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref.kernels import cpu, dots, product
from specdec_ref.kernels.packing import OUTPUTS, Blocks, packed
from specdec_ref.kernels.quantise import GROUP, MOST
from specdec_ref.kernels.stored import StoredLinear

KINDS = [(4, 16), (4, 8), (8, 16), (8, 8)]


def random_blocks(bits, out, groups, seed=0):
    rng = np.random.default_rng(seed)
    shape, scale = (out, groups * GROUP), (rng.random((out, groups)) * 0.02 + 0.001).astype(np.float16)
    if bits == 8:
        return Blocks(rng.integers(-128, 128, shape).astype(np.int8), scale)
    return Blocks(
        rng.integers(0, 16, shape).astype(np.uint8), scale, (-8 * scale.astype(np.float32)).astype(np.float16)
    )


def quantised(x, bits):
    """Activations as `quantise` states it, float64: levels, and the scale of each group."""
    groups = x.float().numpy().reshape(len(x), -1, GROUP)
    most = np.float32(MOST[bits])
    top = np.abs(groups).max(-1, keepdims=True)
    top[top < 2.0**-100] = 0
    inverse, scale = np.divide(most, top, where=top > 0, out=np.zeros_like(top)), top / most
    return np.rint(groups * inverse).astype(np.int64), scale.astype(np.float64)[..., 0]


def exact(x, blocks, bits):
    """The product in float64 with activations as they are rounded."""
    levels, scale = quantised(x, bits)
    rounded = levels * scale[..., None]
    return rounded.reshape(len(x), -1) @ blocks.dequantised().astype(np.float64).T


def step_by_step(x, blocks, bits):
    """The product as `product` states it, each operation rounded to float32 in that order, then to bfloat16."""
    single = np.float32
    (levels, scale), out = quantised(x, bits), np.zeros((len(x), len(blocks.levels)), single)
    for g in range(blocks.scale.shape[1]):
        here = blocks.levels[:, g * GROUP : (g + 1) * GROUP].astype(np.int64)
        factor = blocks.scale[:, g].astype(single) * scale[:, g, None].astype(single)
        out = ((levels[:, g] @ here.T).astype(np.float64) * factor + out).astype(single)
        if blocks.minimum is not None:
            offset = scale[:, g].astype(single) * levels[:, g].sum(-1).astype(single)
            out = (blocks.minimum[:, g].astype(np.float64) * offset[:, None] + out).astype(single)
    return torch.from_numpy(out).bfloat16()


def draw(rows, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, width, generator=generator) * torch.randn(rows, 1, generator=generator).exp()).bfloat16()


@pytest.mark.parametrize("weights, bits", KINDS)
@given(rows=st.integers(1, 19), blocks=st.integers(1, 3), groups=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_it_is_the_product_of_rounded_activations_rounded_once(weights, bits, rows, blocks, groups, seed):
    matrix, x = random_blocks(weights, OUTPUTS * blocks, groups, seed), draw(rows, groups * GROUP, seed)
    want = exact(x, matrix, bits)
    got = StoredLinear(matrix, bits=bits)(x).double().numpy()
    # bfloat16 rounds by up to 2^-9 of a number; float32 sums are off by up to 2^-22 of what was added up.
    size = np.abs(x.double().numpy()) @ np.abs(matrix.dequantised()).astype(np.float64).T
    assert (np.abs(got - want) <= np.abs(want) * 2**-8 + size * 2**-18).all()
    assert torch.equal(torch.from_numpy(got).bfloat16(), step_by_step(x, matrix, bits))


@pytest.mark.parametrize("weights, bits", KINDS)
def test_the_largest_sums_do_not_overflow(weights, bits):
    matrix = random_blocks(weights, OUTPUTS, 3)
    matrix.levels[:] = 15 if weights == 4 else -128
    for sign in (1, -1):
        x = torch.full((9, 3 * GROUP), sign * 3.0).bfloat16()
        np.testing.assert_allclose(
            StoredLinear(matrix, bits=bits)(x).float().numpy(), exact(x, matrix, bits), rtol=2**-8
        )


@pytest.mark.parametrize("bits", [8, 16])
def test_groups_of_zeros_and_of_tiny_numbers_give_zero(bits):
    matrix = random_blocks(4, OUTPUTS, 2)
    x = torch.zeros(3, 2 * GROUP).bfloat16()
    x[1] = 2.0**-120
    x[2, GROUP:] = 1.0
    got = StoredLinear(matrix, bits=bits)(x)
    assert (got[:2] == 0).all() and (got[2] != 0).any()
    np.testing.assert_allclose(got[2].float().numpy(), exact(x, matrix, bits)[2], rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("weights, bits", KINDS)
def test_a_row_has_the_same_bits_alone_and_among_others(weights, bits):
    linear, x = StoredLinear(random_blocks(weights, 48, 5), bits=bits), draw(31, 5 * GROUP)
    alone = torch.cat([linear(row[None]) for row in x])
    for n in range(2, 32):
        assert torch.equal(linear(x[:n]), alone[:n]) and torch.equal(linear(x[-n:]), alone[-n:])


@pytest.mark.parametrize("weights", [4, 8])
def test_some_outputs_are_those_of_the_whole_matrix(weights):
    whole, x = StoredLinear(random_blocks(weights, 64, 3)), draw(5, 96)
    chosen = torch.tensor([63, 0, 17, 17, *range(30, 42)])
    assert torch.equal(whole.some_outputs(chosen)(x), whole(x)[:, chosen])
    with pytest.raises(IndexError):
        whole.some_outputs(torch.full((16,), 64))
    with pytest.raises(ValueError, match="3 outputs do not divide by 16"):
        whole.some_outputs(chosen[:3])


@pytest.mark.parametrize("shape", [(24, 64), (32, 48)])
def test_a_shape_that_does_not_divide_is_refused(shape):
    blocks = Blocks(np.zeros(shape, np.int8), np.zeros((shape[0], shape[1] // GROUP), np.float16))
    with pytest.raises(ValueError, match=r"rows must divide by 16, its columns by 32"):
        packed(blocks)


SAME_BITS = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib, test_product as t
from specdec_ref.kernels import cpu
found = hashlib.sha256()
for weights, bits in t.KINDS:
    linear = t.StoredLinear(t.random_blocks(weights, 48, 5), bits=bits)
    for rows in (1, 2, 5, 15):
        found.update(linear(t.draw(rows, 5 * t.GROUP, rows)).view(t.torch.int16).numpy().tobytes())
print(cpu.variant(), found.hexdigest())
"""


@pytest.mark.slow
def test_every_kind_of_cpu_gives_the_same_bits():
    """Each variant that this CPU can run, in a process of its own."""
    said = {}
    choices = [(name, {cpu.OPTION: name}) for name in cpu.possible()]
    choices.append(("plain", {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}))
    for name, choice in choices:
        command = [sys.executable, "-c", SAME_BITS, os.path.dirname(__file__)]
        done = subprocess.run(command, env=os.environ | choice, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        used, found = done.stdout.split()
        assert used == name
        said[str(choice)] = found
    assert len(set(said.values())) == 1, said


@pytest.mark.slow
def test_a_kind_of_cpu_compiles_for_no_more_than_it_has():
    """What is kept on disk for one kind is not taken for another, and holds none of its instructions."""
    code = (
        "from specdec_ref.kernels import loops, stored; code = stored.multiply._compiled(cache=False);"
        "print(loops._version(), 'zmm' in code._library.get_asm_str())"
    )
    said = {}
    for name in cpu.possible():
        environment = os.environ | {cpu.OPTION: name}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout.split()
    assert len({version for version, _ in said.values()}) == len(said)
    assert all((wide == "True") == (name == "avx512-vnni") for name, (_, wide) in said.items()), said


def test_a_kind_of_cpu_that_this_one_is_not_is_refused_with_those_that_it_is():
    code = "from specdec_ref.kernels import cpu; cpu.variant()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {cpu.OPTION: "vax"}, capture_output=True, text=True
    )
    assert "SPECDEC_CPU='vax' is not possible on this CPU: give one of" in done.stderr and "plain" in done.stderr


# Bugs planted in the compiled tiles: the comparison above has to see each of them.


def first_sums_left_out(monkeypatch):
    """-128 times the inputs' sum, which makes unsigned levels signed again, forgotten."""
    monkeypatch.setattr(product, "first_sums", numba.njit(lambda dots, address, stride: dots))


def scales_of_the_next_group(monkeypatch):
    load = product.load_halves
    monkeypatch.setattr(product, "load_halves", numba.njit(lambda address: load(address + 64)))


def pairs_swapped(monkeypatch):
    monkeypatch.setattr(product, "nibble1", dots.nibble2)


def minimum_left_out(monkeypatch):
    monkeypatch.setattr(product, "add_outer", numba.njit(lambda sums, row, address, stride: sums))


def half_of_the_sums_dropped(monkeypatch):
    monkeypatch.setattr(product, "add_ints", numba.njit(lambda a, b: a))


def sign_of_a_byte_lost(monkeypatch):
    monkeypatch.setattr(product, "high_bytes", dots._part(lambda builder, v: builder.lshr(v, dots.same(dots.INTS, 8))))


PLANTED = [
    (first_sums_left_out, 8, 8),
    (scales_of_the_next_group, 4, 16),
    (pairs_swapped, 4, 16),
    (minimum_left_out, 4, 8),
    (half_of_the_sums_dropped, 4, 16),
    (sign_of_a_byte_lost, 8, 16),
]


def tile_is_off(weights, bits):
    """How far a newly compiled tile is from the exact product, as a share of its size."""
    matrix, x, out = random_blocks(weights, OUTPUTS, 4), draw(3, 4 * GROUP), torch.empty(3, OUTPUTS).bfloat16()
    levels, scale = quantised(x, bits)
    if bits == 8:
        levels = levels.reshape(3, 4, 4, 8)[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(3, 4, GROUP)
    raw = np.ascontiguousarray(levels.astype(np.int8 if bits == 8 else np.int16))
    totals = levels.sum(-1)
    parts = [raw, scale.astype(np.float32), (totals * scale).astype(np.float32), totals.astype(np.int32)]
    addresses = tuple(part.ctypes.data for part in parts)
    # Of 3 rows: no other code has such a tile, which might be taken for it.
    tile = (product._four_bit_tile if weights == 4 else product._eight_bit_tile)(
        3, bits
    )  # of 3 rows: no other code has one
    w = [torch.cat([torch.from_numpy(array), torch.zeros(64, dtype=torch.uint8)]) for array in packed(matrix)]
    numba.njit(lambda *a: tile(*a))(w[0].data_ptr(), w[1].data_ptr(), addresses, out.data_ptr(), 4, 2 * OUTPUTS)
    want = exact(x, matrix, bits)
    return np.linalg.norm(out.double().numpy() - want) / np.linalg.norm(want)


@pytest.mark.parametrize("weights, bits", KINDS)
def test_a_tile_by_itself_is_right(weights, bits):
    assert tile_is_off(weights, bits) < 0.004


@pytest.mark.parametrize("plant, weights, bits", PLANTED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_planted_bug_is_seen(monkeypatch, plant, weights, bits):
    if plant is first_sums_left_out and cpu.variant() not in ("avx512-vnni", "avx-vnni"):
        pytest.skip("this CPU's signed product needs no correction")
    plant(monkeypatch)
    assert tile_is_off(weights, bits) > 0.02
