"""The speculative decoding loop and what it reports."""

from specdec_ref.engine.control import AdaptiveGamma
from specdec_ref.engine.engine import Chunk, Generation, Round, Run, SpeculativeEngine
from specdec_ref.engine.stats import Stats

__all__ = ["AdaptiveGamma", "Chunk", "Generation", "Round", "Run", "SpeculativeEngine", "Stats"]
