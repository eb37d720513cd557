"""What the instructor sees: one line a submission while it works, the class's table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from grading.marks import UNSANDBOXED, Mark
from grading.run import Progress as Step
from grading.run import Report
from labkit.checks.tasks import Week
from labkit.checks.verdict import PASSED, VERDICTS


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Step], None]]:
    """Progress: a bar on a terminal, else a line for each submission."""
    if not console.is_terminal:

        def line(step: Step) -> None:
            if step.mark is not None:
                mark = step.mark
                console.print(
                    Text(
                        f"{step.done} of {step.total}  {mark.student}: {mark.points} of {mark.possible} in "
                        f"{mark.seconds:.0f} s"
                    )
                )

        yield line
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=None)

        def update(step: Step) -> None:
            bar.update(task, total=step.total, completed=step.done, description=Text(step.entry.student[:40]).markup)

        yield update


def class_table(report: Report, console: Console) -> None:
    """Points and verdicts of everyone, then what needs a human."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("student", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("verdicts", overflow="fold")
    table.add_column("seconds", justify="right", no_wrap=True)
    several = {mark.student for mark in report.all if mark.attempt > 1}
    for mark in report.all:
        name = mark.student + (f" (attempt {mark.attempt})" if mark.student in several else "")
        seconds = f"{mark.seconds:.1f}" if mark in report.made else "kept"
        table.add_row(Text(name), f"{mark.points:g} / {mark.possible:g}", Text(verdicts(mark)), seconds)
    console.print(table)
    console.print()
    if any(mark.isolation == UNSANDBOXED for mark in report.all):
        console.print(
            "UNSANDBOXED: these submissions ran with your own rights, and could have changed their marks.",
            style="bold red",
        )
    for mark in report.all:
        for note in mark.notes:
            console.print(Text(f"{mark.student}: {note}"))
    for student, why in report.unreadable:
        console.print(Text(f"{student}: could not be read: {why}", "red"))
    look = [mark for mark in report.all if not mark.complete]
    for mark in look:
        for sentence in mark.attention:
            console.print(Text(f"{mark.student}: {sentence}", "magenta"))
    console.print(
        f"{len(report.all)} marks, {len(report.made)} of them made now."
        + (f" A human must look at {len(look)}: the grader failed there, which is no zero." if look else ""),
        style="bold",
        highlight=False,
    )


def verdicts(mark: Mark) -> str:
    count = mark.verdicts()
    return ", ".join(f"{count[word]} {word}" for word in VERDICTS if word in count) or "nothing was judged"


def one(mark: Mark, week: Week, console: Console) -> None:
    """One mark with every diagnosis."""
    head = f"{mark.student}, attempt {mark.attempt}: {mark.points:g} of {mark.possible:g}, seed {mark.seed}"
    console.print(Text(head, "bold"), soft_wrap=True)
    for case in mark.cases:
        if case["verdict"] != PASSED:
            console.print(Text(f"{case['test'].rpartition('::')[2]}  {case['verdict']}  {case['behaviour']}"))
            console.print(Text("    " + case["text"].replace("\n", "\n    ")))
