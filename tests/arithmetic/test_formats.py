"""Bytes of number formats, against the block sizes that the gguf library states and against counting by hand."""

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.arithmetic import FORMATS, UnknownName, number_format, size_text, weight_formats

GGML = {"q4-0": "Q4_0", "q4-1": "Q4_1", "q8-0": "Q8_0", "mxfp4": "MXFP4", "bf16": "BF16", "fp16": "F16", "fp32": "F32"}


@pytest.mark.parametrize("name", GGML)
@pytest.mark.parametrize("row", [32, 96, 576, 4096])
def test_block_formats_take_the_bytes_that_gguf_states(name: str, row: int) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[GGML[name]]]
    assert number_format(name).nbytes(row) == row // block * block_bytes


def test_head_dim_96_with_groups_of_64_has_a_short_second_group() -> None:
    # 96 values of 4 bits, and two groups with a 16-bit scale and zero point each
    assert number_format("int4-g64").nbytes(96) == 48 + 2 * 4


def test_a_row_that_whole_blocks_cannot_hold_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"q8-0 stores whole blocks of 32 .* int8-g32"):
        number_format("q8-0").nbytes(80)
    assert number_format("int8-g32").nbytes(80) == 80 + 3 * 4


def test_scales_are_counted_for_every_head_and_not_shared_between_them() -> None:
    one_scale_a_head = number_format("int8")
    assert one_scale_a_head.nbytes(128, rows=8) == 8 * (128 + 2)
    assert number_format("int4-g128").nbytes(64, rows=2) == 2 * (32 + 4) > number_format("int4-g128").nbytes(128)


def test_bytes_include_the_scales() -> None:
    """Bits per value: 5 in q4-1, 8.5 in q8-0, 4.25 in mxfp4, and 8 in fp8, which has none."""
    assert 8 * FORMATS["q4-1"].nbytes(576) == 5.0 * 576
    assert 8 * FORMATS["q8-0"].nbytes(576) == 8.5 * 576
    assert 8 * FORMATS["mxfp4"].nbytes(2880) == 4.25 * 2880
    assert 8 * FORMATS["fp8"].nbytes(128) == 8 * 128


@pytest.mark.parametrize(("typed", "known"), [("Q4_1", "q4-1"), ("BF16", "bf16"), ("int4_g64", "int4-g64")])
def test_spelling_does_not_matter(typed: str, known: str) -> None:
    assert number_format(typed) == FORMATS[known]


def test_unknown_formats_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'fp6'.*nearest known: .*fp"):
        number_format("fp6")


def test_narrow_weights_keep_embedding_head_and_norms_in_16_bits() -> None:
    int4 = weight_formats("int4-g128")
    assert (int4.layers.name, int4.for_experts.name, int4.head.name, int4.rest.name) == (
        "int4-g128",
        "int4-g128",
        "bf16",
        "bf16",
    )
    assert weight_formats("fp32").head.name == "fp32"
    assert weight_formats("gpt-oss").for_experts.name == "mxfp4"
    assert weight_formats("gguf_Q4_1").head.name == "q8-0"


@given(
    st.sampled_from(sorted(FORMATS)), st.integers(1, 300).map(lambda n: 32 * n), st.integers(0, 50), st.integers(0, 50)
)
def test_bytes_are_whole_additive_over_rows_and_never_below_the_bits(name: str, row: int, a: int, b: int) -> None:
    fmt = number_format(name)
    assert isinstance(fmt.nbytes(row, a), int)
    assert fmt.nbytes(row, a) + fmt.nbytes(row, b) == fmt.nbytes(row, a + b)
    assert fmt.nbytes(row) * 8 >= row * fmt.bits
    assert fmt.nbytes(row + 32) > fmt.nbytes(row)


@given(st.integers(1, 8), st.integers(1, 256), st.integers(1, 1024))
def test_integer_groups_of_any_size_count_one_scale_for_each_begun_group(bits: int, group: int, row: int) -> None:
    groups = len(range(0, row, group))
    data_bytes = len(bytes((row * bits + 7) // 8))
    assert number_format(f"int{bits}-g{group}").nbytes(row) == data_bytes + 4 * groups


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="not be negative"):
        FORMATS["bf16"].nbytes(-1)


@pytest.mark.parametrize(
    "nbytes, text",
    [(10**9, "1.00 GB (0.93 GiB)"), (999_000_000, "999.00 MB (952.72 MiB)"), (2**30, "1.07 GB (1.00 GiB)")],
)
def test_sizes_turn_from_mb_to_gb_at_one_gb(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
