"""Two ways of writing a text over time: a mark for each pass of the target, tokens falling in, in a moving picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets

from specdec_course.pictures.plots import BLACK, GREY, LIGHT_GREY
from specdec_course.pictures.tokens import ORIGIN_COLOURS
from specdec_course.pictures.widgets import choice, explorer, slider, text_box
from specdec_ref.draft import NGramDrafter
from specdec_ref.engine import Generation, Round, Run, SpeculativeEngine
from specdec_ref.engine.text import pieces
from specdec_ref.interfaces import CausalLM, Origin
from specdec_ref.measure import compare_greedy
from specdec_ref.prompts import Prompt

WIDTH, LEFT, RIGHT = 980, 12, 24
"""Of the picture, and of its margins, in pixels."""
BOX, PER_LINE, LINE = 9, 130, 17
"""Side of a token's box; characters in a line of text, and its height."""
STILL_S, FADE_S, PLAY_S = 1.5, 0.5, 8.0
"""Seconds for which the moving picture stands complete, fades, and which the slower of two runs then takes in it."""
STYLE = f"""
text {{ font: 12px monospace; white-space: pre }}
.name {{ font: bold 14px sans-serif }}
.axis {{ font: 12px sans-serif }}
@keyframes fade {{ to {{ opacity: 0 }} }}
@keyframes hidden {{ from, to {{ opacity: 0 }} }}
@keyframes fall {{ from {{ opacity: 0; transform: translateY(-26px) }} }}
@keyframes appear {{ from {{ opacity: 0 }} }}
@keyframes sweep {{ from, to {{ opacity: 0.7 }} to {{ transform: translateX({WIDTH - LEFT - RIGHT}px) }} }}
.all {{ --begin: {STILL_S + FADE_S}s; animation: fade {FADE_S}s {STILL_S}s }}
.fall {{ animation: hidden var(--at) var(--begin), fall 0.3s ease-in calc(var(--begin) + var(--at)) }}
.appear {{ animation: hidden var(--at) var(--begin), appear 0.2s calc(var(--begin) + var(--at)) }}
.now {{ opacity: 0; animation: sweep {PLAY_S}s linear {STILL_S + FADE_S}s }}
@media (prefers-reduced-motion: reduce) {{ .all, .fall, .appear, .now {{ animation: none }} }}
"""


@dataclass(frozen=True)
class TimedRun:
    """One generation with a clock: `ends` are the seconds since the prompt was read, at the end of each pass."""

    generation: Generation
    ends: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Time of decoding, without the prompt's pass."""
        return self.ends[-1]


def timed_run(engine: SpeculativeEngine, prompt: Any, max_new_tokens: int) -> TimedRun:
    """Write once, and note when each pass has ended. Raises ValueError where not a single token was written."""
    ends: list[float] = []

    def note(run: Run, _round: Round) -> None:
        ends.append(run.stats.seconds - run.stats.prefill_seconds)

    generation = engine.generate(prompt, max_new_tokens, on_round=note)
    if not ends:
        raise ValueError("nothing was written: give a shorter prompt, or room for a token")
    return TimedRun(generation, tuple(ends))


def timeline_html(runs: Sequence[tuple[str, TimedRun]], tokenizer: Any) -> str:
    """The runs by name, one above the other on one axis of time, as an image with a description."""
    picture = base64.b64encode(timeline_svg(runs, tokenizer).encode()).decode("ascii")
    words = "; ".join(f"{name}: {summary(run)}" for name, run in runs)
    alt = f"Target passes over time, each with the tokens that it gave. {words}."
    source = f"data:image/svg+xml;base64,{picture}"
    return f'<figure><img style="max-width: 100%" alt="{html.escape(alt)}" src="{source}"></figure>'


def summary(run: TimedRun) -> str:
    """The run in numbers."""
    stats = run.generation.stats
    return f"{stats.emitted} tokens in {stats.rounds} target passes, {1e3 * run.seconds:,.0f} ms"


def timeline_svg(runs: Sequence[tuple[str, TimedRun]], tokenizer: Any) -> str:
    """The picture as SVG: complete for a second, and as a still; then it plays once, from the beginning.

    Above each run's line of time stands a column of boxes for each pass, one per token, coloured by origin; below it
    the text, with each token appearing as its pass ends.
    """
    longest = max(run.seconds for _, run in runs)
    parts, y = [], 10.0
    for name, run in runs:
        part, height = _lane(name, run, tokenizer, longest, y)
        parts.append(part)
        y += height
    parts += [_axis(longest, y), _legend({origin for _, run in runs for origin in run.generation.stats.origins})]
    cursor = f'<line class="now" x1="{LEFT}" x2="{LEFT}" y1="10" y2="{y:.0f}" stroke="{BLACK}" stroke-dasharray="2 3"/>'
    size = f'width="{WIDTH}" height="{y + 34:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {y + 34:.0f}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/><g class="all">{"".join(parts)}</g>{cursor}</svg>'
    )


def _x(seconds: float, longest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / longest


def _lane(name: str, run: TimedRun, tokenizer: Any, longest: float, top: float) -> tuple[str, float]:
    """One run, and its height in pixels."""
    rounds = run.generation.stats.by_round
    shown = pieces(run.generation.tokens, run.generation.stats.origins, tokenizer)
    tallest = max(r.emitted for r in rounds)
    base = top + 30 + max(3, tallest) * (BOX + 2)
    side = min(BOX, max(3.0, 0.8 * (WIDTH - LEFT - RIGHT) * min(_gaps(run)) / longest)) if len(rounds) > 1 else BOX
    parts = [
        f'<text class="name" x="{LEFT}" y="{top + 14:.0f}">{html.escape(f"{name}: {summary(run)}")}</text>',
        f'<line x1="{LEFT}" x2="{_x(run.seconds, longest):.1f}" y1="{base}" y2="{base}" stroke="{GREY}" '
        f'stroke-width="2"/>',
    ]
    done, at_column, at_line = 0, 0, 0
    for r, end in zip(rounds, run.ends, strict=True):
        x, at = _x(end, longest), f"--at: {PLAY_S * end / longest:.2f}s"
        boxes = [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base - 3}" y2="{base + 5}" stroke="{BLACK}"/>']
        words = []
        for k in range(r.emitted):
            text, origin = shown[done + k]
            colour = ORIGIN_COLOURS[origin]
            y = base - 5 - (k + 1) * (BOX + 2)
            boxes.append(
                f'<rect x="{x - side / 2:.1f}" y="{y:.1f}" width="{side:.1f}" height="{BOX}" fill="{colour}"/>'
            )
            text = text.replace("\n", "↵")
            if at_column + len(text) > PER_LINE:
                at_column, at_line = 0, at_line + 1
            words.append(_word(text, origin, LEFT + at_column * 7.2, base + 24 + at_line * LINE))
            at_column += len(text)
        done += r.emitted
        parts.append(f'<g class="fall" style="{at}">{"".join(boxes)}</g>')
        parts.append(f'<g class="appear" style="{at}">{"".join(words)}</g>')
    return "".join(parts), base + 24 + (at_line + 1) * LINE + 12 - top


def _gaps(run: TimedRun) -> list[float]:
    return [b - a for a, b in zip(run.ends, run.ends[1:])]


def _word(text: str, origin: Origin, x: float, y: float) -> str:
    length = f'textLength="{7.2 * len(text):.1f}"' if text else ""
    word = f'<text x="{x:.1f}" y="{y:.0f}" {length} xml:space="preserve">{html.escape(text)}</text>'
    if origin == "plain":
        return word
    where = f'x="{x:.1f}" y="{y + 3:.0f}" width="{7.2 * len(text):.1f}" height="2"'
    return f'{word}<rect {where} fill="{ORIGIN_COLOURS[origin]}"/>'


def _legend(origins: set[Origin]) -> str:
    """The colours of the boxes, at the upper right."""
    shown, parts = [origin for origin in ORIGIN_COLOURS if origin in origins], []
    for i, origin in enumerate(shown):
        x = WIDTH - RIGHT - 90 * (len(shown) - i)
        parts.append(f'<rect x="{x}" y="15" width="{BOX}" height="{BOX}" fill="{ORIGIN_COLOURS[origin]}"/>')
        parts.append(f'<text class="axis" x="{x + 14}" y="24">{origin}</text>')
    return "".join(parts)


def _axis(longest: float, y: float) -> str:
    """Marks at round numbers of milliseconds."""
    total = 1e3 * longest
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5) if total / s <= 10)
    marks = []
    for ms in range(0, int(total) + 1, step):
        x = _x(ms / 1e3, longest)
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}" stroke="{BLACK}"/>'
            f'<text class="axis" x="{x:.1f}" y="{y + 20:.0f}" text-anchor="{"start" if not ms else "middle"}">'
            f"{ms:,}{' ms' if not ms else ''}</text>"
        )
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{LIGHT_GREY}"/>{"".join(marks)}'


def race_html(target: CausalLM, prompt: Any, gamma: int, max_new_tokens: int = 48) -> str:
    """A text written plainly and with lookup guesses, once each: the counts, the picture, whether the texts agree."""
    guessing = SpeculativeEngine(target, NGramDrafter(), gamma)
    plain = timed_run(SpeculativeEngine(target), prompt, max_new_tokens)
    guessed = timed_run(guessing, prompt, max_new_tokens)
    stats = guessed.generation.stats
    found = compare_greedy(plain.generation.tokens, guessed.generation.tokens, target, prompt)
    agree = {
        "same": "Both texts are the same, token for token.",
        "near-tie": f"The texts part at token {found.position}, where two tokens were all but equal: rounding chose.",
    }
    words = (
        f"gamma {gamma}: {stats.emitted} tokens in {stats.rounds} target passes; {stats.drafted} drafted, "
        f"{stats.tested} tested, {stats.accepted} accepted. In this one run decoding took "
        f"{1e3 * guessed.seconds:,.0f} ms, and {1e3 * plain.seconds:,.0f} ms without guesses. "
        + agree.get(found.kind, f"The texts part at token {found.position}: an error, rounding does not explain it.")
    )
    runs = [("One token per pass", plain), (f"With guesses, gamma {gamma}", guessed)]
    return f"<p>{words}</p>{timeline_html(runs, target.tokenizer)}"


def race_explorer(target: CausalLM, prompts: Sequence[Prompt], gamma: int = 8) -> ipywidgets.VBox:
    """Choose a prompt or write one, and gamma; the text is written both ways, and the picture shows when."""
    by_name = {f"{p.domain} ({p.id})": p.messages for p in prompts}

    def render(prompt: str, own: str, gamma: int) -> str:
        return race_html(target, [{"role": "user", "content": own}] if own.strip() else by_name[prompt], gamma)

    return explorer(
        render,
        prompt=choice("prompt", list(by_name), next(iter(by_name))),
        own=text_box("or your own, then Enter", ""),
        gamma=slider("gamma (guesses per round, at most)", gamma, 0, 12),
    )
