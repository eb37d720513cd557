"""What Canvas and Moodle import: the table that they exported, with one assignment's grades filled in.

Each line of it is one person by exact keys: Canvas' ID and SIS columns; Moodle's participant number in this assignment,
e-mail, username and ID number. A name counts only in a class whose roster has names alone.

Canvas (instructor guide, "How do I import grades in the Gradebook?", and lib/gradebook_importer.rb of
instructure/canvas-lms, read 2026-11) takes its columns of names and ids, then a column for each assignment, called
"Title (number)"; the second line holds "Points Possible". So:

  - any other column would become a new assignment: there is none, and the week's keeps its title letter by letter;
  - an empty cell takes a grade away that is there: who has no total yet gets no line;
  - "EX" in place of a grade excuses a student;
  - a column to which Canvas gives other points than the week has is refused: 72 of 80 would be 72 of 100 there;
  - decimals have a point, and no thousands are set apart: Canvas takes the last "." or "," for the decimal sign.

Moodle finds a student by the column Identifier, takes the number from the column Grade, and passes over lines whose
cell is empty (mod/assign/feedback/offline/importgradeslib.php, Moodle 4.5). All columns of the worksheet stay.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.files import put
from grading.intake.arrival import Key
from grading.intake.names import count, some
from grading.intake.rosters import CANVAS, LIST, MOODLE, Roster, read_roster
from grading.publish import page
from grading.publish.table import dumps, harmless, worth
from grading.register.people import owner, same_assignment
from grading.register.schema import Class
from grading.register.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest

WORKSHEET = "worksheet.csv"  # in submitted/WEEK: Moodle's, or Canvas' gradebook that was named in publishing
IDS = (  # Canvas' columns that are no assignments
    *("Student", "LastName", "FirstName", "Last name", "First name", "ID", "SIS User ID", "SIS Login ID"),
    *("Integration ID", "Root Account", "Section"),
)
# Moodle's columns in English and German, in small letters: its versions differ.
IDENTIFIER, GRADE, MAXIMUM = ("identifier", "id"), ("grade", "bewertung"), ("maximum grade", "bestwertung")
COMMENT = ("feedback comments", "feedback als kommentar")
EX = "EX"  # excused: lib/gradebook_importer.rb takes it in any case


@dataclass
class Sheet:
    """A platform's exported table, and its lines' persons, by place."""

    table: Roster
    people: dict[int, int]


@dataclass
class Filled:
    """What was written. grades: person -> what the platform gets; notes: sentences on who is left out, and why.

    column   the assignment's column; "": the platform gets a new assignment"""

    path: Path
    system: str
    grades: dict[int, float | str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    column: str = ""


def keep_worksheet(cls: Class, week: Week, path: Path) -> None:
    """Keep an assignment's worksheet beside what was submitted: its grades go into it."""
    put(cls.archive(week, 0).with_name(WORKSHEET), path.read_bytes(), 0o600)


def read_sheet(cls: Class, week: Week, path: Path) -> Sheet | None:
    """A platform's table; None for another file. LabError for a line whose keys are two people's, or one's twice."""
    if not path.is_file():
        raise LabError(f"there is no {path}: name the table as the platform exported it")
    try:
        table = read_roster(path)
    except LabError:
        return None
    if table.system == LIST or (
        table.system == MOODLE and not all(_column_of(table.columns, names) for names in (IDENTIFIER, GRADE))
    ):
        return None
    sheet = Sheet(table, {})
    lines: dict[int, int] = {}
    for place, line in enumerate(table.lines):
        number_ = [Key("moodle", line.participant, week.name)] if line.participant else []
        who, why = owner(cls, [*number_, *line.keys, Key("name", line.name)])
        if why.startswith("its keys are of several"):
            hint = ": is it this assignment's worksheet?" if number_ else ""
            raise LabError(f"{path}, line {place + 2}: {why}{hint}")
        if who is not None:
            same_assignment(cls, who, number_, f"{path}, line {place + 2}")
        if who in lines:
            raise LabError(f"{path}, line {place + 2}: the same person as line {lines[who] + 2}")
        if who is not None:
            lines[who], sheet.people[place] = place, who
    return sheet


def _column_of(columns: Iterable[str], names: Sequence[str]) -> str:
    """The column that is called so in any case; "" if none is."""
    return next((column for column in columns if column.casefold() in names), "")


def fill(
    sheet: Sheet,
    week: Week,
    standings: Sequence[Standing],
    to: Path,
    *,
    assignment: str | None = None,
    zeros: bool = False,
) -> Filled:
    """Write the table with the week's totals.

    assignment   Canvas' title of the column. Default: the week's column in the table, "Week 13 (113)"; where there is
                 none, "week13: All-reduce", a new assignment
    zeros        0 for those whose deadline has passed and who submitted nothing

    LabError if several columns may be meant, or the assignment has other points than the week."""
    filled = Filled(to, sheet.table.system)
    here, left = set(sheet.people.values()), dict[str, list[str]]()
    for one in standings:
        grade: float | str | None = EX if one.excused else worth(one, zeros)
        if grade is None:
            left.setdefault(one.state, []).append(one.person.called)
        elif one.person.id not in here:
            left.setdefault(f"not in {sheet.table.path.name}: name a newer one", []).append(one.person.called)
        elif grade == EX and sheet.table.system == MOODLE:
            left.setdefault("excused: a grade that Moodle has already stays", []).append(one.person.called)
        else:
            filled.grades[one.person.id] = grade
    filled.notes = [f"no grade for {count(len(who), 'student')} ({why}): {some(who, 20)}" for why, who in left.items()]
    lines = sheet.table.lines
    nobody = [one.name or one.participant for place, one in enumerate(lines) if place not in sheet.people]
    if nobody:
        filled.notes.append(f"{sheet.table.path.name} has lines of nobody in the class: {some(nobody, 20)}")
    points = number(week.points("auto", "written"))
    text = (
        _canvas(sheet, week, filled, points, assignment)
        if sheet.table.system == CANVAS
        else _moodle(sheet, filled, points)
    )
    page.write(to, text)
    return filled


def _moodle(sheet: Sheet, filled: Filled, points: float) -> str:
    exact = [_column_of(sheet.table.columns, names) for names in (IDENTIFIER, GRADE, COMMENT)]  # what it reads back
    maximum, graded = _column_of(sheet.table.columns, MAXIMUM), exact[1]
    for row in (line.row for line in sheet.table.lines):
        most = row.get(maximum, "").replace(",", ".").strip()
        if most and not re.fullmatch(rf"{re.escape(str(points))}(\.0*)?", most):
            raise LabError(
                f"{sheet.table.path}: the assignment's maximum grade in Moodle is {most}, and the week has {points} points: "
                "set it there, and download the worksheet again"
            )
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=sheet.table.delimiter)
    writer.writerow(sheet.table.columns)
    for place, row in enumerate(line.row for line in sheet.table.lines):
        grade = filled.grades.get(sheet.people.get(place, -1))
        cells = {name: cell if name in exact else harmless(cell) for name, cell in row.items()}
        cells[graded] = "" if grade is None else f"{grade}"
        writer.writerow([cells[column] for column in sheet.table.columns])
    return out.getvalue()


def _canvas(sheet: Sheet, week: Week, filled: Filled, points: float, assignment: str | None) -> str:
    filled.column = _column(week, assignment, sheet)
    there = sheet.table.possible.get(filled.column, "").replace(",", ".").strip()
    if there.replace(".", "", 1).isdigit() and float(there) != points:
        raise LabError(
            f"{sheet.table.path}: {filled.column!r} has {there} points possible in Canvas, and {week.name} has {points}: set "
            "it there, and export the gradebook again, or name another column with --assignment"
        )
    if assignment and not filled.column:
        near = nearest(assignment, _assignments(sheet))
        filled.notes.append(
            f"{sheet.table.path.name} has no column {assignment!r}{near}: Canvas makes a new assignment"
        )
    title = filled.column or assignment or f"{week.name}: {week.title}"
    columns = [name for name in sheet.table.columns if name in IDS]
    rows: list[list[Any]] = [["    Points Possible", *[None] * (len(columns) - 1), points]]
    for place, row in enumerate(line.row for line in sheet.table.lines):
        if (grade := filled.grades.get(sheet.people.get(place, -1))) is not None:
            # Canvas' own number decides, so another cell that looks like a formula can go; a name must be there.
            cells = [row[name] if harmless(row[name]) == row[name] or name == columns[0] else "" for name in columns]
            numbers = [
                int(cell) if name == "ID" and cell.strip().isascii() and cell.strip().isdigit() else cell
                for name, cell in zip(columns, cells)
            ]
            rows.append([*numbers, grade])
    return dumps([[*columns, title], *rows])


def _assignments(sheet: Sheet) -> list[str]:
    """The columns that are assignments: no keys, and no totals, which Canvas only reads out."""
    total = re.compile(r"(?:.* )?(?:Current|Final) (?:Score|Points|Grade)")
    return [name for name in sheet.table.columns if name not in IDS and not total.fullmatch(name)]


def _column(week: Week, assignment: str | None, sheet: Sheet) -> str:
    """The table's column for this week, or of the title that is given; "" if there is none. A title that only speaks of
    the week may be a quiz's: it is not taken for the week's own. LabError then, and for several."""
    titles = {name: _plain(re.sub(r"\s*\(\d+\)$", "", name)) for name in _assignments(sheet)}
    if assignment is not None:
        return next((name for name, plain in titles.items() if name == assignment or plain == _plain(assignment)), "")
    own = {_plain(week.name), _plain(week.title), _plain(f"{week.name}: {week.title}")}
    exact = [name for name, plain in titles.items() if plain in own]
    near = exact or [name for name, plain in titles.items() if re.search(rf"{_plain(week.name)}(?!\d)", plain)]
    if len(exact) == 1 or not near:
        return "".join(exact)
    raise LabError(
        f"{sheet.table.path} has {' and '.join(map(repr, near[:4]))}, which may be {week.name} or not: name the column with "
        f"--assignment, or a new one, --assignment '{week.name}: {week.title}'"
    )


def _plain(title: str) -> str:
    """ "Week 13: All-reduce" -> "week13allreduce"."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", "".join(c for c in title.casefold() if c.isalnum()))
