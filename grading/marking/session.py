"""`grade mark`: formgrader with what counts in a week, and what was typed there back into class.db."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading.intake.names import count, printable
from grading.marking.course import CONFIG, FOLDER, Course, is_current, make, open_course
from grading.marking.items import items
from grading.marking.screen import Report, fill
from grading.marking.typed import read_back
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
    """The rubric with its items' numbers, what is to be looked at, and how many answers wait."""
    for task in (task for task in week.tasks if task.kind == "written"):
        console.print(Text(f"{task.id} {task.title}", "bold"))
        table = Table("item", "points", "what", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for item in items(week, task):
            table.add_row(str(item.number), f"{number(item.points)}", Text(item.title))
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
