"""Eight engines with one wrong line each: the symptom is seen first, then the learner looks for the line."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import HTML

from specdec_course import plain_engine

_ENGINE = ("accept_prefix", "roll_back", "limit", "cut", "generate")
_DRAFT = ("missing", "DraftModel")
_RULE = ("residual", "verify_tokenwise")


@dataclass(frozen=True)
class Bug:
    """One line of `plain_engine`, what it becomes, and what is said of it.

    parts: the functions that are listed, the wrong one among them.
    right: said to a learner who has found the line; hint: to one who named another.
    also: the same slip in the sampling loop, where that has a line of its own for it.
    """

    old: str
    new: str
    parts: tuple[str, ...]
    right: str
    hint: str
    also: tuple[str, str] | None = None


BUGS = {
    1: Bug(
        "            break\n        accepted",
        "            continue\n        accepted",
        _ENGINE,
        "it goes on after a rejected draft and counts every later one that agrees. Those rows answer what would follow "
        "a text that is never written; only the prefix counts.",
        "More drafts are accepted than should be. Where is it decided that the count ends?",
    ),
    2: Bug(
        "    cache.truncate(len(tokens) - 1)",
        "    cache.truncate(cache.length)",
        _ENGINE,
        "nothing is taken back.",
        "What is in the cache that should not be?",
    ),
    3: Bug(
        "    cache.truncate(len(tokens) - 1)",
        "    cache.truncate(min(cache.length, len(tokens)))",
        _ENGINE,
        "the newest token is pending and not in the cache: one rejected draft stays in its place.",
        "What is in the cache that should not be?",
    ),
    4: Bug(
        "    cache.truncate(len(tokens) - 1)",
        "    cache.truncate(len(tokens) - 2)",
        _ENGINE,
        "a committed token is lost.",
        "What is missing from the cache?",
    ),
    5: Bug(
        "tokens += cut(emitted, eos)",
        "tokens += emitted",
        _ENGINE,
        "`cut` is there, and nobody calls it. The loop's condition looks at the newest token only, so it sees an end "
        "that happens to be the last of its round.",
        "Which line makes the text longer, and by what?",
        ("cut([*drafted[:accepted], token], eos)", "[*drafted[:accepted], token]"),
    ),
    6: Bug(
        "min(gamma, room - 1)",
        "min(gamma, room)",
        _ENGINE,
        "a round adds one token more than it drafts, so only room - 1 may be drafted.",
        "How many tokens can the last round add, if all its drafts are accepted?",
    ),
    7: Bug(
        "return tokens[held:]",
        "return tokens[-1:] if held else tokens",
        _DRAFT,
        "it feeds only the pending token, as one does with the target. After a fully accepted round the last draft is "
        "missing too: it came out of the draft model and never went in.",
        "After a fully accepted round, which committed tokens has the draft model never been fed?",
    ),
    8: Bug(
        "source.categorical(residual(p[i], q[i]))",
        "source.categorical(p[i])",
        _RULE,
        "the correction is drawn from p. The tokens that the draft likes too much have had their turn already; only "
        "what is left of p, the residual, may follow a rejection.",
        "Which tokens come out too often, and from where can they come after a rejection?",
    ),
}


class Suspect:
    """An engine with the bug of this number, in all that uses the wrong line.

    It has `generate` and `DraftModel`, which are greedy, and `sample` and `SamplingDraft`, which draw. Their caches
    have room to spare, so that a wrong engine writes a wrong text instead of stopping.

    Raises KeyError for a number that no bug has.
    """

    def __init__(self, number: int) -> None:
        if number not in BUGS:
            raise KeyError(f"there is no bug {number!r}: they are numbered 1 to {len(BUGS)}")
        self.number, self.bug = number, BUGS[number]
        source = inspect.getsource(plain_engine)
        assert source.count(self.bug.old) == 1, f"bug {number} changes one place"
        namespace: dict[str, Any] = {"__name__": f"{plain_engine.__name__} with bug {number}"}
        broken = source.replace(self.bug.old, self.bug.new)
        if self.bug.also is not None:
            assert broken.count(self.bug.also[0]) == 1, f"bug {number} changes one place of the sampling loop"
            broken = broken.replace(*self.bug.also)
        exec(compile(broken, f"<engine {number}>", "exec"), namespace)
        namespace["prefill"] = lambda model, tokens, capacity: plain_engine.prefill(model, tokens, 10 * capacity)
        self.generate: Callable[..., Any] = namespace["generate"]
        self.DraftModel: Callable[..., Any] = namespace["DraftModel"]
        self.sample: Callable[..., Any] = namespace["sample"]
        self.SamplingDraft: Callable[..., Any] = namespace["SamplingDraft"]
        self.verify_tokenwise: Callable[..., Any] = namespace["verify_tokenwise"]
        self.lines = _listing(broken, self.bug.parts)
        right = _listing(source, self.bug.parts)
        (self.line,) = [i for i, (a, b) in enumerate(zip(self.lines, right, strict=True), 1) if a != b]

    def find(self, line: object) -> HTML:
        """The engine's listing with numbered lines, folded, and the reply to a learner who names the wrong one."""
        numbered = "\n".join(f"{i:3}  {text}" for i, text in enumerate(self.lines, 1))
        opened = "" if line in (None, self.line) else " open"
        return HTML(
            f"<details{opened}><summary>Engine {self.number}: {len(self.lines)} lines, and one of them is wrong "
            f"(click to read them)</summary><pre>{html.escape(numbered)}</pre></details>"
            f"<p>{html.escape(self.reply(line))}</p>"
        )

    def reply(self, line: object) -> str:
        """The reply to a learner who names the wrong line; None asks for one."""
        if line is None:
            return "Read the lines above, write the number of the wrong one in place of None, and run this cell again."
        if not isinstance(line, int) or not 1 <= line <= len(self.lines) or not self.lines[line - 1].strip():
            return f"Write the number of a line, 1 to {len(self.lines)}; {line!r} is none."
        if line == self.line:
            return f"Yes, line {line}: {self.bug.right}"
        return f"Line {line} is as it should be. {self.bug.hint}"


def suspect(number: int) -> Suspect:
    """The engine of lesson 05 with bug `number`, 1 to 8. Raises KeyError for any other number."""
    return Suspect(number)


ORDERS = {"05 caches": ("BCA", ("no roll-back", "one token too many", "one token lost"))}
"""By question the right letters, and what each of them has; kept here, where a learner does not read them by chance."""


def reply_to_order(question: str, given: object) -> str:
    """The reply to a learner who says which suspect has which fault, by letters: "BCA" and the like.

    None asks for an answer. Raises KeyError for an unknown question.
    """
    right, meanings = ORDERS[question]
    if given is None:
        return f"Write three letters in place of None: first the engine with {meanings[0]}, and so on."
    letters = str(given).replace(" ", "").replace(",", "").upper()
    if sorted(letters) != sorted(right):
        return f"Write each of the letters {', '.join(sorted(right))} once, for instance {''.join(sorted(right))!r}."
    told = "; ".join(f"{letter} has {meaning}" for letter, meaning in zip(right, meanings))
    if letters == right:
        return f"Yes: {told}."
    placed = sum(a == b for a, b in zip(letters, right))
    return f"Not quite: {placed} of {len(right)} {'is' if placed == 1 else 'are'} right. Read the numbers above again."


def _listing(source: str, parts: Sequence[str]) -> list[str]:
    """The source lines of these functions, in their order, with an empty line between two."""
    lines, found = source.splitlines(), list[str]()
    for part in parts:
        start = next(i for i, x in enumerate(lines) if x.startswith((f"def {part}(", f"class {part}:")))
        end = next((i for i in range(start + 1, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
        block = lines[start:end]
        while not block[-1]:
            block.pop()
        found += [*([""] if found else []), *block]
    return found
