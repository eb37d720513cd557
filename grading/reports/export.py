"""The class as CSV (RFC 4180, UTF-8): one line a student, one column a task. canvas.py writes what Canvas imports.

Names may hold commas, quotes, line breaks and any script: the csv module quotes them. A spreadsheet takes a cell that
begins with = + - @ (or a control character) for a formula, quoted or not, so such a cell gets an apostrophe in front
(OWASP, "CSV Injection"); a name that had one of its own gets another, so that taking one away gives the name back.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grading.intake.policy import EXCUSED
from grading.intake.roster import Absent
from grading.reports import page
from grading.reports.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week

# The wide ones are the signs of East Asian keyboards, which a spreadsheet may take for the plain ones.
_FORMULA = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n\0]")


def export(
    week: Week,
    standings: Sequence[Standing],
    to: Path,
    *,
    absent: Sequence[Absent] = (),
    excused: Sequence[str] = (),
    zeros: bool = False,
) -> Path:
    """Write the class's table. With a byte order mark: Excel reads accents wrongly without."""
    return page.write(to, dumps(table(week, standings, absent=absent, excused=excused, zeros=zeros)), bom=True)


def table(
    week: Week,
    standings: Sequence[Standing],
    *,
    absent: Sequence[Absent] = (),
    excused: Sequence[str] = (),
    zeros: bool = False,
) -> list[list[Any]]:
    """Header and rows. A number is a number; what is not decided is an empty cell, and `state` says why.

    absent   who handed nothing in; with `zeros` those whose deadline has passed have a total of 0
    excused  who is excused and has no mark: neither a total, nor points that are possible"""
    tasks = [task for task in week.tasks if task.kind != "stretch"]
    head = [
        "student",
        "attempt",
        "attempts",
        "received",
        *(f"{task.id} {task.title} ({number(task.points)})" for task in tasks),
        "automatic",
        "decided by a person",
        "by hand",
        "late factor",
        "total",
        "possible",
        "state",
        "rule",
        "isolation",
        "submission",
    ]
    rows = []
    for s in standings:
        theirs = {task["id"]: task for task in s.mark.tasks}
        given = None if s.ungraded else number(s.given)
        rows.append(
            [
                s.student,
                s.mark.attempt,
                len(s.attempts),
                s.mark.received,
                *(s.points(theirs[task.id]) if task.id in theirs else None for task in tasks),
                number(s.automatic) if s.settled else None,
                "; ".join(s.in_place) or None,
                given,
                number(s.factor),
                None if s.excused else s.total,
                None if s.excused else number(week.points("auto", "written")),
                s.state,
                s.rule,
                s.mark.isolation,
                s.mark.submission,
            ]
        )
    for one in absent:
        row: dict[str, Any] = {
            "student": one.student,
            "attempts": 0,
            "possible": number(week.points("auto", "written")),
        }
        row["state"] = "missing" if one.over else "not handed in yet"
        if zeros and one.over:
            row["total"] = 0
        rows.append([row.get(column) for column in head])
    for student in excused:
        row = {"student": student, "state": EXCUSED}
        rows.append([row.get(column) for column in head])
    return [head, *rows]


def dumps(rows: Iterable[Sequence[Any]]) -> str:
    """CSV: text quoted and no formula, numbers plain, nothing as an empty cell; lines end in CR LF."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC)
    for row in rows:
        writer.writerow(["" if cell is None else harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return out.getvalue()


def harmless(cell: str) -> str:
    """The cell as text that no spreadsheet calculates."""
    return f"'{cell}" if _FORMULA.match(cell) else cell
