"""Planted bugs of the checks of problem sets and of marking."""

from support.planted_bugs import bug

BUGS = [
    bug(
        "the line that called, not the one that failed",
        "specdec_course/checks/check.py",
        'f", line {where[-1].lineno}: {where[-1].line}"',
        'f", line {where[0].lineno}: {where[0].line}"',
        "course/checks/messages",
    ),
    bug(
        "a second source of randomness is missed by luck",
        "specdec_course/checks/distributions.py",
        "for _ in range(6 if len(distribution) < 5 else 1))",
        "for _ in range(1))",
        "course/checks/ps04_rejection",
    ),
    bug(
        "a batch at which both take equally long is not compute-bound",
        "specdec_course/checks/ps01_roofline/bounds.py",
        "one.but(b=batch).arithmetic >= one.but(b=batch).memory",
        "one.but(b=batch).arithmetic > one.but(b=batch).memory",
        "course/checks/variants",
    ),
    bug(
        "a total though a part has no mark",
        "specdec_course/grading/tables.py",
        'round(sum(have), 2) if len(have) == len(mine) else ""',
        'round(sum(have), 2) if have else ""',
        "course/grading/flow",
    ),
    bug(
        "a tab hides a formula from the export",
        "specdec_course/grading/tables.py",
        'in "=+-@\\t\\r" and text',
        'in "=+-@" and text',
        "course/grading/flow",
    ),
    bug(
        "points of an earlier run stand for one that failed",
        "specdec_course/grading/gradebook.py",
        "grade.auto_score if ran else None",
        "grade.auto_score",
        "course/grading/flow",
    ),
    bug(
        "two spellings of a name are two students",
        "specdec_course/grading/collect.py",
        "spelled.setdefault(student.casefold(), who) != who",
        "spelled.setdefault(student, who) != who",
        "course/grading/collect",
    ),
    bug(
        "the pieces of a split answer in the wrong order",
        "specdec_course/grading/submission.py",
        "[*pieces[name], cell.source]",
        "[cell.source, *pieces[name]]",
        "course/grading/submission",
    ),
    bug(
        "a deleted cell comes back before the one that it followed",
        "specdec_course/grading/submission.py",
        "at = next((i + 1 for i, c in enumerate(result.cells)",
        "at = next((i for i, c in enumerate(result.cells)",
        "course/grading/submission",
    ),
    bug(
        "another seed grades nothing again",
        "specdec_course/grading/auto.py",
        'problem_set.fingerprint and seed in (None, old.get("seed"))',
        "problem_set.fingerprint",
        "course/grading/flow",
    ),
    bug(
        "a second mark for a test replaces the first unseen",
        "specdec_course/grading/sandbox.py",
        '            if self.test.points is not None:\n                self._tamper("a forged message")\n',
        "",
        "course/grading/sandbox",
        "course/grading/hostile",
    ),
]
