"""What leaves: everything that students, offices and platforms get of a week, from where everybody stands.

publishing.py  `grade publish`: what blocks first, then all of it, and what changed since the last time
platforms.py   the table that Canvas or Moodle exported, filled in; upload.py: feedback as they take it back
table.py       the class's and the term's tables as CSV
feedback.py    one page a student
overview.py    the class in numbers; mistakes.py: cases of one mistake; figures.py draws, class_page.py is the page
status.py      `grade status`; why.py: `grade why`; forget.py: `grade forget`
page.py        what the pages share: one file, no script, strangers' text made harmless
"""
