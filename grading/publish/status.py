"""`grade status`: who has submitted, what is graded, what is to be marked, who is late or missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading.publish import page
from grading.register.problems import Problem, problems
from grading.register.schema import Class
from grading.register.standing import MISSING, NOT_YET, Standing, possible, standings
from labkit.checks.outcome import number
from labkit.checks.tasks import Week


@dataclass
class Status:
    """A week: where everybody stands, and what is to be done."""

    week: Week
    standings: list[Standing]
    problems: list[Problem]

    @property
    def counts(self) -> dict[str, int]:
        """How many students are what."""
        each = [
            {
                "submitted": one.counted is not None,
                "graded": one.mark is not None,
                "to be marked by a person": one.mark is not None and one.total is None and not one.excused,
                "late": one.late,
                "missing": one.state == MISSING,
                "not submitted yet": one.state == NOT_YET,
                "excused": one.excused,
            }
            for one in self.standings
        ]
        return {what: sum(one[what] for one in each) for what in each[0]} if each else {}

    @property
    def summary(self) -> str:
        """ "week13: 38 submitted, 36 graded, 4 to be marked by a person, 2 late, 3 missing"; the last two if any are."""
        said = [f"{many} {what}" for n, (what, many) in enumerate(self.counts.items()) if many or n < 5]
        return f"{self.week.name}: {', '.join(said)}"


def status(cls: Class, week: Week) -> Status:
    """Where everybody of the class stands."""
    return Status(week, standings(cls, week), problems(cls, week))


def show(cls: Class, result: Status, console: Console) -> None:
    """One table, what is to be done, and one line of counts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    students = [page.one_line(one.person.called, 80) for one in result.standings]
    names = max(len("student"), min(24 if console.width >= 100 else 17, max(map(len, students), default=0)))
    for name in ("student", "no.", "of", "handed in", "", "checks", "by hand", "total", "state"):
        numbers = name in ("no.", "of", "checks", "by hand", "total")
        words = name in ("student", "state")  # rich folds these, before it narrows what is of one word
        # A fixed width: with a least one, rich makes the table wider than the console, and cuts its right end off.
        width = names if name == "student" else None
        table.add_column(name, justify="right" if numbers else "left", overflow="fold", no_wrap=not words, width=width)
    for name, one in zip(students, result.standings):
        table.add_row(*(Text(cell) for cell in (name, *cells(one, cls.zone))))
    console.print(table)
    tell(result.problems, console)
    console.print(result.summary, style="bold", highlight=False, soft_wrap=True)


def tell(found: Sequence[Problem], console: Console) -> None:
    """What blocks publishing, then what only warns, each with the command that fixes it."""
    for one in sorted(found, key=lambda one: not one.blocks):
        line = Text("blocks publishing: " if one.blocks else "warning: ", "bold red" if one.blocks else "yellow")
        console.print(line.append(one.sentence, "not bold default"), soft_wrap=True)
        if one.command:
            console.print(Text(f"    {one.command}"), soft_wrap=True)


def cells(one: Standing, zone: tzinfo | None) -> list[str]:
    """One row of the table, after the name."""
    points, counted = ["", "", ""], one.counted
    if one.mark is not None:
        written = possible(one.tasks, "written")
        points = [
            f"{number(one.automatic)} / {number(possible(one.tasks, 'auto'))}",
            "" if not written else "–" if one.ungraded else f"{number(one.given)} / {number(written)}",
            "" if one.total is None else f"{number(one.total)}",
        ]
    received = counted.received if counted else None
    received = received.astimezone(zone) if received and zone else received
    too_late = one.late and one.mark is not None and one.factor == 0 and not one.excused
    return [
        str(counted.submission.id) if counted else "",
        str(len(counted.attempts)) if counted else "",
        received.strftime("%m-%d %H:%M") if received else "unknown" if counted else "",
        "late" if one.late else "",
        *points,
        f"{one.state}, too late" if too_late else one.state,
    ]
