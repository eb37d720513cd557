"""A small course with automatic, written and stretch tasks, and marks and submissions of it."""

import contextlib
import json
import sqlite3
from pathlib import Path

from grading.mark import Mark
from grading.marking.cells import code_cell as code
from grading.marking.cells import markdown_cell as markdown
from labkit.checks.verdict import FAULT, PASSED, WRONG
from tests.grading import minicourse

TASKS = """title = "Demo"
notebook = "lab.ipynb"
tests = ["test_week.py"]
task = [
    {id = "91.1", title = "twice", kind = "auto", points = 4, functions = ["parts.double"]},
    {id = "91.2", title = "why", kind = "written", points = 6},
    {id = "91.3", title = "thrice", kind = "auto", points = 2, functions = ["parts.triple"]},
    {id = "91.4", title = "for the curious", kind = "stretch", points = 0, functions = ["parts.more"]},
]
"""
RUBRIC = "## 3. Task 91.2, in writing (6 points)\n\n| | points |\n|---|---|\n| the reason | 4 |\n| an example | 2 |"
ANSWER = "<!-- BEGIN SOLUTION 91.2 why -->\nBecause of the secret answer.\n<!-- END SOLUTION -->"
ON_RECORD = 'guess = on_record("prediction 1", seconds={})'
AUTO = {"91.1": 4, "91.3": 2}


def asking(kind, id: str, source: str) -> dict:
    return kind(id, source, labkit={"task": f"91.{id[8]}", "grade_id": id})


def notebook(answer: str = ANSWER, guess: str = "None") -> dict:
    """The week's notebook, with this answer to 91.2 and this prediction."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [
            markdown("w91-01", "# Week 91\n\n## 1. Twice\n\n**Task 91.1**"),
            asking(code, "task-91-1", 'check("91.1")'),
            asking(code, "task-91-2-prediction-1", ON_RECORD.format(guess)),
            asking(code, "task-91-3", 'check("91.3")'),
            markdown("w91-05", RUBRIC),
            asking(markdown, "task-91-2-why", answer),
            markdown("w91-07", "The end."),
        ],
    }


def make(root: Path) -> Path:
    """The small course: week91_demo as above, and week92_next of tests.grading.minicourse."""
    minicourse.make(root)
    (root / "week91_demo" / "tasks.toml").write_text(TASKS)
    (root / "week91_demo" / "lab.ipynb").write_text(json.dumps(notebook()))
    return root


def case(verdict: str, points: float, possible: float, text: str = "", behaviour: str = "doubles: 3") -> dict:
    one = {"test": "t", "behaviour": behaviour, "verdict": verdict, "points": points, "possible": possible}
    return {**one, "seconds": 0.1, "text": text, "cause": [], "printed": ""}


def mark(points: dict[str, float] | None = None, *, faults: tuple[str, ...] = (), **more) -> Mark:
    """A mark of week91 with these points for each task (default: all), and a grader's fault in the tasks `faults`."""
    tasks = []
    for id, possible in AUTO.items():
        earned = (points or {}).get(id, possible if points is None else 0)
        cases = [case(PASSED, earned, earned)] if earned else []
        if earned < possible:
            cases.append(case(WRONG, 0, possible - earned, f"{id} gives 4, expected 6", "doubles: 3 of 3"))
        if id in faults:
            earned, cases = 0, [case(FAULT, 0, possible, "the judge stopped")]
        tasks.append(task(id, "auto", earned, possible, cases))
    tasks.insert(1, task("91.2", "written", None, 6, []))
    fields = {"key": "k", "content": "c", "complete": not faults, "finished": "2026-10-06T00:00:00+00:00"}
    fields |= {"points": sum(one["points"] or 0 for one in tasks), "possible": 6, "tasks": tasks, **more}
    return Mark(0, "week91", **fields)


def task(id: str, kind: str, points: float | None, possible: float, cases: list) -> dict:
    cell = "task-" + id.replace(".", "-")
    return {"id": id, "title": id, "kind": kind, "cell": cell, "points": points, "possible": possible, "cases": cases}


def handed(answer: str = "Because.", guess: str = "3", parts: str = "def double(x):\n    return x + x\n") -> dict:
    """The files of a submission."""
    return {
        "lab.ipynb": json.dumps(notebook(answer, guess)).encode(),
        "parts.py": parts.encode(),
        "predictions.jsonl": b'{"time": "2026-10-01T10:00:00+02:00", "prediction": "prediction 1", "seconds": 3}\n',
    }


def rows(folder: Path) -> list[tuple]:
    """What a person would compare of a gradebook: every score and comment, by names."""
    with contextlib.closing(sqlite3.connect(folder / "gradebook" / "gradebook.db")) as base:
        return base.execute(
            "select a.name, s.student_id, c.name, g.auto_score, g.manual_score, g.extra_credit, g.needs_manual_grade, "
            "(select m.manual_comment from comment m where m.notebook_id = n.id and m.cell_id = c.id) "
            "from grade g join submitted_notebook n on g.notebook_id = n.id "
            "join submitted_assignment s on n.assignment_id = s.id join assignment a on s.assignment_id = a.id "
            "join base_cell c on g.cell_id = c.id order by 1, 2, 3"
        ).fetchall()


def scores(folder: Path, submission: int, week: str = "week91") -> dict[str, tuple]:
    """task cell -> (automatic points, points by hand, whether a person is asked)."""
    return {row[2]: (row[3], row[4], bool(row[6])) for row in rows(folder) if row[:2] == (week, str(submission))}


def type_in(course, submission: int, cell: str, points: float | str | None = "", comment: str | None = None) -> None:
    """What formgrader's two requests do when somebody types points (None: takes them away) or a comment."""
    with course.gradebook() as book:
        if points != "":
            grade = book.find_grade(cell, "lab", "week91", str(submission))
            grade.manual_score = points
            grade.needs_manual_grade = points is None and grade.auto_score is None
        if comment is not None:
            book.find_comment(cell, "lab", "week91", str(submission)).manual_comment = comment
        book.db.commit()


def shown(folder: Path, submission: int) -> Path:
    """The notebook that formgrader shows."""
    return folder / "gradebook" / "autograded" / str(submission) / "week91" / "lab.ipynb"
