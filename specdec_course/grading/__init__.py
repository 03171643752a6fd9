"""Grading of the problem sets: what `specdec grade` does, over nbgrader's gradebook and a sandbox of its own.

collect.py      a folder or an archive of submissions -> grading/submitted/
submission.py   one submitted notebook: read, its tests restored, its code looked over
sandbox.py      runs it under bubblewrap with limits; inside.py is what runs in there
auto.py         all of them, several at a time, into the gradebook
gradebook.py    nbgrader's database: release, roster, marks by hand, feedback, the table of marks
"""
