"""`grade status`: who has handed in, what is graded, what waits for a person, who is late or missing. Read only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading import marks as marking
from grading.intake import roster
from grading.intake.excused import Excused, of_any_week
from grading.intake.names import some
from grading.intake.namesakes import in_week
from grading.intake.pending import Pending, entries_of, pending
from grading.intake.policy import EXCUSED, Rules
from grading.intake.receipts import MARKED
from grading.intake.withdraw import only_withdrawn
from grading.reports import page
from grading.reports.standing import Standing, possible, standings
from grading.reports.together import unequal
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError

CHANGED_SINCE = "not graded as it is now"
NOT_GRADED, MISSING, NOT_YET = "not graded yet", "missing", "not handed in yet"


@dataclass
class Row:
    """One student in one week.

    attempts    how many were handed in; received: of the one that counts, or of the last; None if nothing tells
    late        whether it came after the student's own deadline
    standing    None: not graded yet, or nothing was handed in
    marked      the platform told that it was late and no time: `received` is the least that it can mean
    """

    student: str
    attempts: int
    received: datetime | None
    late: bool
    state: str
    standing: Standing | None = None
    marked: bool = False


@dataclass
class Status:
    """All students of a week by id, and sentences on what does not fit together."""

    week: Week
    rows: list[Row] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def count(self, *states: str) -> int:
        return sum(row.state in states for row in self.rows)

    @property
    def come(self) -> int:
        return sum(row.attempts > 0 for row in self.rows)

    @property
    def late(self) -> int:
        return sum(row.late for row in self.rows)

    @property
    def waiting(self) -> int:
        """For a person: graded in part, or in doubt."""
        return sum(row.standing is not None and row.state not in ("complete", EXCUSED) for row in self.rows)

    @property
    def graded(self) -> int:
        return sum(row.standing is not None for row in self.rows)


def status(
    week: Week, submissions: Path, marks: Path, gradebook: Path, rules: Rules, now: datetime, given: Path | None = None
) -> Status:
    """Where everybody stands. A folder that is not there holds nothing."""
    attempts: dict[str, dict[int, datetime | None]] = {}
    marked: set[tuple[str, int]] = set()
    entries = entries_of(submissions, week)
    for entry in entries:
        attempts.setdefault(entry.student, {})[entry.attempt] = entry.received
        if entry.timed == MARKED or (entry.late and entry.received is None):
            marked.add((entry.student, entry.attempt))
    found: list[Standing] = []
    known = list(marking.all_marks(marks, week.name)) if (marks / week.name).is_dir() else []
    if known:
        found = standings(week, marks, gradebook, rules)
    waits = pending(week, entries, known)
    graded = {one.student: one for one in found}
    result = Status(week)
    for student in sorted({*attempts, *graded}):
        theirs, standing = attempts.get(student, {}), graded.get(student)
        if standing is None:
            last = max(theirs)
            is_marked, is_late = (student, last) in marked, _late(student, theirs[last], week, rules)
            result.rows.append(Row(student, len(theirs), theirs[last], is_late, NOT_GRADED, marked=is_marked))
            continue
        received = _time(standing.mark.received)
        state = standing.state
        if other := waits.other.get(student):
            state = f"attempt {page.join([str(n) for n in other])} {CHANGED_SINCE}"
        if newer := waits.newer.get(student):
            state = f"attempt {page.join([str(n) for n in newer])} {NOT_GRADED}"
        many = max(len(theirs), len(standing.attempts))
        is_marked, is_late = (student, standing.mark.attempt) in marked, _late(student, received, week, rules)
        result.rows.append(Row(student, many, received, is_late, state, standing, is_marked))
    if names := [row.student for row in result.rows if row.marked]:
        marked_late = page.count(len(names), "student is", "students are")
        result.told.append(
            f"{marked_late} marked late by the platform, which tells no time ({some(names)}): collected, they count "
            "as handed in right after the deadline, else as in time"
        )
    result.told += Pending(gone=waits.gone).told(week)
    full = rules.full_points.get(week.name, [])
    if full:
        result.told.append(f"Everybody who handed in has all points of {page.join(full)}: [full_points] in course.toml")
    if decided := [f"{s.student} {task}" for s in found for task in s.in_place if task.partition(":")[0] not in full]:
        result.told.append(f"Points by hand in place of the checks': {'; '.join(decided)}")
    if due := rules.deadlines.get(week.name):  # sources have zones of their own: one column, one zone
        for row in result.rows:
            if row.received and row.received.tzinfo:
                row.received = row.received.astimezone(due.tzinfo)
    result.told += unequal(found)
    within = in_week(rules, entries)
    here = [row.student for row in result.rows]
    who = roster.of_rules(within, given)
    _absent(result, within, now, who, partial(of_any_week, marks, submissions))
    excused = Excused(week.name, within, who)
    _excuse(result, excused)
    result.told += excused.slips(here, marks, submissions)
    result.told += only_withdrawn(submissions, week, here, who, within)
    return result


def _absent(
    result: Status, rules: Rules, now: datetime, who: roster.Roster | None, left: Callable[[], list[str]]
) -> None:
    """Those of the roster from whom nothing is here, and those who are not in it. left: see `roster.unknown_ids`."""
    if who is None:
        result.told.append("No roster is named, so nobody can be missing: [roster] in course.toml, or --roster FILE")
        result.told += roster.extends_nobody([row.student for row in result.rows], result.week, rules)
        return
    result.told += roster.unknown_ids(who, rules, left)
    here = [row.student for row in result.rows]
    result.told += roster.without_effect(here, result.week, who, rules)
    result.told += roster.under_two_names(here, result.week, who, rules)
    for one in roster.absent(result.week.name, here, who, rules, now):
        result.rows.append(Row(one.student, 0, None, False, MISSING if one.over else NOT_YET))
    result.rows.sort(key=lambda row: row.student)
    result.told += roster.outside(here, who, rules)


def _excuse(result: Status, excused: Excused) -> None:
    """Who is excused is so whatever came, or did not."""
    for row in result.rows:
        if row.student in excused:
            row.state = EXCUSED
            if row.standing is not None:
                row.standing.excuse()
    others = excused.elsewhere([row.student for row in result.rows])
    result.rows = sorted(
        [*result.rows, *(Row(student, 0, None, False, EXCUSED) for student in others)], key=lambda row: row.student
    )


def show(result: Status, console: Console) -> None:
    """One table, and one line of counts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    widest = max((len(page.one_line(row.student, 40)) for row in result.rows), default=0)
    names = max(len("student"), min(24 if console.width >= 100 else 12, widest))
    for name in ("student", "attempts", "handed in", "", "automatic", "by hand", "total", "state"):
        numbers = name in ("attempts", "automatic", "by hand", "total")
        # A fixed width: with a least one, rich makes the table wider than the console, and cuts its right end off.
        width = names if name == "student" else 10 if name == "handed in" and console.width < 100 else None
        table.add_column(name, justify="right" if numbers else "left", overflow="fold", width=width)
    for row in result.rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    console.print(table)
    for sentence in result.told:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    console.print(summary(result), style="bold", highlight=False, soft_wrap=True)


def summary(result: Status) -> str:
    """ "week13: 38 have come, 36 graded, 4 wait for a person, 2 late, 3 missing"."""
    gone = result.count(MISSING)
    yet = result.count(NOT_YET)
    return (
        f"{result.week.name}: {result.come} handed in, {result.graded} graded, {result.waiting} wait for a person, "
        f"{result.late} late, {gone} missing"
        + (f", {yet} not handed in yet" if yet else "")
        + (f", {out} excused" if (out := result.count(EXCUSED)) else "")
    )


def _cells(row: Row) -> Sequence[str]:
    s = row.standing
    time = row.received.strftime("%Y-%m-%d %H:%M") if row.received else "unknown" if row.attempts else ""
    time = "marked late" if row.marked else time
    if s is None:
        points = ["", "", ""]
    else:
        written = possible(s.mark.tasks, "written")
        points = [
            f"{number(s.automatic)} / {number(possible(s.mark.tasks, 'auto'))}",
            "" if not written else "–" if s.ungraded else f"{number(s.given)} / {number(written)}",
            "" if s.total is None or s.excused else f"{number(s.total)}",
        ]
    return [
        page.one_line(row.student, 40),
        str(row.attempts or ""),
        time,
        "late" if row.late else "",
        *points,
        f"{row.state}, too late" if row.late and s is not None and s.factor == 0 and not s.excused else row.state,
    ]


def _late(student: str, received: datetime | None, week: Week, rules: Rules) -> bool:
    due = rules.due(student, week.name)
    return bool(due and received and received.tzinfo and received > due)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise LabError(f"a mark holds {text!r}, which is no time: run `grade run` again") from None
