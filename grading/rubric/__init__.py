"""Written tasks by their rubric: points by item, comments used again, and a second marker who does not see the first.

apply.py      `grade rubric`: items that were written into formgrader's comments become its points
second.py     `grade second`: a course directory for the second marker; `grade agree`: where the two differ

All of it lives in formgrader's own data, which grading/gradebook/items.py reads. A marker writes a line for each item
into the comment box of a written task:

    1: 5
    2: 6 #units the third clock has no number
    3: 4.5

`#units` stands for a sentence of [comments] in course.toml. Other lines are a comment as ever.
"""
