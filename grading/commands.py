"""The commands of `grade` from marking on: points by hand, what leaves, questions. Each imports what it needs when it
runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grading.intake.names import printable
from grading.options import HERE, Anyway, Folder, WeekName, blocking, opened, say
from labkit.errors import LabError


def mark(
    week: WeekName,
    jupyter: Annotated[
        bool, typer.Option(help="Without: prepare formgrader for a Jupyter that runs already, and read what was typed.")
    ] = True,
    folder: Folder = HERE,
) -> None:
    """Mark the written tasks in formgrader, by submission number; Ctrl-C ends it, and what was typed counts.

    Status 1: something was typed that cannot be meant, and is named.
    """
    from rich.console import Console

    from grading.marking import jupyter as server
    from grading.marking import session

    console = Console()
    with opened(folder, week) as (cls, [found], _):
        with console.status("preparing ...") as line:
            ready = session.prepare(cls, found, lambda done, total: line.update(f"preparing {done} of {total}"))
        session.show(cls, found, ready, console)
        odd = ready.typed
        if jupyter and sys.stdin.isatty():
            server.open_formgrader(ready.course.root, found)
            odd = session.read_back(cls, found)
            say(odd)
        else:
            typer.echo(f"formgrader is ready: cd {ready.course.root}; jupyter lab; menu Nbgrader, Formgrader")
    raise typer.Exit(1 if odd or ready.report.human else 0)


def publish(
    week: WeekName,
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TABLE.csv]",
            help="Canvas' gradebook or Moodle's worksheet, exported again. Kept for the week. Default: the one "
            "that was kept or collected, else the roster.",
        ),
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(
            metavar="TITLE", help="Canvas' column; kept. Default: the week's, 'Week 13 (4711)', else a new assignment."
        ),
    ] = None,
    zeros: Annotated[
        bool | None,
        typer.Option(
            "--zeros/--no-zeros", help="0 points for who handed nothing in, and whose deadline has passed. Kept."
        ),
    ] = None,
    printed: Annotated[
        bool,
        typer.Option(
            "--printed",
            help="Pages show also what a student's code printed where it failed. It may have printed hidden data: only "
            "once nobody can hand in any more.",
        ),
    ] = False,
    anyway: Anyway = False,
    folder: Folder = HERE,
) -> None:
    """Write the platform's grades, a page for each student, upload.zip, the class's page and the term's table.

    Problems come first: what blocks is named with the command that ends it, and nothing is written. Pages wait until
    nobody can hand in any more. Status 1: somebody is left out, or pages wait; the text says which.
    """
    from rich.console import Console

    from grading.publish import publishing
    from grading.publish.status import tell
    from grading.register.problems import problems

    with opened(folder, week) as (cls, [found], odd):
        wishes = publishing.Wishes(table, assignment, zeros, pages=anyway, printed=printed)
        made = publishing.publish(cls, found, wishes)
        tell(problems(cls, found), Console())
        say([*odd, *publishing.sentences(cls, found, made)])
    raise typer.Exit(1 if made.notes or odd else 0)


def status(
    week: Annotated[
        str | None, typer.Argument(metavar="WEEK", help="The week. Without one: a line for each week.")
    ] = None,
    folder: Folder = HERE,
) -> None:
    """Show what was handed in, is graded, is to be marked, is late or missing, and what blocks publishing."""
    from rich.console import Console

    from grading.publish import status as standing
    from grading.register.problems import UNKNOWN

    console = Console()
    with opened(folder, week) as (cls, weeks, odd):
        lines = 0
        for one in weeks:
            found = standing.status(cls, one)
            unknown = sum(problem.kind == UNKNOWN for problem in found.problems)
            if week:
                standing.show(cls, found, console)
            elif found.counts.get("submitted") or unknown or one.name in cls.rules.deadlines:
                strangers = f", {unknown} of nobody known" if unknown else ""
                console.print(found.summary + strangers, highlight=False, soft_wrap=True)
                lines += 1
        if not week and not lines:
            console.print("nothing was handed in yet, and no week has a deadline")
        say(odd)


def why(
    week: WeekName,
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The e-mail, an id, or the whole name.")],
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this task: 13.4.")] = None,
    folder: Folder = HERE,
) -> None:
    """Answer a student's question from the record: attempts, points, diagnoses, points by hand, and every regrade."""
    from rich.console import Console

    from grading.publish.why import show

    with opened(folder, week) as (cls, [found], _):
        show(cls, found, student, task, Console())


def who(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME = KEY]", help="What the platform calls somebody, and the e-mail or id."),
    ] = None,
    folder: Folder = HERE,
) -> None:
    """Say whose a submission is: grade who "Sean OBrien" = sean@example.org. Without words: the class, and who is
    unknown. A group's name takes several keys."""
    from rich.console import Console

    from grading.publish.status import tell
    from grading.register.people import everybody, key_of
    from grading.register.people import who as bind

    label, equals, keys = (words or [""])[0], (words or ["", ""])[1:2], (words or [])[2:]
    with opened(folder) as (cls, weeks, _):
        if words and (equals != ["="] or not keys):
            raise LabError('say it so: grade who "Sean OBrien" = sean@example.org')
        if words:
            owners = bind(cls, label, keys)
            typer.echo(f"{printable(label)} is {', '.join(one.name for one in owners)}")
        else:
            say(f"{key_of(cls, one)}  {one.name}" for one in everybody(cls))
        tell(list(dict.fromkeys(one for week in weeks for one in blocking(cls, week))), Console())


def submission(
    which: Annotated[str, typer.Argument(metavar="NUMBER", help="Its number, or the download from which all came.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[time TIME | withdraw | without MEMBER | rename OLD NEW]", help="What to change. Default: show it."
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="withdraw, without, rename: take it back.")] = False,
    folder: Folder = HERE,
) -> None:
    """Change one submission: when it was handed in, whether it counts, what a file of it is called.

    Nothing is deleted, and points that were given stay with it.
    """
    from grading.corrections import correct

    with opened(folder) as (cls, _, _):
        say(correct(cls, which, words or [], undo=undo))


def similar(
    week: WeekName,
    earlier: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="The class's folder of an earlier year. Repeatable.")
    ] = None,
    folder: Folder = HERE,
) -> None:
    """Find pairs of submissions that share more than the given code and the class's habits explain, side by side.

    The functions of the tasks alone are compared, as syntax trees, of every attempt. The course's own solutions take
    part. Nothing is run, and no mark is changed.
    """
    from rich.console import Console

    from grading.similar.search import search

    with opened(folder, week) as (cls, [found], _):
        search(cls, found, earlier or (), Console())


def forget(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The e-mail, an id, or the whole name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Folder = HERE,
) -> None:
    """Remove everything that is stored of one student, after showing it.

    Interrupted? The same command removes the rest. Status 1: something is left that only you can remove; it is named.
    """
    from grading.publish import forget as forgetting
    from grading.register.people import resolve

    with opened(folder) as (cls, _, _):
        stored = forgetting.find(cls, resolve(cls, student))
        say(forgetting.sentences(cls, stored))
        if not yes:
            typer.confirm("Remove all of it for good?", abort=True)
        say(f"removed: {what}" for what in forgetting.forget(cls, stored))
        say(f"left to you: {sentence}" for sentence in stored.others)
    raise typer.Exit(1 if stored.others else 0)
