"""Things to move. Each is a thin widget over a function that also works without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from specdec_course.pictures.tokens import legend_html, tokens_html
from specdec_ref.draft import NGramDrafter
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.prompts import Prompt

STYLE = {"description_width": "initial"}


def slider(label: str, value: int, low: int, high: int, step: int = 1) -> ipywidgets.IntSlider:
    """A whole-number slider that speaks only when it is let go."""
    return ipywidgets.IntSlider(
        value=value, min=low, max=high, step=step, description=label, continuous_update=False, style=STYLE
    )


def float_slider(label: str, value: float, low: float, high: float, step: float = 0.05) -> ipywidgets.FloatSlider:
    """A slider for real numbers that speaks only when it is let go."""
    return ipywidgets.FloatSlider(
        value=value, min=low, max=high, step=step, description=label, continuous_update=False, style=STYLE
    )


def choice(label: str, options: Any, value: Any = None) -> ipywidgets.Dropdown:
    """A drop-down list."""
    return ipywidgets.Dropdown(options=options, value=value, description=label, style=STYLE)


def explorer(render: Callable[..., str], **controls: ipywidgets.Widget) -> ipywidgets.VBox:
    """Controls above the HTML that `render(**values)` gives; drawn once now, and again at each change."""
    output = ipywidgets.HTML(render(**{name: c.value for name, c in controls.items()}))

    def update(_change: Any) -> None:
        output.value = render(**{name: c.value for name, c in controls.items()})

    for control in controls.values():
        control.observe(update, names="value")
    return ipywidgets.VBox([*controls.values(), output])


def draft_html(target: Any, prompt: Prompt, gamma: int, max_new_tokens: int = 40) -> str:
    """A speculative generation with lookup drafts as coloured HTML, with its counts."""
    got = SpeculativeEngine(target, NGramDrafter(), gamma).generate(prompt.messages, max_new_tokens)
    stats = got.stats
    summary = (
        f"gamma {gamma}: {stats.emitted} tokens in {stats.rounds} target passes, "
        f"{stats.tokens_per_round:.2f} tokens a pass; {stats.drafted} drafted, {stats.tested} tested, "
        f"{stats.accepted} accepted"
    )
    return f"<p>{summary}</p>{tokens_html(got, target.tokenizer)}{legend_html(got)}"


def draft_explorer(target: Any, prompts: list[Prompt], gamma: int = 8) -> ipywidgets.VBox:
    """Choose a prompt and gamma, and see which tokens were drafted."""
    by_name = {f"{p.domain} ({p.id})": p for p in prompts}
    return explorer(
        lambda prompt, gamma: draft_html(target, by_name[prompt], gamma),
        prompt=choice("prompt", list(by_name), next(iter(by_name))),
        gamma=slider("gamma (draft tokens a round)", gamma, 0, 12),
    )
