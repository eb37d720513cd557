"""`grade course init` and `grade load`. Each imports what it needs when it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    course = typer.Typer(no_args_is_help=True, help="nbgrader's course directory: gradebook, exchange and formgrader.")
    course.callback()(lambda: None)  # a command of its own name, also while there is only one
    course.command(name="init")(init)
    app.add_typer(course, name="course")
    app.command(name="load")(load)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new folder, or a course directory to bring up to date.")
    ],
    name: Annotated[str | None, typer.Option(help="nbgrader's name of the course.")] = None,
    exchange: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder that students share with you, if they hand in by `nbgrader submit`."
        ),
    ] = None,
) -> None:
    """Make nbgrader's course directory: configuration, assignments and grade cells of every week.

    Again after a change of the course: it takes up what is new and keeps every mark.
    """
    from grading.gradebook.course import NAME
    from grading.gradebook.init import init as make

    made = make(folder, name=name or NAME, exchange=exchange)
    for sentence in made.said:
        typer.echo(sentence)
    typer.echo(f"Ready: cd {made.course.root}; jupyter lab; then the menu Nbgrader, Formgrader")


def load(
    week: Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")],
    marks: Annotated[Path, typer.Option(metavar="DIR", help="Where `grade run` put the marks.")] = Path("marks"),
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="What was handed in: formgrader shows it.")] = Path(
        "submitted"
    ),
    gradebook: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="nbgrader's course directory. Default: this folder, or ./gradebook."),
    ] = None,
    course: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Which attempt counts, deadlines, late penalty. Default: course.toml, if it is here."
        ),
    ] = None,
) -> None:
    """Put the marks of a week into nbgrader's gradebook, and what was handed in beside the diagnoses, for formgrader.

    Points and comments that were given by hand stay. Interrupted? The same command goes on. Status 1: something needs a
    human, and is told.
    """
    from grading.gradebook.course import SAMPLE, course_folder, open_course
    from grading.gradebook.load import files_of
    from grading.gradebook.load import load as put
    from grading.here import not_the_class
    from grading.intake.commands import slips
    from grading.intake.names import printable
    from grading.intake.pending import entries_of, pending
    from grading.intake.policy import find_rules
    from grading.marks import all_marks
    from labkit.checks.tasks import find_week, find_weeks
    from labkit.errors import LabError

    not_the_class(marks, submissions)
    found, there, rules = find_week(week), open_course(course_folder(gradebook)), find_rules(course, find_weeks())
    if (there.root / SAMPLE).exists():
        raise LabError(
            f"{there.root} is the second marker's course directory: `grade second {found.name} --to {there.root}` "
            "fills it, with the sample alone"
        )
    with _watch() as progress:
        report = put(there, found, marks, files=files_of(submissions, found), rules=rules, progress=progress)
    here = list(all_marks(marks, found.name))
    waits = pending(found, entries_of(submissions, found), here)
    for sentence in (
        *report.sentences(),
        *waits.told(found),
        *slips(rules, found, marks, submissions, here=[mark.student for mark in here]),
    ):
        typer.echo(printable(sentence))
    raise typer.Exit(1 if report.human else 0)


@contextlib.contextmanager
def _watch() -> Iterator[Callable[[int, int, str], None]]:
    """A progress line on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from grading.intake.names import shown

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total, student: None
        return
    with Progress(
        TextColumn("loading"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
    ) as bar:
        line = bar.add_task("", total=None)
        yield lambda done, total, student: bar.update(line, total=total, completed=done, description=shown(student, 40))
