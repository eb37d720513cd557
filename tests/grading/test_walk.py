"""The whole cycle of README's instructor page, as commands, with three students: one late, one who hands in twice, one
who cheats."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from grading.benchmarks.classroom import CLASS, write
from grading.cli import main
from labkit.checks.tasks import load_week
from tests import warm
from tests.grading.reports.looking import read_table

pytest.importorskip("nbgrader", reason="nbgrader is not installed")
pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sandbox")]
ROOT = Path(__file__).resolve().parents[2]
COURSE = """[late]
per_day = 0.1
[deadlines]
week13 = 2026-11-20T23:59:00+00:00
[extensions.bert]
week13 = 2026-11-22T23:59:00+00:00
[roster]
file = "roster.csv"
"""
BY_NAME = {made.name: made for made in CLASS}


def grade(folder, *words, status=0):
    """A command's standard output. `grade run`, which forks, is a process of its own; the others need not all import
    torch and nbgrader again."""
    if words[0] == "run":
        done = warm.run("grading.cli:main", words, cwd=folder, env={**os.environ, "COLUMNS": "150"})
        ended, said, told = done.returncode, done.stdout, done.stderr
    else:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as left,
        ):
            main(list(words))
        ended, said, told = left.value.code or 0, out.getvalue(), err.getvalue()
    assert ended == status, f"grade {' '.join(words)}: {ended}\n{said}{told}"
    return said


def hand_in(exchange, student, when, kind, released, week):
    """As `nbgrader submit` leaves it: inbound/STUDENT+week13+TIME+RANDOM/, twelve characters of it, and a timestamp."""
    folder = exchange / "inbound" / f"{student}+week13+{when}+{kind.replace('-', '_'):x<12.12}"
    write(week, folder, BY_NAME[kind])
    (folder / "lab.ipynb").write_bytes((released / week.notebook.name).read_bytes())
    (folder / "timestamp.txt").write_text(when)


@pytest.mark.timeout(600)
def test_a_whole_cycle(tmp_path):
    week = load_week(ROOT / "week13_allreduce")
    grade(tmp_path, "release", "week13", "--to", "students")
    grade(tmp_path, "course", "init", "gradebook")
    (tmp_path / "course.toml").write_text(COURSE)
    (tmp_path / "roster.csv").write_text("anna\nbert\ncleo\ndora\n")
    exchange, released = tmp_path / "exchange", tmp_path / "students" / week.package
    hand_in(exchange, "anna", "2026-11-21 10:00:00.000000 UTC", "good01", released, week)
    hand_in(exchange, "bert", "2026-11-20 10:00:00.000000 UTC", "hang-send-first", released, week)
    hand_in(exchange, "bert", "2026-11-21 10:00:00.000000 UTC", "good02", released, week)
    hand_in(exchange, "cleo", "2026-11-20 11:00:00.000000 UTC", "cheat-patch", released, week)

    grade(tmp_path, "collect", "week13", "--from", str(exchange))
    table = grade(tmp_path, "run", "week13", "--jobs", "2")
    assert "4 marks, 4 of them made now" in table
    assert "stretch/" not in table, "nobody has handed in what is not graded, and nobody need be told"
    assert "4 marks, 0 of them made now" in grade(tmp_path, "run", "week13", "--jobs", "2")
    grade(tmp_path, "load", "week13", "--gradebook", "gradebook")
    # The notebooks are as they were handed out, so nobody waits for points by hand.
    assert "3 handed in, 3 graded, 0 wait for a person, 1 late" in grade(tmp_path, "status", "week13")
    # One task anew: nothing has changed, and that is told and kept.
    said = grade(tmp_path, "run", "week13", "--task", "13.4", "--student", "anna", "--because", "she asked")
    assert "1 graded anew and unchanged" in said
    assert "she asked" in grade(tmp_path, "why", "week13", "anna", "--gradebook", "gradebook")

    # What formgrader does with a click (a browser does it in gradebook/test_formgrader.py).
    from grading.gradebook.course import open_course

    with open_course(tmp_path / "gradebook").gradebook() as book:
        for student, points in (("anna", 18), ("bert", 10), ("cleo", 5)):
            cell = book.find_grade("task-13-7", week.notebook.stem, "week13", student)
            cell.manual_score, cell.needs_manual_grade = points, False
        book.db.commit()
    grade(tmp_path, "load", "week13", "--gradebook", "gradebook")  # once more: points by hand stay

    grade(tmp_path, "feedback", "week13", "--to", "feedback", "--gradebook", "gradebook")
    page = (tmp_path / "feedback" / "cleo" / "week13.html").read_text()
    assert "13.4" in page and "anna" not in page and "bert" not in page
    grade(tmp_path, "report", "week13", "--to", "class.html", "--gradebook", "gradebook")
    assert "13.4" in (tmp_path / "class.html").read_text()
    grade(tmp_path, "export", "week13", "--to", "all.csv", "--gradebook", "gradebook")
    rows = {row["student"]: row for row in read_table(tmp_path / "all.csv")}
    assert rows.pop("dora")["total"] == "", "she handed nothing in, and nobody has said --zeros"
    total = {student: float(row["total"]) for student, row in rows.items()}
    # anna is a day late: nine tenths of 80 + 18. bert has an extension, and his second attempt counts. cleo's patches
    # changed nothing outside her own sandbox: 75 for the other tasks, 0.3 for x returned as it came, which
    # is right on one rank, and 5 by hand.
    assert total == {"anna": pytest.approx(88.2), "bert": 90, "cleo": pytest.approx(80.3)}
    assert rows["bert"]["attempt"] == "2" and rows["bert"]["attempts"] == "2"

    pytest.importorskip("copydetect", reason="copydetect is not installed")
    said = grade(tmp_path, "similar", "week13", "--to", "similar.html")
    assert "the reference and" in said, "all three are the reference with an edit"

    # class.html and all.csv name her still: told, and left to the instructor.
    said = grade(tmp_path, "forget", "cleo", "--yes", "--gradebook", "gradebook", status=1)
    assert "class.html" in said or "all.csv" in said or "course.toml" in said
    assert not list((tmp_path / "marks").glob("week13/cleo")) and list((tmp_path / "marks").glob("week13/anna"))
    assert not (tmp_path / "feedback" / "cleo").exists()
    assert int(grade(tmp_path, "seed", "week13")) >= 0
