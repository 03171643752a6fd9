"""Checks of problem set 01: the work of a pass, datasheets, times and bounds on the roofline.

The right values come from counting in fractions what happens in a pass, and from the meaning of a bound (one more is
too many, one less too few), not from the formulas that learners are to find.
"""

from specdec_course.checks.ps01_roofline.bounds import compute_bound_batch, counterexample, free_drafts
from specdec_course.checks.ps01_roofline.passes import pass_time, tokens_per_second, verify_cost
from specdec_course.checks.ps01_roofline.pieces import Chip, Model, stop_endless
from specdec_course.checks.ps01_roofline.work import datasheet, utilisation, work

__all__ = [
    "Chip",
    "Model",
    "compute_bound_batch",
    "counterexample",
    "datasheet",
    "free_drafts",
    "pass_time",
    "stop_endless",
    "tokens_per_second",
    "utilisation",
    "verify_cost",
    "work",
]
