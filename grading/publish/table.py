"""Tables as CSV (RFC 4180, UTF-8): the class in one week, one line a student, and the term, one column a week.

Names may hold commas, quotes, line breaks and any script: the csv module quotes them. A spreadsheet takes a cell that
begins with = + - @ (or a control character) for a formula, quoted or not, and drops signs without width before it; so
such a cell gets an apostrophe in front (OWASP, "CSV Injection"). A name that had one of its own gets another, so that
taking one away gives the name back.
"""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grading.publish import page
from grading.register.standing import MISSING, Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week

# The wide ones are the signs of East Asian keyboards, which a spreadsheet may take for the plain ones.
_SIGNS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")


def dumps(rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    """CSV: text quoted and no formula, numbers plain, nothing as an empty cell; lines end in CR LF."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, delimiter=delimiter)
    for row in rows:
        writer.writerow(["" if cell is None else harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return out.getvalue()


def harmless(cell: str) -> str:
    """The cell as text that no spreadsheet calculates."""
    bare = cell.lstrip("'")
    for sign in bare:
        if sign in _SIGNS or sign in "\t\r\n\0":
            return cell if cell == "-" else f"'{cell}"  # Moodle's word for nothing
        if not (sign.isspace() or unicodedata.category(sign) in ("Cf", "Cc")):
            break
    return cell


def worth(one: Standing, zeros: bool = False) -> float | None:
    """What is published as somebody's total; None: nothing yet. zeros: 0 for who handed nothing in, and whose deadline
    has passed."""
    return 0 if zeros and one.state == MISSING else one.total


def week_table(
    week: Week, standings: Sequence[Standing], called: Mapping[int, str], *, zeros: bool = False
) -> list[list[Any]]:
    """The class in one week: header and rows. A number is a number; what is not decided is an empty cell, and `state`
    says why.

    called   person -> the key by which the class calls them"""
    tasks = [task for task in week.tasks if task.kind != "stretch"]
    columns = [f"{task.id} {task.title} ({number(task.points)})" for task in tasks]
    head = ["student", "name", "submission", "attempts", "received", *columns, "automatic", "decided by a person"]
    head += ["by hand", "late factor", "total", "possible", "state", "rule", "isolation", "files"]
    rows = []
    for s in standings:
        row: dict[str, Any] = {
            "student": called[s.person.id],
            "name": s.person.name,
            "attempts": 0,
            "total": worth(s, zeros),
            "possible": None if s.excused else number(week.points("auto", "written")),
            "state": s.state,
            "rule": s.rule,
        }
        if s.counted is not None:
            received = s.counted.received.isoformat() if s.counted.received else None
            row |= {"submission": s.counted.submission.id, "attempts": len(s.counted.attempts), "received": received}
        if s.mark is not None:
            theirs = {task["id"]: task for task in s.tasks}
            row |= {name: s.points(theirs[task.id]) for task, name in zip(tasks, columns) if task.id in theirs}
            row |= {
                "automatic": number(s.automatic) if s.settled else None,
                "decided by a person": "; ".join(s.in_place) or None,
                "by hand": None if s.ungraded else number(s.given),
                "late factor": number(s.factor),
                "isolation": s.mark.isolation,
                "files": s.mark.content,
            }
        rows.append([row.get(column) for column in head])
    return [head, *rows]


def term_table(
    parts: Sequence[tuple[Week, Sequence[Standing], bool]],
    called: Mapping[int, str],
    keys: Mapping[int, Mapping[str, str]],
) -> list[list[Any]]:
    """The term: header and rows, a line a person, a column a week with its total. Weeks have no weights here.

    parts  (week, its standings, whether who handed nothing in has 0)
    keys   person -> what an id is called -> the id: an office wants them

    `total` is empty as long as a week is open; `open` says which, and why. What is left empty is never a 0. A week from
    which a person is excused counts neither in `total` nor in `possible`; the column `excused` names it."""
    ids = list(dict.fromkeys(name for theirs in keys.values() for name in theirs))
    weeks = [f"{week.name} ({number(week.points('auto', 'written'))})" for week, _, _ in parts]
    rows = []
    for place, first in enumerate(parts[0][1] if parts else ()):
        own = [(week, standings[place], worth(standings[place], zeros)) for week, standings, zeros in parts]
        counted = [(week, one, total) for week, one, total in own if not one.excused]
        totals = [total for _, _, total in own]
        open_ = [f"{week.name} {one.state}" for week, one, total in counted if total is None]
        rows.append(
            [
                called[first.person.id],
                first.person.name,
                *(keys.get(first.person.id, {}).get(name) for name in ids),
                *totals,
                None if open_ or not counted else number(sum(total or 0 for total in totals)),
                number(sum(week.points("auto", "written") for week, _, _ in counted)),
                "; ".join(week.name for week, one, _ in own if one.excused),
                "; ".join(open_),
            ]
        )
    return [["student", "name", *ids, *weeks, "total", "possible", "excused", "open"], *rows]


def write(rows: Sequence[Sequence[Any]], to: Path) -> Path:
    """Write a table. With a byte order mark: Excel reads accents wrongly without."""
    return page.write(to, dumps(rows), bom=True)
