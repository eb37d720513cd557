"""The class in a terminal: what it has not understood, how it did, whom to look at. The page has the rest."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading.reports import page
from grading.reports.overview import Overview
from labkit.checks.outcome import number
from labkit.checks.verdict import CRASHED, FORBIDDEN, HUNG, OUT_OF_MEMORY

ROWS = 8


def render(overview: Overview, console: Console) -> None:
    """A table of the behaviours that most students failed, then a few lines."""
    if overview.not_understood:
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            header_style="bold",
            title="What the class has not understood",
            title_justify="left",
            title_style="bold",
        )
        table.add_column("task", no_wrap=True)
        table.add_column("behaviour", overflow="fold", ratio=2)
        table.add_column("failed", justify="right", no_wrap=True)
        table.add_column("not tried", justify="right", no_wrap=True)
        table.add_column("most common mistake", overflow="fold", ratio=3)
        for entry in overview.not_understood[:ROWS]:
            table.add_row(
                Text(entry.task, "bold"),
                Text(entry.title),
                f"{entry.failed} of {entry.judged}",
                str(entry.untried),
                Text(page.one_line(page.here(entry.typical[0]), 120)),
            )
        console.print(table)
        if more := len(overview.not_understood) - ROWS:
            console.print(f"and {page.count(more, 'behaviour')} more" if more > 0 else "", highlight=False, style="dim")
    low, median, high = map(number, overview.quartiles)
    console.print(
        f"{page.count(len(overview.standings), 'student')}. Automatic points: median {median} of "
        f"{number(overview.possible)}, the middle half from {low} to {high}.",
        highlight=False,
        soft_wrap=True,
    )
    for words, verdicts in (
        ("hung", (HUNG,)),
        ("crashed", (CRASHED,)),
        ("out of memory", (OUT_OF_MEMORY,)),
        ("used a forbidden call", (FORBIDDEN,)),
    ):
        _names(console, words, [incident.student for incident in overview.incidents_of(*verdicts)])
    _names(console, "need a human, the grader failed", [s.student for s in overview.doubtful], "bold magenta")
    _names(console, "UNSANDBOXED", [s.student for s in overview.standings if s.unsandboxed], "bold red")


def _names(console: Console, what: str, students: list[str], style: str = "") -> None:
    names = list(dict.fromkeys(students))
    if names:
        shown = ", ".join(page.one_line(name, 30) for name in names[:8]) + (" ..." if len(names) > 8 else "")
        console.print(Text(f"{len(names)} {what}: {shown}", style), soft_wrap=True)
