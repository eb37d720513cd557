"""`grade load` killed at many points: nothing is seen by half, and the next run completes."""

from __future__ import annotations

import json
import shutil
import signal
import textwrap
from pathlib import Path

import pytest

from grading.gradebook.load import load
from tests import warm
from tests.grading.gradebook.samples import handed, mark, put_marks, rows, shown

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    import grading.gradebook.load as module
    from grading.gradebook.course import open_course
    from labkit.checks.tasks import find_week, find_weeks
    from sqlalchemy import event
    from tests.grading.gradebook.samples import handed
    folder, source, marks, where, number = sys.argv[1:]
    left = [int(number)]

    def count(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    course = open_course(folder)
    if where == "before rename":
        real = os.replace
        os.replace = lambda *args: (count(), real(*args))
    else:
        from sqlalchemy.engine import Engine
        event.listen(Engine, {"statement": "after_cursor_execute", "commit": "commit"}[where], count)
    module.load(course, find_week("week91", find_weeks(source)), Path(marks), files=lambda mark: handed())
""")


@pytest.mark.parametrize(
    "where, number", [("statement", 15), ("statement", 75), ("commit", 4), ("before rename", 1), ("before rename", 3)]
)
def test_killed_in_the_middle_the_next_load_completes(course, source, week, marks, tmp_path, where, number):
    """A half of a student is never seen, and the next run ends where an undisturbed one does."""
    from grading.gradebook.course import open_course

    put_marks(marks, *(mark(name, {"91.1": i, "91.3": 1}) for i, name in enumerate(["anna", "ben", "cleo", "dan"])))
    shutil.copytree(course.root, tmp_path / "undisturbed")
    undisturbed = open_course(tmp_path / "undisturbed")
    load(undisturbed, week, marks, files=lambda mark: handed())

    done = warm.python("-c", KILLED, course.root, source, marks, where, number, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, f"this test killed nothing: {done.stderr}"
    seen = {row[1] for row in rows(course) if len(row) == 9}
    whole = {row for row in rows(undisturbed) if len(row) == 9 and row[1] in seen}
    assert {row for row in rows(course) if len(row) == 9} == whole, "a student is there whole or not at all"
    assert len(seen) < 4 or where == "before rename"

    load(course, week, marks, files=lambda mark: handed())
    assert rows(course) == rows(undisturbed)
    for name in ("anna", "ben", "cleo", "dan"):
        assert shown(course, name).read_bytes() == shown(undisturbed, name).read_bytes()
    json.loads(shown(course, "dan").read_text())
