"""Checks of exercises and lessons' blanks: what was given, what came, what was expected, and the likely mistake.

A check is a list of parts; each looks at the learner's code from one side. In a learner's notebook the first part that
fails raises CheckFailed with its message. At marking (the environment variable SPECDEC_GRADING_SEED holds a seed) every
part runs, what failed is printed, and the value of the call is the points earned. The blanks of lesson NN are in
`lessonNN`.
"""

from specdec_course.checks.check import GRADING_SEED, Blank, Check, CheckFailed, guard, raised, wrong

__all__ = ["GRADING_SEED", "Blank", "Check", "CheckFailed", "guard", "raised", "wrong"]
