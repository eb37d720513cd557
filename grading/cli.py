"""The `grade` command, for instructors. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grading import packing
from grading.gradebook import commands as gradebook
from grading.intake import commands as intake
from grading.reports import commands as reports
from grading.rubric import commands as rubric
from grading.similar import commands as similar
from grading.typed import understandable
from labkit.errors import LabError

app = typer.Typer(
    name="grade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="For instructors: hand out the labs, grade what comes back.",
)
INTERRUPTED = 130  # the shell's convention for a command ended by Ctrl-C (128 + SIGINT)


@app.callback()
def _root() -> None:
    pass  # a command of its own name for each thing to do, also while there is only one


@app.command()
def doctor() -> None:
    """Tell which isolation this machine gives, and what is missing with the fix.

    Status 0: submissions can be graded in a sandbox here. Status 1: they can not.
    """
    from rich.console import Console
    from rich.table import Table

    from grading.sandbox.isolation import checks

    console = Console()
    found = []
    with console.status("trying ..."):
        for check in checks():
            found.append(check)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for check in found:
        word = "[green]ok[/]" if check.ok else "[red]no[/]" if check.ok is False else "[yellow]--[/]"
        table.add_row(word, check.name, check.detail + (f"\n-> {check.fix}" if check.fix and not check.ok else ""))
    console.print(table)
    able = found[-1].ok
    console.print(
        "Submissions are graded in a sandbox here."
        if able
        else "No submission can be shut in here: `grade run` refuses, unless you say --unsandboxed.",
        style="bold",
    )
    raise typer.Exit(0 if able else 1)


# They, too, import what they need when a command runs, so that `grade --help` answers at once.
for room in (intake, gradebook, reports, rubric, similar, packing):
    room.add_commands(app)


@app.command()
def release(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The student tree: a new folder, or one to upgrade.")],
    weeks: Annotated[list[str] | None, typer.Argument(metavar="WEEK", help="The weeks to release.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Release every week of the course.")] = False,
    solutions: Annotated[
        list[str] | None,
        typer.Option(metavar="WEEK", help="Hand out this week's solutions, into solutions/ in the tree. Repeatable."),
    ] = None,
    course: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Deadlines and extensions. Default: course.toml, if it is here.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Hand out solutions also while somebody may still hand in.")
    ] = False,
) -> None:
    """Make the student tree, or upgrade one: holes in place of solutions, nothing of the instructors'.

    A file that was changed there is never overwritten: the new text goes beside it, as NAME.new. Interrupted? The same
    command goes on. Status 1: something there is a link in a folder's place, and nothing was put into it.
    """
    from grading import release as releasing
    from grading.intake.policy import find_rules, refuse_while_open
    from labkit.checks.tasks import find_week, find_weeks

    for week in solutions or ():
        known = find_weeks(releasing.COURSE)
        found = find_week(week, known).name
        refuse_while_open(find_rules(course, known), found, "its solutions", anyway, tells="the answers")
    report = releasing.release(to, weeks or (), solutions=solutions or (), everything=everything)
    for sentence in report.sentences():
        typer.echo(sentence)
    raise typer.Exit(1 if report.blocked else 0)


def main(argv: list[str] | None = None) -> None:
    """Entry point of `grade`. Errors a user can mend are one sentence on stderr and status 2."""
    try:
        understandable(sys.argv[1:] if argv is None else argv)
        app(argv)
    except LabError as error:
        sys.stdout.flush()
        from grading.intake.names import printable

        print(f"grade: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Ctrl-C in a command: typer makes a status of it, and says nothing. (A command that has told of it ends with a
        # status of its own making.)
        interrupted = isinstance(end, KeyboardInterrupt) or isinstance(_cause(end), KeyboardInterrupt)
        if not interrupted:
            raise
        print("grade: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _cause(end: BaseException) -> BaseException | None:
    return getattr(end.__context__, "__cause__", None)


if __name__ == "__main__":
    main()
