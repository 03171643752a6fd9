"""specdec_ref: an exact, fast and readable speculative decoding engine, and the package behind the course.

Names are loaded on first use, so that the arithmetic (`specdec_ref.arithmetic`) works without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load_model": "specdec_ref.models.load",
    "SpeculativeEngine": "specdec_ref.engine",
    "Generation": "specdec_ref.engine",
    "Proposal": "specdec_ref.interfaces",
    "RandomSource": "specdec_ref.sampling",
    "NGramDrafter": "specdec_ref.draft",
    "DraftModelDrafter": "specdec_ref.draft",
    "AdaptiveGamma": "specdec_ref.engine.control",
}
__all__ = [  # noqa: RUF022 - in the order in which a reader meets them
    "load_model",
    "SpeculativeEngine",
    "Generation",
    "Proposal",
    "RandomSource",
    "NGramDrafter",
    "DraftModelDrafter",
    "AdaptiveGamma",
]

if TYPE_CHECKING:
    from specdec_ref.draft import DraftModelDrafter, NGramDrafter
    from specdec_ref.engine import Generation, SpeculativeEngine
    from specdec_ref.engine.control import AdaptiveGamma
    from specdec_ref.interfaces import Proposal
    from specdec_ref.models.load import load_model
    from specdec_ref.sampling import RandomSource


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'specdec_ref' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
