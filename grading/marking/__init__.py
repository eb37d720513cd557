"""nbgrader's formgrader as the screen on which people mark, around marks that were decided elsewhere.

course.py     its course directory in the class's folder; guard.py: nbgrader never runs a submission here; jupyter.py: its server
screen.py     what formgrader shows, made from class.db: scores and points by hand of each submission that counts
view.py       the notebook of one submission; cells.py: which cells are graded; verdicts.py: why; inert.py: harmless
typed.py      what was typed into formgrader, back into class.db; items.py: a rubric's items in a comment
session.py    `grade mark`
"""

import sys

# nbgrader imports jsonschema, and that builds a grammar of international addresses if this package is there: 3 s of
# every command that opens the gradebook, for a format that no notebook's schema names. Without it jsonschema goes on.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: "there is no such module" to Python
