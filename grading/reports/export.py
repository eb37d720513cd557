"""The class as CSV (RFC 4180, UTF-8): one line a student, one column a task. canvas.py writes what Canvas imports.

Names may hold commas, quotes, line breaks and any script: the csv module quotes them. A spreadsheet takes a cell that
begins with = + - @ (or a control character) for a formula, quoted or not, so such a cell gets an apostrophe in front
(OWASP, "CSV Injection"); `read_table` takes it away again, and a name that had one of its own survives.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grading.reports import page
from grading.reports.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError

# The wide ones are the signs of East Asian keyboards, which a spreadsheet may take for the plain ones.
_FORMULA = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n\0]")


def export(week: Week, standings: Sequence[Standing], to: Path) -> Path:
    """Write the class's table. With a byte order mark: Excel reads accents wrongly without."""
    return page.write(to, dumps(table(week, standings)), bom=True)


def table(week: Week, standings: Sequence[Standing]) -> list[list[Any]]:
    """Header and rows. A number is a number; what is not decided is an empty cell, and `state` says why."""
    tasks = [task for task in week.tasks if task.kind != "stretch"]
    head = [
        "student",
        "attempt",
        "attempts",
        "received",
        *(f"{task.id} {task.title} ({number(task.points)})" for task in tasks),
        "automatic",
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
                given,
                number(s.factor),
                s.total,
                number(week.points("auto", "written")),
                s.state,
                s.rule,
                s.mark.isolation,
                s.mark.submission,
            ]
        )
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


def original(cell: str) -> str:
    """The inverse of `harmless`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def read_table(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV that `export` wrote, by column, names as they were. LabError if it is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise LabError(f"{path} cannot be read as CSV in UTF-8 ({type(error).__name__}: {error})") from None
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise LabError(f"{path} is not a table: its lines differ in the number of cells")
    return [dict(zip(rows[0], map(original, row))) for row in rows[1:]]
