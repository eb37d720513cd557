"""What the instructor sees: one line a submission while it works, with the time that is left; the class's table at the
end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from grading import history
from grading.intake.names import count, printable, some
from grading.intake.names import shown as name_of
from grading.mark import UNSANDBOXED, Mark
from grading.run import Progress as Step
from grading.run import Report
from labkit.checks.verdict import PASSED, VERDICTS

NAMED = 6  # students in one line
MEASURED = "measuring how long the course's own solutions take here, once for a week and a machine"


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Step], None]]:
    """Progress: a bar on a terminal, else a line for each submission."""
    if not console.is_terminal:
        yield lambda step: _line(step, console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
    ) as bar:
        reference, task = bar.add_task(MEASURED, total=None, visible=False), bar.add_task("starting", total=None)

        def update(step: Step) -> None:
            if step.expected is not None:
                console.print(Text(expectation(step)))
                return
            now, name = (reference, MEASURED) if step.entry is None else (task, f"submission {step.entry.number}")
            bar.update(reference, visible=step.entry is None)
            bar.update(task, visible=step.entry is not None)
            bar.update(now, total=step.total or None, completed=step.done, description=Text(name).markup)

        yield update


def expectation(step: Step) -> str:
    """How long it may take, before the first submission is judged: a capstone takes minutes."""
    takes = max(1.0, step.expected or 0.0)
    about = f"{takes:.0f} s" if takes < 90 else f"{takes / 60:.0f} minutes"
    many = count(step.total, "submission")
    longer = "a hang or a busy machine takes longer"
    return f"{many} to grade: about {about} if each takes as long as the course's own solutions; {longer}"


def _line(step: Step, console: Console) -> None:
    if step.mark is not None:
        mark = step.mark
        points = f"{mark.points} of {mark.possible} in {mark.seconds:.0f} s"
        console.print(Text(f"{step.done} of {step.total}  submission {mark.submission}: {points}"))
    elif step.expected is not None:
        console.print(Text(expectation(step)), soft_wrap=True)
    elif step.entry is None and not step.total:
        console.print(Text(MEASURED), soft_wrap=True)


def class_table(report: Report, console: Console) -> None:
    """Points and verdicts of everyone, then what needs a human."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("student", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("verdicts", overflow="fold")
    table.add_column("seconds", justify="right", no_wrap=True)
    for mark in report.all:
        name = called(report, mark.submission)
        seconds = f"{mark.seconds:.1f}" if mark in report.made else "kept"
        table.add_row(Text(name), f"{mark.points:g} / {mark.possible:g}", Text(verdicts(mark)), seconds)
    console.print(table)
    console.print()
    if any(mark.isolation == UNSANDBOXED for mark in report.all):
        console.print(
            "UNSANDBOXED: these submissions ran with your own rights, and could have changed their marks.",
            style="bold red",
        )
    for sentence in notes(report):
        console.print(Text(printable(sentence)))
    for number, why in report.unreadable:
        console.print(Text(f"{called(report, number)}: could not be graded: {printable(why)}", "red"))
    others = [change for change in report.changes if change.tasks]
    if others:
        console.print(f"Marks that came out otherwise than before: {len(others)}", style="bold", highlight=False)
    for change in others:
        for sentence in history.sentences(change, True, called(report, change.submission)):
            console.print(Text(printable(sentence)), soft_wrap=True)
    if len(report.changes) > len(others):
        console.print(f"{len(report.changes) - len(others)} graded again and unchanged.", highlight=False)
    look = [mark for mark in report.all if not mark.complete]
    for mark in look:
        for sentence in mark.attention:
            console.print(Text(f"{called(report, mark.submission)}: {printable(sentence)}", "magenta"))
    console.print(
        f"{count(len(report.all), 'mark')}, {len(report.made)} of them made now."
        + (f" A human must look at {len(look)}: the grader failed there, which is no zero." if look else ""),
        style="bold",
        highlight=False,
    )


def called(report: Report, number: int) -> str:
    """A submission, for people: whose it is, and its number."""
    return f"{name_of(report.names[number])} ({number})"


def notes(report: Report) -> list[str]:
    """The notes of all marks, each with those whom it concerns: what many have in common is one line."""
    whom: dict[str, list[str]] = {}
    for mark in report.all:
        for note in dict.fromkeys(mark.notes):
            whom.setdefault(note, []).append(called(report, mark.submission))
    return [f"{some(names, NAMED)}: {note}" for note, names in whom.items()]


def verdicts(mark: Mark) -> str:
    count = mark.verdicts()
    return ", ".join(f"{count[word]} {word}" for word in VERDICTS if word in count) or "nothing was judged"


def one(mark: Mark, console: Console) -> None:
    """One mark with every diagnosis."""
    head = f"submission {mark.submission}: {mark.points:g} of {mark.possible:g}, seed {mark.seed}"
    console.print(Text(head, "bold"), soft_wrap=True)
    for case in mark.cases:
        if case["verdict"] != PASSED:
            console.print(Text(f"{case['test'].rpartition('::')[2]}  {case['verdict']}  {case['behaviour']}"))
            console.print(Text("    " + case["text"].replace("\n", "\n    ")))
