"""Checks of problem set 05: the loop of a speculative engine, part by part and whole.

Most models here are scripted, in float64, and their distributions depend on every token so far: a cache that holds the
wrong tokens shows. What is expected comes from these distributions, or from the production engine.
"""

from specdec_course.checks.ps05_engine.bug import remembering_model, repair, witness
from specdec_course.checks.ps05_engine.draft import draft
from specdec_course.checks.ps05_engine.loop import loop
from specdec_course.checks.ps05_engine.rounds import cut, greedy, limit, rollback, verify
from specdec_course.checks.ps05_engine.show import show_run, smollm2, smollm2_prompt

__all__ = ["cut", "draft", "greedy", "limit", "loop", "remembering_model", "repair", "rollback"]
__all__ += ["show_run", "smollm2", "smollm2_prompt", "verify", "witness"]
