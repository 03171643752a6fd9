"""Checks of problem set 04, rejection sampling.

What a learner's code draws is enumerated, not sampled: every branch is visited, and the exact distribution has to be
the one of the engine's own rule. So these checks never blame right code by bad luck. The one exception is the learner's
own statistical test, in `power`.
"""

from specdec_course.checks.ps04_rejection.drafter import repair, witness
from specdec_course.checks.ps04_rejection.filters import both_sides, top_p
from specdec_course.checks.ps04_rejection.power import trusts
from specdec_course.checks.ps04_rejection.rounds import accept, residual, verify

__all__ = ["accept", "both_sides", "repair", "residual", "top_p", "trusts", "verify", "witness"]
