"""Measurements on this machine: passes, memory, arithmetic, races between two ways of generating, pairs of models."""

from specdec_ref.measure.decode import DecodeTimes, decode_times, narrowed, shape_of
from specdec_ref.measure.machine import (
    SHORT_NAMES,
    Machine,
    Rates,
    SquareProduct,
    WeightStream,
    measure_machine,
    memory_bytes,
)
from specdec_ref.measure.neartie import WIDTHS, Comparison, compare_greedy, logits_by_shape
from specdec_ref.measure.pair import Tryout, try_pair
from specdec_ref.measure.passes import (
    Clock,
    Progress,
    controller,
    fastest_threads,
    pass_seconds,
    relative_cost,
    silently,
)
from specdec_ref.measure.race import Race, describe_difference, race

__all__ = [
    "SHORT_NAMES",
    "WIDTHS",
    "Clock",
    "Comparison",
    "DecodeTimes",
    "Machine",
    "Progress",
    "Race",
    "Rates",
    "SquareProduct",
    "Tryout",
    "WeightStream",
    "compare_greedy",
    "controller",
    "decode_times",
    "describe_difference",
    "fastest_threads",
    "logits_by_shape",
    "measure_machine",
    "memory_bytes",
    "narrowed",
    "pass_seconds",
    "race",
    "relative_cost",
    "shape_of",
    "silently",
    "try_pair",
]
