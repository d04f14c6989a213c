"""Exercises with drawn numbers, whose answers the project's own functions compute: questions, hints, verdicts.

`exercise` defines what an exercise is, `subjects` has them, `catalogue` finds one by its name, `grade` judges an
answer, `shown` makes the HTML of a question, and `study` compares readers' answers before and after a reading.
"""
