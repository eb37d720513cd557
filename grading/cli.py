"""The `grade` command, for instructors. Each command imports what it needs when it runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError

app = typer.Typer(
    name="grade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="For instructors: hand out the labs, grade what comes back.",
)
# Each gives `add_commands`; they import what they need when a command runs, so that `grade --help` answers at once.
for room in ("grading.commands", "grading.intake.commands", "grading.gradebook.commands", "grading.reports.commands"):
    if importlib.util.find_spec(room) is not None:
        importlib.import_module(room).add_commands(app)

INTERRUPTED = 130  # the shell's convention for a command ended by Ctrl-C (128 + SIGINT)


@app.callback()
def _root() -> None:
    pass  # a command of its own name for each thing to do, also while there is only one


@app.command()
def release(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The student tree: a new folder, or one to upgrade.")],
    weeks: Annotated[list[str] | None, typer.Argument(metavar="WEEK", help="The weeks to release.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Release every week of the course.")] = False,
    solutions: Annotated[
        list[str] | None,
        typer.Option(metavar="WEEK", help=("Hand out this week's solutions, into solutions/ in the tree. Repeatable.")),
    ] = None,
) -> None:
    """Make the student tree, or upgrade one: holes in place of solutions, nothing of the instructors'.

    A file that was changed there is never overwritten: the new text goes beside it, as NAME.new. Interrupted? The same
    command goes on. Status 1: something there is a link in a folder's place, and nothing was put into it.
    """
    from grading import release as releasing

    report = releasing.release(to, weeks or (), solutions=solutions or (), everything=everything)
    for sentence in report.sentences():
        typer.echo(sentence)
    raise typer.Exit(1 if report.blocked else 0)


def main(argv: list[str] | None = None) -> None:
    """Entry point of `grade`. Errors a user can mend are one sentence on stderr and status 2."""
    try:
        app(argv)
    except LabError as error:
        sys.stdout.flush()
        print(f"grade: {error}", file=sys.stderr)
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
