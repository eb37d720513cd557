"""The term as one CSV: a line a student, a column a week with its total; for the office that keeps the marks.

Only totals are added up. Weeks have no weights here: who weighs them does so in a spreadsheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.intake.excused import Excused
from grading.intake.policy import EXCUSED, Rules
from grading.intake.roster import Absent, Line, Roster, find, id_of
from grading.reports import page
from grading.reports.export import dumps
from grading.reports.standing import Standing
from grading.reports.status import MISSING, NOT_GRADED, NOT_YET
from labkit.checks.outcome import number
from labkit.checks.tasks import Week

# A roster's columns that name people to an office, and what they are called in the table: "student" is our id there.
NAMES = {"Student": "Name", "Full name": "Full name"}
NUMBERS = ("ID number", "Identifier", "SIS User ID", "SIS Login ID", "ID", "Email address", "Section")


@dataclass
class Part:
    """One week of the term: where its students stand, who of the roster handed nothing in, and whose hand-in has no
    mark. `rules`: the course's, which know who is who in this week."""

    week: Week
    standings: Sequence[Standing]
    absent: Sequence[Absent] = ()
    ungraded: Sequence[str] = ()
    rules: Rules | None = None

    @property
    def possible(self) -> float:
        return number(self.week.points("auto", "written"))


@dataclass
class Term:
    """The table: header and rows, how many students have a week without a total, and who is excused from which weeks,
    "anna (week13)"."""

    rows: list[list[Any]] = field(default_factory=list)
    open: int = 0
    excused: list[str] = field(default_factory=list)


def table(parts: Sequence[Part], who: Roster | None, rules: Rules, *, zeros: bool = False) -> Term:
    """A line for each student of the roster, and for each one who handed in and is not in it.

    who    None: there is no roster. Else its columns that name people to an office (`NAMES`, `NUMBERS`) come along
    zeros  0 where nothing was handed in and the deadline has passed; else that is an open week

    `total` is empty as long as a week is open; `open` says which, and why. What is left empty is never a 0. A week from
    which a student is excused counts neither in `total` nor in `possible`; the column `excused`, which is there if
    anybody is, names it."""
    extra = [name for name in (*NAMES, *NUMBERS) if who is not None and name in who.columns]
    lines: dict[str | int, Line] = dict(enumerate(who.lines)) if who is not None else {}
    places = {id(line): place for place, line in lines.items()}
    called = {place: id_of(line, who, rules) for place, line in lines.items()} if who is not None else {}
    named = {student: [place for place in called if called[place] == student] for student in called.values()}
    cells: dict[str | int, dict[str, tuple[float | None, str]]] = {place: {} for place in lines}
    for part in parts:
        have = [
            *((one.student, one.total, one.state) for one in part.standings),
            *((student, None, NOT_GRADED) for student in part.ungraded),
        ]
        for student, points, state in have:
            line = find(student, who, part.rules or rules)[0] if who is not None else None
            place = rules.id_of(student) if line is None else places[id(line)]
            weeks = cells.setdefault(place, {})
            twice = part.week.name in weeks
            weeks[part.week.name] = (None, "is there under two names") if twice else (points, state)
            called[place] = rules.id_of(student)
        for gone in part.absent:
            zero = (0, "") if zeros and gone.over else (None, MISSING if gone.over else NOT_YET)
            for place in named[gone.student]:  # several may be called so: one who handed in has a cell already
                cells[place].setdefault(part.week.name, zero)
    names = [f"{part.week.name} ({part.possible})" for part in parts]
    made = Term([["student", *(NAMES.get(name, name) for name in extra), *names, "total", "possible", EXCUSED, "open"]])
    freed = {part.week.name: Excused(part.week.name, part.rules or rules, who) for part in parts}
    for place in sorted(cells, key=lambda place: called[place]):
        weeks = cells[place]
        out = [name for name, them in freed.items() if called[place] in them]
        weeks |= dict.fromkeys(out, (None, EXCUSED))
        theirs = [weeks.get(part.week.name, (None, MISSING)) for part in parts]
        counted = [part for part in parts if part.week.name not in out]
        why = [
            f"{part.week.name} {state}"
            for part, (points, state) in zip(parts, theirs)
            if points is None and part in counted
        ]
        made.open += bool(why)
        own = lines[place].cells if place in lines else {}
        made.rows.append(
            [
                called[place],
                *(own.get(name, "") for name in extra),
                *(None if points is None else number(points) for points, _ in theirs),
                None if why or not counted else number(sum(points or 0 for points, _ in theirs)),
                number(sum(part.possible for part in counted)),
                "; ".join(out),
                "; ".join(why),
            ]
        )
        made.excused += [f"{called[place]} ({', '.join(out)})"] if out else []
    if not made.excused:
        made.rows = [[*row[:-2], row[-1]] for row in made.rows]
    return made


def write(made: Term, to: Path) -> Path:
    """Write the table. With a byte order mark: Excel reads accents wrongly without."""
    return page.write(to, dumps(made.rows), bom=True)
