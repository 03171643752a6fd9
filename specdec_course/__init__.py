"""The course: what notebooks, exercises and marking import."""
