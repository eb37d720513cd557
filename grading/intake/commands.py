"""`grade collect`: what a person sees of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from grading.intake.collect import Progress, Report
    from grading.intake.policy import Rules
    from grading.intake.receipts import Receipt
    from labkit.checks.tasks import Week

MAX_ROWS = 20
EVERY = 10.0  # seconds between two lines of progress


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command()(collect)
    app.command()(rename)
    app.command()(withdraw)


def collect(
    week: Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")],
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="PATH",
            help="nbgrader's exchange, a folder of submissions, or the .zip that Canvas or Moodle gives for all. "
            "Repeatable.",
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where attempts are kept.")] = Path("submitted"),
    course: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Deadlines, extensions, late penalty, ids. Default: course.toml, if it is here."
        ),
    ] = None,
    received: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="By when everything new was handed in, where the source does not tell: 2026-11-20T23:59+01:00.",
        ),
    ] = None,
    student: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Only this student, '*' for all; --received then also times what is known. Repeatable."
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The grading worksheet of this assignment in Moodle: who is in which group."),
    ] = None,
) -> None:
    """Collect what was handed in: every attempt is kept, as it came. Collecting again only adds what is new.

    Interrupted? The same command goes on. Status 1: something was not collected; it is named.
    """
    from rich.console import Console

    from grading.here import not_the_class
    from grading.intake.collect import collect as run
    from grading.intake.namesakes import of_week
    from grading.intake.policy import FILE, find_rules
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(to)
    weeks = find_weeks()
    found = find_week(week, weeks)
    rules, given = find_rules(course, weeks), _time(received)
    _refuse_future(given)
    console, errors = Console(), Console(stderr=True)
    new = not to.exists()
    with _shown(errors) as progress:
        report = run(
            sources, found, to, rules, given=given, students=student or (), worksheet=roster, progress=progress
        )
    if new:
        beside = "" if course or Path(FILE).exists() else f", where no {FILE} is"
        report.notes.append(f"{to} is made, in {to.absolute().parent}{beside}")
    if given and not student and (timed := report.known - report.withdrawn):
        report.notes.append(
            f"{_count(timed, 'attempt')} known before: the time stays (--received with --student ID changes "
            "one's, with --student '*' everybody's)"
        )
    for sentence in dict.fromkeys(
        (
            *report.notes,
            *slips(of_week(rules, to, found), found, Path("marks"), to, [one.student for one in report.added]),
            *report.refused,
        )
    ):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    _table(console, report, found, rules)
    raise typer.Exit(1 if report.refused else 0)


def _refuse_future(given: datetime | None) -> None:
    """LabError for a time that has not come: everything would be late, or in time, by a slip in a year."""
    from datetime import UTC

    from labkit.errors import LabError

    if given is not None and given > datetime.now(UTC):
        raise LabError(f"--received {given.isoformat()} has not come yet: it is when the hand-ins were there")


def slips(
    rules: Rules, week: Week, marks: Path, submissions: Path, students: Sequence[str] = (), here: Sequence[str] = ()
) -> list[str]:
    """What in the rules fits nobody of the roster, nor of the folders, which extensions change nothing for those who
    are `here`, and who of `students` is not in it. What was collected stays so where the roster cannot be read."""
    from functools import partial

    from grading.intake.excused import of_any_week
    from grading.intake.roster import of_rules, outside, unknown_ids, without_effect
    from labkit.errors import LabError

    try:
        roster = of_rules(rules)
        late = without_effect(here, week, roster, rules)
        left = partial(of_any_week, marks, submissions)
        return [*unknown_ids(roster, rules, left), *late, *outside(students, roster, rules)]
    except LabError as error:
        return [str(error)]


def rename(
    week: Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")],
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The student's id.")],
    old: Annotated[str, typer.Argument(metavar="OLD", help="The file, as it is called in the hand-in.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name under which it is to count.")],
    attempt: Annotated[int | None, typer.Option(metavar="N", help="Which attempt. Default: the last.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take an earlier renaming of OLD back.")] = False,
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="Where attempts are kept.")] = Path("submitted"),
) -> None:
    """Let a misnamed file count under its right name. What was handed in stays as it is; the student is told.

    The next `grade run` grades the attempt anew.
    """
    from grading.intake.policy import find_rules
    from grading.intake.rename import rename as run
    from labkit.checks.tasks import find_week, find_weeks

    rules = find_rules(None, find_weeks())
    typer.echo(run(submissions, find_week(week), student, old, new, attempt=attempt, undo=undo, rules=rules))


def _time(text: str | None) -> datetime | None:
    from labkit.errors import LabError

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise LabError(f"--received {text!r} is no time with its offset from UTC: write 2026-11-20T23:59+01:00")
    return found


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Progress]:
    """The progress function: a bar on a terminal, else a line now and then."""
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn()
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("finding", total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        return
    last = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            console.print(f"{what}: {done} of {total}", highlight=False)

    yield tell


def _table(console: Console, report: Report, week: Week, rules: Rules) -> None:
    from rich.table import Table
    from rich.text import Text

    from grading.intake.find import ARCHIVES
    from grading.intake.names import shown, some
    from grading.intake.receipts import MARKED, handed_in_last, read_receipts
    from grading.intake.times import PUT

    receipts = sorted(read_receipts(report.root, week.name), key=lambda r: (r.student, r.attempt))
    theirs: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        theirs.setdefault(receipt.student, []).append(receipt)
    last = {student: handed_in_last(several) for student, several in theirs.items()}
    new = {(receipt.student, receipt.attempt) for receipt in report.added}

    def late(receipt: Receipt) -> bool:
        due = rules.due(receipt.student, week.name)
        return bool(due and receipt.received and receipt.received > due)

    rows = [r for r in last.values() if len(theirs[r.student]) > 1 or late(r)]
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("student", "attempts", "last handed in", ""):
            table.add_column(name)
        for r in rows[:MAX_ROWS]:
            time = r.received.isoformat(" ", "minutes") if r.received else "unknown"
            time = "marked late" if r.timed == MARKED else time
            said = ["new"] * ((r.student, r.attempt) in new) + [
                "marked late by the platform" if r.late and r.timed != MARKED else "after the deadline"
            ] * late(r)
            table.add_row(*map(Text, (shown(r.student, 40), str(theirs[r.student][-1].attempt), time, ", ".join(said))))
        console.print(table)
        if len(rows) > MAX_ROWS:
            console.print(f"and {len(rows) - MAX_ROWS} more with several attempts or after the deadline")
    if report.claims:
        console.print(
            f"Of {_count(report.claims, 'new attempt')} the time is what a name or file says that students can write, "
            f"and nothing here checks it: --received TIME would hold instead",
            soft_wrap=True,
            highlight=False,
        )
    unread = tuple(ending for ending in ARCHIVES if ending != ".zip")
    if put := [receipt.student for receipt in report.added if receipt.timed == PUT and not receipt.attention]:
        console.print(
            f"Of {_count(len(put), 'new attempt')} nothing but when its files were last written tells the time "
            f"({some(put)}): of a copy that is the copying, and --student '*' --received TIME would hold instead",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if packed := [receipt.student for receipt in report.added if receipt.name.lower().endswith(unread)]:
        console.print(
            f"{some(packed)}: only .zip archives are opened, so nothing in this one will be graded",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if marked := [receipt.student for receipt in receipts if receipt.timed == MARKED]:
        console.print(
            f"{_count(len(marked), 'attempt')} marked late by the platform, which tells no time: {some(marked)}. "
            "They count as handed in right after the deadline; if that is not enough, collect again with --student ID "
            "--received TIME",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    for one in report.timed:
        when = one.received.isoformat(" ", "minutes") if one.received else "unknown"
        console.print(
            f"{shown(one.student)}, attempt {one.attempt}: handed in {when}, by --received; now `grade run "
            f"{week.name}`",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    unknown = sum(receipt.received is None for receipt in receipts)
    when = "--received TIME says when, and with --student ID also later; '*' is everybody"
    tail = f"; of {unknown} nothing tells when, so they count as in time ({when})" if unknown else ""
    refused = f", {len(report.refused)} not collected" if report.refused else ""
    console.print(
        f"{report.root}: {_count(len(last), 'student')}, {_count(len(receipts), 'attempt')}, "
        f"{len(report.added)} new{refused}{tail}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def withdraw(
    week: Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")],
    student: Annotated[str | None, typer.Argument(metavar="STUDENT", help="The student's id.")] = None,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="Which attempt. Default: the last.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every attempt of the student; with --undo too.")] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="Everything that `grade collect --from PATH` brought.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Bring withdrawn attempts back.")] = False,
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="Where attempts are kept.")] = Path("submitted"),
    marks: Annotated[Path, typer.Option(metavar="DIR", help="Where `grade run` put the marks.")] = Path("marks"),
    course: Annotated[Path | None, typer.Option(metavar="FILE", help="The rules. Default: course.toml.")] = None,
) -> None:
    """Take collected attempts back, with their marks: collected by mistake, say. Nothing is deleted: --undo."""
    from grading.here import not_the_class
    from grading.intake.names import some
    from grading.intake.policy import find_rules
    from grading.intake.withdraw import left
    from grading.intake.withdraw import withdraw as run
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(submissions)
    if every and (attempt is not None or student is None):
        raise typer.BadParameter("--all is for a student, and without --attempt")
    weeks = find_weeks()
    found = find_week(week, weeks)
    moved = run(
        submissions, marks, found, find_rules(course, weeks),
        student=student, attempt=attempt, every=every, source=source, undo=undo,
    )  # fmt: skip
    whose = some([f"{one.receipt.student}, attempt {one.receipt.attempt}" for one in moved])
    typer.echo(f"{_count(len(moved), 'attempt')} {'brought back' if undo else 'withdrawn'}: {whose}")
    for sentence in left(submissions, found, moved, undo):
        typer.echo(sentence)
    if any(one.marked for one in moved):
        typer.echo(f"Their marks went along. In the gradebook: `grade load {found.name}`")
