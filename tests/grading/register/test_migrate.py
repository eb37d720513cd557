"""A class's folder of the former program, taken over: who is who, what counts, and what it is worth stays."""

import json
import sqlite3
import zipfile
from datetime import timedelta

import pytest

from grading.register.classes import open_class
from grading.register.migrate import migrate
from grading.register.people import resolve
from grading.register.problems import UNKNOWN, problems
from grading.register.standing import EXCUSED, standings
from grading.register.submissions import attempts
from labkit.errors import LabError
from tests.grading.publish.aclass import zipped
from tests.grading.register.storing import BEFORE, CANVAS, DUE, WEEK, WEEKS

RULES = f"""
[deadlines]
week13 = {DUE.isoformat()}
[late]
per_day = 0.1
[extensions."obriensean_4502"]
week13 = {(DUE + timedelta(days=2)).isoformat()}
[excused]
week14 = ["jane"]
[roster]
file = "roster.csv"
[ids]
"mülleranna_4501" = "anna"
"jane" = "jane@x.org"
[comments]
units = "State the unit."
"""
TASKS = [
    {"id": "13.1", "title": "a", "kind": "auto", "cell": "task-13-1", "points": 10, "possible": 15, "cases": []},
    {"id": "13.7", "title": "w", "kind": "written", "cell": "task-13-7", "points": None, "possible": 20, "cases": []},
]


class Old:
    """A folder as the former program left it."""

    def __init__(self, root):
        self.root = root
        root.mkdir()
        (root / "roster.csv").write_text(CANVAS, encoding="utf-8")
        (root / "course.toml").write_text(RULES, encoding="utf-8")

    def collected(self, student, attempt=1, received=BEFORE, withdrawn=False, mark=True, content=None, **more):
        folder = self.root / "submitted" / "week13" / student / ("withdrawn" if withdrawn else "")
        folder.mkdir(parents=True, exist_ok=True)
        text = content or f"{student} {attempt}"
        (folder / f"{attempt}.zip").write_bytes(zipped({"collectives.py": text.encode()}))
        receipt = {
            "student": student, "attempt": attempt, "received": received.isoformat() if received else "",
            "timed": "handed in", "digest": text, "name": "", "source": "d.zip",
            "collected": f"2026-11-20T1{attempt}:00:00+00:00", "late": None, "left_out": {}, "notes": [],
            "attention": [], "called": student, "participant": "", "group": "", "format": 1, **more,
        }  # fmt: skip
        (folder / f"{attempt}.json").write_text(json.dumps(receipt))
        if mark:
            self.mark(student, attempt)

    def mark(self, student, attempt):
        folder = self.root / "marks" / "week13" / student
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "student": student, "assignment": "week13", "attempt": attempt, "received": "", "group": "",
            "submission": f"content of {student} {attempt}", "key": "k", "points": 10, "possible": 15,
            "tasks": TASKS, "finished": "2026-11-21", "version": 1,
        }  # fmt: skip
        (folder / f"{attempt}.json").write_text(json.dumps(data))
        (folder.parent / ".seed.json").write_text('{"seed": 77}')

    def typed(self, *rows):
        """(student, cell, points, comment): nbgrader's database, as far as it is read."""
        (self.root / "gradebook").mkdir()
        db = sqlite3.connect(self.root / "gradebook" / "gradebook.db")
        db.executescript(
            "CREATE TABLE assignment (id, name); CREATE TABLE submitted_assignment (id, assignment_id, student_id);"
            "CREATE TABLE submitted_notebook (id, assignment_id); CREATE TABLE base_cell (id, name);"
            "CREATE TABLE grade (notebook_id, cell_id, auto_score, manual_score, extra_credit, needs_manual_grade);"
            "CREATE TABLE comment (notebook_id, cell_id, manual_comment);"
            "INSERT INTO assignment VALUES ('a', 'week13');"
        )
        for n, (student, cell, points, comment) in enumerate(rows):
            db.execute("INSERT INTO submitted_assignment VALUES (?, 'a', ?)", (f"s{n}", student))
            db.execute("INSERT INTO submitted_notebook VALUES (?, ?)", (f"n{n}", f"s{n}"))
            db.execute("INSERT INTO base_cell VALUES (?, ?)", (f"c{n}", cell))
            db.execute("INSERT INTO grade VALUES (?, ?, NULL, ?, NULL, 0)", (f"n{n}", f"c{n}", points))
            db.execute("INSERT INTO comment VALUES (?, ?, ?)", (f"n{n}", f"c{n}", comment))
        db.commit()


@pytest.fixture
def old(tmp_path):
    return Old(tmp_path / "old")


def taken_over(old, tmp_path):
    return list(migrate(old.root, tmp_path / "new", None, "Europe/Berlin"))


def test_everything_counts_as_it_did(old, tmp_path):
    late = DUE + timedelta(hours=5)
    old.collected("anna", 1)
    old.collected("anna", 2, late)
    old.collected("anna", 3, late, withdrawn=True)
    old.collected("obriensean_4502", 1, late, late=True)
    (old.root / "submitted/week13/obriensean_4502/1.names.json").write_text('{"a.py": "collectives.py"}')
    old.collected("jane", 1, None)
    old.typed(("anna", "task-13-7", 15.0, "well said"), ("jane", "task-13-7", None, "#units"))
    said = taken_over(old, tmp_path)
    assert "week13: 5 submissions, 4 marks, 2 points or comments by hand" in said
    with open_class(tmp_path / "new", WEEKS) as cls:
        by_name = {one.person.name: one for one in standings(cls, WEEK)}
        anna, sean, jane = (by_name[name] for name in ("Müller, Anna", "O'Brien, Sean", "Doe, Jane"))
        assert (anna.factor, anna.total, len(anna.counted.attempts)) == (0.9, 22.5, 2)
        assert anna.by_hand["13.7"].comment == "well said" and not anna.looked_at_again
        assert sean.factor == 1 and sean.ungraded == ["13.7"], "his extension was by Canvas' name"
        assert sean.counted.submission.renamed == (("a.py", "collectives.py"),) and sean.mark.points == 10
        assert jane.counted.received is None and jane.by_hand["13.7"].comment == "#units"
        assert cls.rules.comments == {"units": "State the unit."} and cls.rules.zone == "Europe/Berlin"
        assert {one.state for one in standings(cls, cls.week("week14")) if one.person == jane.person} == {EXCUSED}
        assert cls.db.execute("SELECT value FROM seed").fetchone()[0] == 77
        assert len(attempts(cls, "week13", withdrawn=True)) == 5 and not [
            one for one in problems(cls, WEEK) if one.blocks
        ]
        number = anna.counted.submission.id
        with zipfile.ZipFile(cls.archive(WEEK, number)) as archive:
            assert archive.read("collectives.py") == b"anna 2"


def test_a_groups_copies_are_one_submission(old, tmp_path):
    for student in ("anna", "obriensean_4502"):
        old.collected(student, 1, group="Team 1", content="ours")
    old.typed(("anna", "task-13-7", 15.0, ""))
    taken_over(old, tmp_path)
    with open_class(tmp_path / "new", WEEKS) as cls:
        (one,) = attempts(cls, "week13")
        assert {resolve(cls, key).id for key in ("4501", "4502")} == set(one.members) and one.group == "Team 1"
        totals = {standing.person.name: standing.total for standing in standings(cls, WEEK)}
        assert totals == {"Doe, Jane": None, "Müller, Anna": 25, "O'Brien, Sean": 25}


def test_who_is_unknown_is_kept_and_blocks(old, tmp_path):
    old.collected("stranger")
    said = taken_over(old, tmp_path)
    assert any("stranger" in sentence for sentence in said)
    with open_class(tmp_path / "new", WEEKS) as cls:
        assert [one.kind for one in problems(cls, WEEK) if one.blocks] == [UNKNOWN]


def test_names_that_are_unknown_and_folders_that_are_none_are_refused_and_leave_nothing(old, tmp_path):
    (old.root / "submitted").mkdir()
    text = (old.root / "course.toml").read_text()
    (old.root / "course.toml").write_text(text.replace('["jane"]', '["nobody"]'))
    with pytest.raises(LabError, match="speaks of nobody"):
        taken_over(old, tmp_path)
    assert not (tmp_path / "new" / "class.db").exists()
    (old.root / "course.toml").write_text(text.replace('[roster]\nfile = "roster.csv"', ""))
    with pytest.raises(LabError, match="--roster FILE"):
        taken_over(old, tmp_path)
    (old.root / "course.toml").write_text(text)
    taken_over(old, tmp_path)
    with pytest.raises(LabError, match="already"):
        taken_over(old, tmp_path)
    with pytest.raises(LabError, match="holds neither"):
        list(migrate(tmp_path, tmp_path / "other", None, "UTC"))
