"""nbgrader's gradebook around marks that were decided elsewhere.

`grade course init` makes nbgrader's course directory (init.py; course.py is one that was made), `grade load` puts marks
into its gradebook (load.py) and beside each the notebook that formgrader shows (view.py). nbgrader never runs a
submission here (guard.py).

items.py reads a rubric's items, and a marker's comment by items; first_page.py makes what formgrader's first page
counts.
"""

from __future__ import annotations

import sys

# nbgrader imports jsonschema, and that builds a grammar of international addresses if this package is there: 3 s of
# every command that opens the gradebook, for a format that no notebook's schema names. Without it jsonschema goes on.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: "there is no such module" to Python
