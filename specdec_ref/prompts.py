"""The course's own prompts, by domain; the texts are ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Prompt:
    """A user's message: `messages` is what the engine takes."""

    id: str
    domain: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.user}]


def prompts(domain: str | None = None) -> list[Prompt]:
    """All prompts, or those of one domain. Raises ValueError for a domain that does not exist."""
    text = files("specdec_ref").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    every = [Prompt(**json.loads(line)) for line in text.splitlines()]
    chosen = [p for p in every if domain is None or p.domain == domain]
    if not chosen:
        raise ValueError(f"no domain {domain!r}: there are {', '.join(sorted({p.domain for p in every}))}")
    return chosen


def prompt(id: str) -> Prompt:
    """One prompt by its id. Raises KeyError."""
    return {p.id: p for p in prompts()}[id]
