"""`grade mark` killed at many points: no submission is on the screen by half, and the next one completes."""

import json
import shutil
import signal
import textwrap
from pathlib import Path

import pytest

from grading.marking.session import prepare
from grading.register.classes import open_class
from tests import warm
from tests.grading.marking.samples import handed, mark, rows, shown
from tests.grading.publish.aclass import hand_in

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
KILLED = textwrap.dedent("""
    import os, signal, sys
    from grading.marking.session import prepare
    from grading.register.classes import open_class
    from labkit.checks.tasks import find_weeks
    from sqlalchemy import event
    folder, source, where, number = sys.argv[1:]
    left = [int(number)]

    def count(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "before rename":
        real = os.replace
        os.replace = lambda *args: (count(), real(*args))
    else:
        from sqlalchemy.engine import Engine
        event.listen(Engine, {"statement": "after_cursor_execute", "commit": "commit"}[where], count)
    with open_class(folder, find_weeks(source)) as cls:
        prepare(cls, cls.week("week91"))
""")


@pytest.mark.parametrize(
    "where, number", [("statement", 25), ("statement", 90), ("commit", 4), ("before rename", 1), ("before rename", 3)]
)
def test_killed_in_the_middle_the_next_one_completes(cls, source, week, tmp_path, where, number):
    for i, name in enumerate(["anna", "ben", "cleo", "dan"]):
        hand_in(cls, name, mark({"91.1": i, "91.3": 1}), files=handed(f"Answer {i}."))
    cls.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(cls.folder, tmp_path / "undisturbed")
    with open_class(tmp_path / "undisturbed", cls.weeks) as other:
        prepare(other, week)

    done = warm.python("-c", KILLED, cls.folder, source, where, number, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, f"this test killed nothing: {done.stderr}"
    seen = {row[1] for row in rows(cls.folder)}
    whole = [row for row in rows(tmp_path / "undisturbed") if row[1] in seen]
    assert rows(cls.folder) == whole, "a submission is there whole or not at all"
    assert len(seen) < 4 or where == "before rename"

    prepare(cls, week)
    assert rows(cls.folder) == rows(tmp_path / "undisturbed")
    for submission in range(1, 5):
        assert shown(cls.folder, submission).read_bytes() == shown(tmp_path / "undisturbed", submission).read_bytes()
    json.loads(shown(cls.folder, 4).read_text())
