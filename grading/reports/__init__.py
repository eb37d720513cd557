"""What people read of the marks: a student's feedback, the class's report, the exported table; and forgetting.

standing.py    where a student stands: the attempt that counts, points by task, by hand, the late rule
by_hand.py     points and comments that people gave, from nbgrader's gradebook
mistakes.py    cases that tell the same mistake, and how often the class made it
feedback.py    one page a student; pictures.py: their own pictures, made harmless
overview.py    the class in numbers; figures.py draws them, class_page.py is the page and its short form for a terminal
export.py      CSV; canvas.py: what Canvas' gradebook imports
forget.py      where everything stored of a student is, and removing it
page.py        what the pages share: one file, no script, strangers' text made harmless
"""
