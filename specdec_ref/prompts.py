"""Prompts by domain, from JSON lines such as `{"id": "chat-1", "domain": "open chat", "user": "Tell me ..."}`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

OURS = Path(__file__).with_name("prompts.jsonl")  # the texts are ours


@dataclass(frozen=True)
class Prompt:
    """A user's message."""

    id: str
    domain: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The message as the engine takes it, for models with a chat template."""
        return [{"role": "user", "content": self.user}]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file. Raises ValueError for a line that is none, an id that comes twice, and an empty file."""
    found: dict[str, Prompt] = {}
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = Prompt(**json.loads(line))
            valid = all(isinstance(value, str) and value for value in (prompt.id, prompt.domain, prompt.user))
        except (ValueError, TypeError):
            valid = False
        if not valid:
            raise ValueError(f'{path.name}, line {i}: give {{"id": "...", "domain": "...", "user": "..."}}')
        if prompt.id in found:
            raise ValueError(f"{path.name}, line {i}: the id {prompt.id!r} comes twice")
        found[prompt.id] = prompt
    if not found:
        raise ValueError(f"{path.name} holds no prompt")
    return list(found.values())


def prompts(domain: str | None = None) -> list[Prompt]:
    """Our own prompts, or those of one domain. Raises ValueError for a domain that does not exist."""
    every = read_prompts(OURS)
    chosen = [p for p in every if domain in (None, p.domain)]
    if not chosen:
        raise ValueError(f"no domain {domain!r}: there are {', '.join(sorted({p.domain for p in every}))}")
    return chosen


def prompt(id: str) -> Prompt:
    """One of our own prompts by its id. Raises KeyError."""
    return {p.id: p for p in prompts()}[id]
