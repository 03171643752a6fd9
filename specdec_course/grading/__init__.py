"""Grading of the problem sets: what `specdec grade` does, over nbgrader's gradebook and a sandbox of its own.

collect.py          a folder or an archive of submissions -> grading/submitted/
submission.py       one submitted notebook: read, and its tests and given cells restored
review.py           looks over its code without running it
sandbox.py          runs it and decides from outside what that is worth; bubblewrap.py is the wall around it
inside.py           the program in there, with notebook_shell.py (a cell) and integrity.py (what was tampered with)
auto.py             all submissions, several at a time, into the gradebook; graded_notebook.py is what remains of each
gradebook.py        nbgrader's database; tables.py: what goes in and out as CSV; feedback.py: pages for students
course_folder.py    where all of it is kept
"""
