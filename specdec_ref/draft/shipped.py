"""Trained drafts that come with the package: for SmolLM2-135M-Instruct as the default model's file holds it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "files"
WEIGHTS = "draft.safetensors"


def shipped_kinds() -> list[str]:
    """Kinds of drafts that come with the package, each a folder with weights, model card and report."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{WEIGHTS}"))


def shipped_draft(kind: str) -> Path:
    """The weights of the shipped draft of this kind. Raises ValueError where there is none."""
    path = FOLDER / kind / WEIGHTS
    if not path.exists():
        there = ", ".join(shipped_kinds()) or "none"
        raise ValueError(
            f"no draft of kind {kind!r} comes with this package (there are: {there}): train one with "
            "specdec train-draft"
        )
    return path
