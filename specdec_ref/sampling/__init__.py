"""From logits to the distribution a token is drawn from, and the source of randomness that draws it."""

from specdec_ref.sampling.options import Sampling, SamplingOptions
from specdec_ref.sampling.source import RandomSource, sample_seed

__all__ = ["RandomSource", "Sampling", "SamplingOptions", "sample_seed"]
