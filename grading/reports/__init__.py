"""What people read of the marks: a student's feedback, the class's report, the exported table; and forgetting.

standing.py    where a student stands: the attempt that counts, points by task, by hand, the late rule
by_hand.py     points and comments that people gave, from nbgrader's gradebook
mistakes.py    cases that tell the same mistake, and how often the class made it
feedback.py    one page a student; pictures.py and png.py: their own pictures, made harmless
overview.py    one page for the class; figures.py draws, summary.py is its short form for a terminal
export.py      CSV; canvas.py: what Canvas' gradebook imports
forget.py      removes everything stored of a student; places.py: where that is
page.py        what the pages share: one file, no script, strangers' text made harmless
"""
