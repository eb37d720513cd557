"""What the instructor sees when a run has ended: the class's table."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading import history
from grading.intake.names import count, printable, some
from grading.intake.names import shown as name_of
from grading.mark import UNSANDBOXED, Mark
from grading.run import Report
from labkit.checks.verdict import PASSED, VERDICTS


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
    return [f"{some(names, 6)}: {note}" for note, names in whom.items()]


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
