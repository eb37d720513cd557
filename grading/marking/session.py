"""`grade mark`: formgrader with what counts in a week, and what was typed there back into class.db."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading.intake.names import count, printable
from grading.marking.course import CONFIG, FOLDER, Course, is_current, make, open_course
from grading.marking.screen import Report, fill
from grading.marking.typed import means, read_back
from grading.register.schema import Class
from labkit.checks.outcome import number
from labkit.checks.tasks import Week


@dataclass
class Session:
    """A course directory whose formgrader shows the week. said: sentences on what was done to it; typed: on what was
    typed there and cannot be meant."""

    course: Course
    report: Report
    said: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)


def prepare(cls: Class, week: Week, progress: Callable[[int, int], None] = lambda done, total: None) -> Session:
    """Read back what was typed, then bring formgrader up to date; its folder is made, if there is none."""
    root, said = cls.folder / FOLDER, list[str]()
    course = open_course(root) if (root / CONFIG).is_file() else None
    if course is None or not is_current(course, week):
        course, said = make(root, cls.weeks)
    typed = read_back(cls, week)
    return Session(course, fill(course, cls, week, progress), said, typed)


def show(cls: Class, week: Week, ready: Session, console: Console) -> None:
    """The rubric with its means, what is to be looked at, and how many answers wait."""
    for task, rows in groupby(means(cls, week), key=lambda row: row[0]):
        console.print(Text(f"{task.id} {task.title}", "bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("item", "points", "mean", "answers", "what"):
            table.add_column(name, justify="left" if name == "what" else "right")
        for _, item, mean, many in rows:
            cells = ("", "") if mean is None else (f"{mean:.1f}", str(many))
            table.add_row(str(item.number), f"{number(item.points)}", *cells, Text(item.title))
        console.print(table)
    for code, sentence in cls.rules.comments.items():
        console.print(Text(f"#{code}: {sentence}"), soft_wrap=True)
    report = ready.report
    for sentence in (*ready.said, *ready.typed, *report.human):
        console.print(Text(printable(sentence)), soft_wrap=True)
    all_of_it = count(report.new + report.changed + report.same, "submission")
    gone = f", {report.gone} count no more" if report.gone else ""
    waits = f"; {report.ungraded} not graded yet: `grade run {week.name}` first" if report.ungraded else ""
    console.print(
        f"{all_of_it} in formgrader ({report.new} new{gone}); {report.open} answers to be marked{waits}",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
