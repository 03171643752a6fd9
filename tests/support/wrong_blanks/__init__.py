"""Wrong answers to the lessons' blanks, with a piece of the hint that each must get: WRONG in lessonNN.py."""
