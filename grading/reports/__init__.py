"""What people read of the marks: where each stands, feedback, the class's report, the exported tables; and forgetting.

standing.py    where a student stands: the attempt that counts, points by task, by hand, the late rule
by_hand.py     points and comments that people gave, from nbgrader's gradebook; together.py: a group's, given once
one_week.py    the class in one week, as the commands see it: who is missing, what to look at
status.py      who has handed in, what is graded, what waits; record.py: `grade why`, of one student
mistakes.py    cases that tell the same mistake, and how often the class made it
feedback.py    one page a student; mail.py: its text; pictures.py: their pictures, made harmless; handback.py: packed
overview.py    the class in numbers; difficulty.py: its tasks; figures.py draws, class_page.py is the page
exporting.py   `grade export`; export.py: CSV; canvas.py, moodle.py: what these import; term.py: all weeks
changed.py     whose total differs from the table that was there
forget.py      where everything stored of a student is, and removing it
page.py        what the pages share: one file, no script, strangers' text made harmless
commands.py    the other commands; options.py: what they are asked with
"""
