"""The speculative decoding loop and what it reports."""

from specdec_ref.engine.control import Controller
from specdec_ref.engine.engine import SpeculativeEngine
from specdec_ref.engine.run import Chunk, Generation, Round, Run, Stream
from specdec_ref.engine.stats import RoundCounts, Stats

__all__ = [
    "Chunk",
    "Controller",
    "Generation",
    "Round",
    "RoundCounts",
    "Run",
    "SpeculativeEngine",
    "Stats",
    "Stream",
]
