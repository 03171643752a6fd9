"""Small text grammars: templates with slots, read from files, expanded by a seeded generator.

The notation is described in `texts/README.md`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SYMBOL = re.compile(r"(\w+)(?:\.(\d))?")
RANGE = re.compile(r"(\d+)-(\d+)")
TRIES = 50
"""How often a second draw is repeated until it differs from the first, before a filler counts as too small."""


class Grammar:
    """Alternatives for each symbol, and their expansion.

    Raises ValueError for a file without a symbol, and for a slot that names an unknown one.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.alternatives: dict[str, list[str]] = {}
        for file in files:
            for symbol, found in _sections(file):
                self.alternatives.setdefault(symbol, []).extend(found)
        for symbol, found in self.alternatives.items():
            for line in found:
                for slot in _slots(line):
                    if slot not in self.alternatives:
                        raise ValueError(f"[{symbol}] has the slot {{{slot}}}, and no file has a section [{slot}]")

    def expand(self, symbol: str, rng: random.Random) -> str:
        """A text for `symbol`: one of its alternatives, every slot filled."""
        text = self._fill(rng.choice(self.alternatives[symbol]), rng, {})
        return re.sub(r"\b(a|A)\(n\) (?=(\w))", _article, text)

    def _fill(self, text: str, rng: random.Random, bound: dict[tuple[str, str], str]) -> str:
        """`text` with every slot filled; `bound` are the numbered draws of the line that it belongs to."""
        out, end = [], 0
        for start, stop in _braces(text):
            out += [text[end:start], self._slot(text[start + 1 : stop], rng, bound)]
            end = stop + 1
        return "".join([*out, text[end:]])

    def _slot(self, inside: str, rng: random.Random, bound: dict[tuple[str, str], str]) -> str:
        if span := RANGE.fullmatch(inside):
            return str(rng.randint(int(span[1]), int(span[2])))
        if slot := SYMBOL.fullmatch(inside):
            name, number = slot[1], slot[2]
            text = self._draw(name.lower(), number, rng, bound)
            return text[:1].upper() + text[1:] if name[0].isupper() else text
        options = _split(inside)
        if len(options) == 1:  # braces of a program, not a slot
            return "{" + self._fill(inside, rng, bound) + "}"
        return self._fill(rng.choice(options), rng, bound)

    def _draw(self, name: str, number: str | None, rng: random.Random, bound: dict[tuple[str, str], str]) -> str:
        """One expansion of `name`; a numbered one is kept for its line, and differs from the line's other numbers."""
        if number is None:
            return self._fill(rng.choice(self.alternatives[name]), rng, {})
        others = {text for (symbol, _), text in bound.items() if symbol == name}
        for _ in range(TRIES):
            if (name, number) in bound:
                break
            if (text := self._fill(rng.choice(self.alternatives[name]), rng, {})) not in others:
                bound[name, number] = text
        return bound[name, number]


def _article(found: re.Match[str]) -> str:
    """a or an, by the letter of the next word; none of our fillers has a silent h, or a u spoken as in "use"."""
    return found[1] + ("n " if found[2] in "aeiouAEIOU" else " ")


def _sections(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The symbols of a file with their alternatives."""
    symbol, block, lines = "", False, list[str]()

    def found() -> tuple[str, list[str]]:
        texts = "\n".join(lines).split("\n---\n") if block else [line.replace("\\n", "\n") for line in lines]
        return symbol, [text.strip("\n") for text in texts if text.strip()]

    for line in file.read_text(encoding="utf-8").splitlines():
        header = re.fullmatch(r"(\[\[|\[)(\w+)\]{1,2}", line)
        if header:
            if symbol:
                yield found()
            symbol, block, lines = header[2], header[1] == "[[", []
        elif symbol:
            lines.append(line)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{file.name}: {line!r} stands before the first [symbol]")
    if not symbol:
        raise ValueError(f"{file.name} has no [symbol]: see README.md beside it")
    yield found()


def _braces(text: str) -> Iterator[tuple[int, int]]:
    """Where the outermost pairs of braces open and close."""
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character == "{":
            start = start if depth else i
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if not depth:
                yield start, i


def _split(inside: str) -> list[str]:
    """`inside` at each | that stands in no inner braces."""
    inner = list(_braces(inside))
    cuts = [i for i, c in enumerate(inside) if c == "|" and not any(a < i < b for a, b in inner)]
    return [inside[a:b] for a, b in zip([0, *(c + 1 for c in cuts)], [*cuts, len(inside)], strict=True)]


def _slots(text: str) -> Iterator[str]:
    """Every symbol that `text` names, also inside other slots."""
    for start, stop in _braces(text):
        inside = text[start + 1 : stop]
        if RANGE.fullmatch(inside):
            continue
        if slot := SYMBOL.fullmatch(inside):
            yield slot[1].lower()
        else:
            yield from _slots(inside)
