"""Sizes, times and speedups by calculation alone: no torch, no measurement, every count an exact integer.

shape, chip = model_shape("llama-3-70b"), accelerator("h100-sxm")
step_time(decode(shape.shard(2), context=8192), chip)
"""

from specdec_ref.arithmetic.accelerators import Accelerator, accelerator, accelerators
from specdec_ref.arithmetic.attention import Attention, LatentAttention
from specdec_ref.arithmetic.configs import model_catalogue, model_shape, shape_from_config
from specdec_ref.arithmetic.feedforward import Experts, Mlp
from specdec_ref.arithmetic.formats import (
    FORMATS,
    NumberFormat,
    WeightFormats,
    number_format,
    weight_formats,
)
from specdec_ref.arithmetic.kvcache import (
    Fit,
    attention_pairs,
    fit,
    kv_bytes,
    kv_bytes_per_token,
    layer_kv_bytes_per_token,
    token_passes,
    tokens_held,
)
from specdec_ref.arithmetic.lookup import UnknownName
from specdec_ref.arithmetic.roofline import (
    StepTime,
    Work,
    all_reduces_per_token,
    attainable,
    compute_bound_batch,
    decode,
    draft_cost,
    forward_kernels,
    forward_work,
    linear_intensity,
    prefill,
    step_time,
    tokens_per_second,
    verification,
    verify_curve,
)
from specdec_ref.arithmetic.shapes import LayerShape, ModelShape
from specdec_ref.arithmetic.speedup import (
    accepted_per_drafted,
    alpha_for_speedup,
    batch_crossover,
    best_gamma,
    break_even_accepted_per_drafted,
    break_even_alpha,
    expected_tokens,
    mean_accepted,
    measured_curve,
    speedup,
    time_ratio,
)
from specdec_ref.arithmetic.units import size_text

__all__ = [
    "FORMATS",
    "Accelerator",
    "Attention",
    "Experts",
    "Fit",
    "LatentAttention",
    "LayerShape",
    "Mlp",
    "ModelShape",
    "NumberFormat",
    "StepTime",
    "UnknownName",
    "WeightFormats",
    "Work",
    "accelerator",
    "accelerators",
    "accepted_per_drafted",
    "all_reduces_per_token",
    "alpha_for_speedup",
    "attainable",
    "attention_pairs",
    "batch_crossover",
    "best_gamma",
    "break_even_accepted_per_drafted",
    "break_even_alpha",
    "compute_bound_batch",
    "decode",
    "draft_cost",
    "expected_tokens",
    "fit",
    "forward_kernels",
    "forward_work",
    "kv_bytes",
    "kv_bytes_per_token",
    "layer_kv_bytes_per_token",
    "linear_intensity",
    "mean_accepted",
    "measured_curve",
    "model_catalogue",
    "model_shape",
    "number_format",
    "prefill",
    "shape_from_config",
    "size_text",
    "speedup",
    "step_time",
    "time_ratio",
    "token_passes",
    "tokens_held",
    "tokens_per_second",
    "verification",
    "verify_curve",
    "weight_formats",
]
