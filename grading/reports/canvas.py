"""What Canvas' gradebook imports: the columns of its own export, one assignment, one line a student.

The file begins with the columns Student, ID, SIS User ID, SIS Login ID, Section, in this order, then a column for each
assignment, called "Title (number)" or by its title; the second line holds "Points Possible" (Canvas' instructor guide,
"How do I import grades in the Gradebook?", and lib/gradebook_importer.rb of instructure/canvas-lms, read 2026-11). So:

  - any other column would become a new assignment: there is none, and where the roster has the week's column, its title
    is taken letter by letter, with the number;
  - an empty cell takes a grade away that is there: who has no total yet gets no line at all, and Canvas leaves them be;
  - "EX" in place of a grade excuses a student;
  - a column to which Canvas gives other points than the week has is refused: 72 of 80 would be 72 of 100 there;
  - Canvas finds a student by ID, its own number, then by the SIS columns, then by name. Only Canvas knows the first:
    `roster`, its exported gradebook, gives it. Without, our id is put down as the SIS login;
  - decimals have a point, and no thousands are set apart: Canvas takes the last "." or "," for the decimal sign.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.intake.policy import DEFAULTS, Rules
from grading.intake.roster import CANVAS, UNDER_TWO_NAMES, Absent, Roster, find, twice
from grading.reports import page
from grading.reports.export import dumps, harmless
from grading.reports.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

STUDENT, ID, USER, LOGIN, SECTION = "Student", "ID", "SIS User ID", "SIS Login ID", "Section"
EX = "EX"  # excused: lib/gradebook_importer.rb takes it in any case
COLUMNS = (STUDENT, ID, USER, LOGIN, SECTION)


@dataclass
class Written:
    """What an export holds: how many lines, and sentences on who is left out and why, and what to look at.

    column   the platform's own column that is filled in; "" if there is none of this title yet, or nothing tells"""

    path: Path
    lines: int
    told: list[str] = field(default_factory=list)
    column: str = ""


def export(
    week: Week,
    standings: Sequence[Standing],
    to: Path,
    *,
    assignment: str | None = None,
    roster: Roster | None = None,
    rules: Rules = DEFAULTS,
    zeros: Sequence[Absent] = (),
    excused: Sequence[str] = (),
    automatic_only: bool = False,
    told: Sequence[str] = (),
) -> Written:
    """Write the file for Canvas.

    assignment      the column's title, as Canvas calls it. Default: the week's column in the roster, "Week 13 (113)";
                    where there is none, "week13: All-reduce", a new assignment
    roster          Canvas' exported gradebook: students are found in it by ID, SIS id, login or name
    rules           [ids] tells what Canvas calls a student
    zeros           who handed nothing in, and gets a zero
    excused         who is excused and has no mark
    automatic_only  the automatic points alone, after the late rule, before anything is graded by hand
    told            what else is to be said

    LabError if several columns of the roster may be meant, or the one that is has other points in Canvas
    """
    if roster is not None and roster.system != CANVAS:
        raise LabError(
            f"{roster.path} is not Canvas' gradebook: its first line must name the columns {STUDENT} and {ID}; "
            "export it in Canvas by Grades, Export, Export Entire Gradebook"
        )
    column = _column(week, assignment, roster) if roster is not None else ""
    points = number(week.points("auto") if automatic_only else week.points("auto", "written"))
    there = roster.possible.get(column, "").replace(",", ".").strip() if roster is not None else ""
    if roster is not None and there.replace(".", "", 1).isdigit() and float(there) != points:
        raise LabError(
            f"{roster.path}: {column!r} has {there} points possible in Canvas, and here are {points} of {week.name}: "
            "set it there, and export the gradebook again, or name another column with --assignment"
        )
    rows: list[list[Any]] = []
    left: dict[str, list[str]] = {}
    taken: set[int] = set()
    double = {student for those in twice([s.student for s in standings], roster, rules) for student in those}
    grades: list[tuple[str, float | str | None, str]] = []
    for s in standings:
        own = (number(s.factor * s.automatic) if s.settled else None) if automatic_only else s.total
        grades.append((s.student, EX if s.excused else own, s.state))
    for student, grade, state in (*grades, *((student, EX, "") for student in excused)):
        who, why = (_line(student), "") if roster is None else _found(student, roster, rules)
        if student in double:
            why = UNDER_TWO_NAMES
        elif grade is None:
            why = state
        elif who is not None and who[ID] == "" and any(harmless(cell) != cell for cell in who.values()):
            why = "the id begins like a spreadsheet's formula, so it cannot stand in the file as it is: give --roster"
        if why or who is None or grade is None:
            left.setdefault(why, []).append(student)
        else:
            taken.add(id(who))
            rows.append([*_cells(who), grade])
    for one in zeros:
        who = _found(one.student, roster, rules)[0] if roster is not None else None
        if who is not None and id(who) not in taken:
            taken.add(id(who))
            rows.append([*_cells(who), 0])
    title = column or assignment or f"{week.name}: {week.title}"
    plain = _bare(title)
    other = next((o.name for o in find_weeks() if o.name != week.name and re.search(_spoken(o), plain)), "")
    text = dumps([[*COLUMNS, title], ["    Points Possible", None, None, None, None, points], *rows])
    return Written(
        page.write(to, text),
        len(rows),
        [
            *(f"{page.count(len(who), 'student')} left out ({why}): {names(who)}" for why, who in left.items()),
            *([f"{title!r} speaks of {other}, and here are points of {week.name}: check it first"] if other else []),
            *told,
        ],
        column,
    )


def _column(week: Week, assignment: str | None, roster: Roster) -> str:
    """The roster's column for this week, or for the title that was asked for; "" if there is none. A title that only
    speaks of the week may be a quiz's: it is not taken for the week's own. LabError then, and for several."""
    titles = {name: _bare(name) for name in roster.columns if name not in COLUMNS}
    if assignment is not None:
        return next((name for name, plain in titles.items() if name == assignment or plain == _plain(assignment)), "")
    own = {_plain(week.name), _plain(week.title), _plain(f"{week.name}: {week.title}")}
    exact = [name for name, plain in titles.items() if plain in own]
    near = exact or [name for name, plain in titles.items() if re.search(_spoken(week), plain)]
    if len(exact) == 1 or not near:
        return "".join(exact)
    raise LabError(
        f"{roster.path} has {' and '.join(map(repr, near[:4]))}, which may be {week.name} or not: name the column with "
        f"--assignment, or a new one, --assignment '{week.name}: {week.title}'"
    )


def _bare(column: str) -> str:
    """A column's plain title, without the number that Canvas adds."""
    return _plain(re.sub(r"\s*\(\d+\)$", "", column))


def _spoken(week: Week) -> str:
    """The pattern of a week's name in a plain title."""
    return rf"{_plain(week.name)}(?!\d)"


def _plain(title: str) -> str:
    """ "Week 13: All-reduce" -> "week13allreduce"."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", "".join(c for c in title.casefold() if c.isalnum()))


def names(students: list[str]) -> str:
    return "; ".join(page.one_line(name, 60) for name in students[:20]) + (" ..." if len(students) > 20 else "")


def _found(student: str, roster: Roster, rules: Rules) -> tuple[dict[str, str] | None, str]:
    """Canvas' own cells of a student, or why there are none."""
    line, why = find(student, roster, rules)
    return (None, why) if line is None else (line.cells, "")


def _line(student: str) -> dict[str, str]:
    return {STUDENT: student, ID: "", USER: "", LOGIN: student, SECTION: ""}


def _cells(who: dict[str, str]) -> list[Any]:
    """The five cells. Where Canvas' own number is there, it decides, and a cell that looks like a formula can go."""
    cells = [who[STUDENT], int(who[ID]) if who[ID].strip().isascii() and who[ID].strip().isdigit() else who[ID]]
    others = (who.get(USER, ""), who.get(LOGIN, ""), who.get(SECTION, ""))
    return cells + [cell if harmless(cell) == cell else "" for cell in others]
