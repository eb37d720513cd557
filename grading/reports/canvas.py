"""What Canvas' gradebook imports: the columns of its own export, one assignment, one line a student.

The file begins with the columns Student, ID, SIS User ID, SIS Login ID, Section, in this order, then a column for each
assignment, called "Title (number)" or by its title; the second line holds "Points Possible" (Canvas' instructor guide,
"How do I import grades in the Gradebook?", and lib/gradebook_importer.rb of instructure/canvas-lms, read 2026-11). So:

  - any other column would become a new assignment: there is none;
  - an empty cell takes a grade away that is there: who has no total yet gets no line at all, and Canvas leaves them be;
  - Canvas finds a student by ID, its own number, then by the SIS columns, then by name. Only Canvas knows the first:
    `roster`, its exported gradebook, gives it. Without, our id is put down as the SIS login;
  - decimals have a point, and no thousands are set apart: Canvas takes the last "." or "," for the decimal sign.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.reports import page
from grading.reports.export import dumps, harmless
from grading.reports.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError

STUDENT, ID, USER, LOGIN, SECTION = "Student", "ID", "SIS User ID", "SIS Login ID", "Section"
COLUMNS = (STUDENT, ID, USER, LOGIN, SECTION)


@dataclass
class Written:
    """What an export holds: how many lines, and sentences on who is left out and why, and what to look at."""

    path: Path
    lines: int
    told: list[str] = field(default_factory=list)


def export(
    week: Week,
    standings: Sequence[Standing],
    to: Path,
    *,
    assignment: str | None = None,
    roster: Path | None = None,
    automatic_only: bool = False,
) -> Written:
    """Write the file for Canvas.

    assignment      the column's title, as Canvas calls it; default "week13: All-reduce", a new assignment at first
    roster          Canvas' exported gradebook: students are found in it by ID, SIS id, login or name
    automatic_only  the automatic points alone, after the late rule, before anything is graded by hand
    """
    known = read_roster(roster) if roster else None
    rows: list[list[Any]] = []
    left: dict[str, list[str]] = {}
    taken: dict[int, str] = {}
    for s in standings:
        grade = (round(s.factor * s.automatic, 2) if s.settled else None) if automatic_only else s.total
        who, why = (_line(s.student), "") if known is None else _find(s.student, known)
        if grade is None:
            why = s.state
        elif who is not None and known is not None and taken.setdefault(id(who), s.student) != s.student:
            why = "somebody else here is the same student of the roster"
        elif who is not None and who[ID] == "" and any(harmless(cell) != cell for cell in who.values()):
            why = "the id begins like a spreadsheet's formula, so it cannot stand in the file as it is: give --roster"
        if why or who is None or grade is None:
            left.setdefault(why, []).append(s.student)
        else:
            rows.append([*_cells(who), number(grade)])
    title = assignment or f"{week.name}: {week.title}"
    points = week.points("auto") if automatic_only else week.points("auto", "written")
    text = dumps([[*COLUMNS, title], ["    Points Possible", None, None, None, None, number(points)], *rows])
    again = [] if automatic_only else [s.student for s in standings if s.again]
    return Written(
        page.write(to, text),
        len(rows),
        [
            *(f"{page.count(len(who), 'student')} left out ({why}): {_names(who)}" for why, who in left.items()),
            *([f"graded by hand before the answer changed, look again: {_names(again)}"] if again else []),
        ],
    )


def _names(students: list[str]) -> str:
    return "; ".join(page.one_line(name, 60) for name in students[:20]) + (" ..." if len(students) > 20 else "")


def read_roster(path: Path) -> list[dict[str, str]]:
    """Students of a gradebook that Canvas exported: the five columns of each, "" where it has none. LabError if it is
    no such file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        head = text.partition("\n")[0]
        sign = ";" if head.count(";") > head.count(",") else ","
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise LabError(
            f"{path} cannot be read as CSV in UTF-8 ({type(error).__name__}: {error}): export the gradebook "
            "from Canvas again"
        ) from None
    if not rows or STUDENT not in rows[0] or ID not in rows[0]:
        raise LabError(
            f"{path} is not Canvas' gradebook: its first line must name the columns {STUDENT} and {ID}; "
            "export it in Canvas by Grades, Export, Export Entire Gradebook"
        )
    lines = [dict(zip(rows[0], row)) for row in rows[1:]]
    return [
        {name: line.get(name, "") for name in COLUMNS}
        for line in lines
        if line.get(ID, "").strip() and "Points Possible" not in line.get(STUDENT, "")
    ]


def _find(student: str, roster: list[dict[str, str]]) -> tuple[dict[str, str] | None, str]:
    """The line of the roster that is this student, or why none is. A bulk download of Canvas names people NAME_ID."""
    last = re.fullmatch(r".*_(\d+)", student, re.S)
    for names, wanted in (((ID, USER, LOGIN), student), ((ID,), last[1] if last else None), ((STUDENT,), student)):
        found = [line for line in roster if wanted and any(line[name].strip() == wanted.strip() for name in names)]
        if len(found) == 1:
            return found[0], ""
        if found:
            return None, "several of the roster are called so"
    return None, "not in the roster"


def _line(student: str) -> dict[str, str]:
    return {STUDENT: student, ID: "", USER: "", LOGIN: student, SECTION: ""}


def _cells(who: dict[str, str]) -> list[Any]:
    """The five cells. Where Canvas' own number is there, it decides, and a cell that looks like a formula can go."""
    cells = [who[STUDENT], int(who[ID]) if who[ID].strip().isascii() and who[ID].strip().isdigit() else who[ID]]
    return cells + [cell if harmless(cell) == cell else "" for cell in (who[USER], who[LOGIN], who[SECTION])]
