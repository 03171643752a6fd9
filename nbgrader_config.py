"""nbgrader's settings for this course; `specdec grade` uses them, and so does nbgrader itself when run here."""

c = get_config()  # noqa: F821  (nbgrader gives it)

c.CourseDirectory.course_id = "specdec"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.db_url = "sqlite:///grading/gradebook.db"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.py"]
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("write this, then delete this line")'}
c.ClearSolutions.text_stub = "*Your answer here.*"
# Submissions run in the sandbox of `specdec grade auto` only; nbgrader's own autograde would run them on this machine.
c.Autograde.sanitize_preprocessors = ["specdec_course.grading.guard.UseSpecdecGrade"]
