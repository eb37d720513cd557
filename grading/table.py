"""What the instructor sees: one line a submission while it works, with the time that is left; the class's table at the
end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from grading import history
from grading.intake.load import NOT_OPENED
from grading.intake.names import printable, some
from grading.intake.names import shown as name_of
from grading.marks import UNSANDBOXED, Mark
from grading.reports.page import count
from grading.run import Progress as Step
from grading.run import Report
from labkit.checks.tasks import Week
from labkit.checks.verdict import PASSED, VERDICTS

NAMED = 6  # students in one line
EVERY = 10.0  # seconds between two lines on the reference
MEASURED = "measuring how long the course's own solutions take here, once for a week and a machine"


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Step], None]]:
    """Progress: a bar on a terminal, else a line for each submission, and now and then one on the reference."""
    if not console.is_terminal:
        yield _lines(console)
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
            now, name = (reference, MEASURED) if step.entry is None else (task, name_of(step.entry.student, 40))
            bar.update(reference, visible=step.entry is None)
            bar.update(task, visible=step.entry is not None)
            bar.update(now, total=step.total or None, completed=step.done, description=Text(name).markup)

        yield update


def expectation(step: Step) -> str:
    """How long it may take, before the first submission has told: a capstone takes minutes."""
    takes = max(1.0, step.expected or 0.0)
    about = f"{takes:.0f} s" if takes < 90 else f"{takes / 60:.0f} minutes"
    many = count(step.total, "submission")
    longer = "a hang or a busy machine takes longer"
    return f"{many} to grade: about {about} if each takes as long as the course's own solutions; {longer}"


def _lines(console: Console) -> Callable[[Step], None]:
    began = last = time.monotonic()

    def line(step: Step) -> None:
        nonlocal began, last
        now = time.monotonic()
        if step.mark is not None:
            mark = step.mark
            console.print(
                Text(
                    f"{step.done} of {step.total}  {name_of(mark.student)}: {mark.points} of {mark.possible} in "
                    f"{mark.seconds:.0f} s"
                )
            )
        elif step.expected is not None:
            console.print(Text(expectation(step)), soft_wrap=True)
        elif step.entry is None and not step.total:
            began = last = now
            console.print(Text(MEASURED), soft_wrap=True)
        elif step.entry is None and step.done and now - last >= EVERY:
            last = now
            left = (now - began) / step.done * (step.total - step.done)
            console.print(Text(f"{step.done} of {step.total} checks of the course's own solutions, {left:.0f} s left"))

    return line


def poorer(every: Sequence[Mark]) -> list[str]:
    """A sentence on each student whose last attempt lacks modules that an earlier one has: a file that was forgotten
    and sent alone, which by the rule "last" takes the others' points away."""
    told = []
    for student in dict.fromkeys(mark.student for mark in every):
        *earlier, last = sorted((mark for mark in every if mark.student == student), key=lambda mark: mark.attempt)
        before = next((mark for mark in reversed(earlier) if set(last.missing) - set(mark.missing)), None)
        if before is not None:
            lacks = some(sorted(set(last.missing) - set(before.missing)))
            told.append(
                f"{name_of(student)}: attempt {last.attempt} lacks {lacks}, which attempt {before.attempt} has. "
                "Collect all its files together, or "
                f"`grade withdraw {last.assignment} {shlex.quote(student)}` takes it back"
            )
    return told


def class_table(report: Report, console: Console) -> None:
    """Points and verdicts of everyone, then what needs a human."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("student", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("verdicts", overflow="fold")
    table.add_column("seconds", justify="right", no_wrap=True)
    several = {mark.student for mark in report.all if mark.attempt > 1}
    for mark in report.all:
        name = name_of(mark.student) + (f" (attempt {mark.attempt})" if mark.student in several else "")
        seconds = f"{mark.seconds:.1f}" if mark in report.made else "kept"
        table.add_row(Text(name), f"{mark.points:g} / {mark.possible:g}", Text(verdicts(mark)), seconds)
    console.print(table)
    console.print()
    if any(mark.isolation == UNSANDBOXED for mark in report.all):
        console.print(
            "UNSANDBOXED: these submissions ran with your own rights, and could have changed their marks.",
            style="bold red",
        )
    for sentence in (*report.told, *told_once(report.all)):
        console.print(Text(printable(sentence)))
    last = {mark.student: mark for mark in report.all}.values()
    if packed := [mark for mark in last if any(note.endswith(NOT_OPENED) for note in mark.notes)]:
        names, week = _names([name_of(mark.student) for mark in packed]), packed[0].assignment
        console.print(
            Text(
                f"To grade what {printable(names)} packed, unpack it into DIR/STUDENT: grade collect {week} --from DIR "
                "--received TIME"
            ),
            soft_wrap=True,
        )
    for mark in report.all:
        for name, like in mark.missing.items():
            if like:
                console.print(Text(f"    {printable(_rename(mark, name, like))}", "bold"), soft_wrap=True)
    for sentence in poorer(report.all):
        console.print(Text(printable(sentence)), soft_wrap=True)
    for student, why in report.unreadable:
        console.print(Text(f"{name_of(student)}: could not be graded: {printable(why)}", "red"))
    others = [change for change in report.changes if change.tasks]
    if others:
        console.print(f"Marks that came out otherwise than before: {len(others)}", style="bold", highlight=False)
    for change in others:
        for sentence in history.sentences(change, short=True):
            console.print(Text(printable(sentence)), soft_wrap=True)
    if len(report.changes) > len(others):
        console.print(f"{len(report.changes) - len(others)} graded anew and unchanged.", highlight=False)
    look = [mark for mark in report.all if not mark.complete]
    for mark in look:
        for sentence in mark.attention:
            console.print(Text(f"{name_of(mark.student)}: {printable(sentence)}", "magenta"))
    console.print(
        f"{count(len(report.all), 'mark')}, {len(report.made)} of them made now."
        + (f" A human must look at {len(look)}: the grader failed there, which is no zero." if look else ""),
        style="bold",
        highlight=False,
    )


def told_once(marks: Sequence[Mark]) -> list[str]:
    """The notes of all marks, each with the students whom it concerns: what many have in common is one line. Of whom
    there are several attempts, those are named."""
    several = {mark.student for mark in marks if mark.attempt > 1}
    whom: dict[str, dict[str, list[int]]] = {}
    for mark in marks:
        for note in mark.notes:
            whom.setdefault(note, {}).setdefault(mark.student, []).append(mark.attempt)
    said = []
    for note, theirs in whom.items():
        names = [_tried(student, attempts if student in several else []) for student, attempts in theirs.items()]
        said.append(f"{_names(names)}: {note}")
    return said


def _tried(student: str, attempts: Sequence[int]) -> str:
    """A student's name, with the attempts that are meant."""
    return name_of(student) + (f" (attempt {', '.join(map(str, attempts))})" if attempts else "")


def _names(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _rename(mark: Mark, name: str, like: str) -> str:
    """The command by which a misnamed file counts."""
    own = like.rpartition("/")[0]
    to = f"{own}/{name}" if own else name
    attempt = f" --attempt {mark.attempt}" if mark.attempt > 1 else ""
    return shlex.join(["grade", "rename", mark.assignment, mark.student, like, to]) + attempt


def verdicts(mark: Mark) -> str:
    count = mark.verdicts()
    return ", ".join(f"{count[word]} {word}" for word in VERDICTS if word in count) or "nothing was judged"


def one(mark: Mark, week: Week, console: Console) -> None:
    """One mark with every diagnosis."""
    head = f"{name_of(mark.student)}, attempt {mark.attempt}: {mark.points:g} of {mark.possible:g}, seed {mark.seed}"
    console.print(Text(head, "bold"), soft_wrap=True)
    for case in mark.cases:
        if case["verdict"] != PASSED:
            console.print(Text(f"{case['test'].rpartition('::')[2]}  {case['verdict']}  {case['behaviour']}"))
            console.print(Text("    " + case["text"].replace("\n", "\n    ")))
