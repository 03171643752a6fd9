"""Checks of problem set 05: the loop of a speculative engine, part by part and whole.

All models here are scripted and in float64, and their distributions depend on every token so far, so a cache that
holds the wrong tokens shows. What is expected comes from the distributions alone, without any cache. A part that
needs other parts of an engine gets right ones from here.
"""

from specdec_course.checks.engine_bug import remembering_model, repair, witness
from specdec_course.checks.engine_draft import draft
from specdec_course.checks.engine_ends import cut, limit, rollback
from specdec_course.checks.engine_loop import loop
from specdec_course.checks.engine_show import show_run, smollm2, smollm2_prompt
from specdec_course.checks.engine_verify import greedy, verify

__all__ = [
    "cut",
    "draft",
    "greedy",
    "limit",
    "loop",
    "remembering_model",
    "repair",
    "rollback",
    "show_run",
    "smollm2",
    "smollm2_prompt",
    "verify",
    "witness",
]
