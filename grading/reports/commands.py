"""`grade feedback`, `grade report`, `grade export`, `grade forget`. Each imports what it needs when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Week = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]
Marks = Annotated[Path, typer.Option("--marks", metavar="DIR", help="Where `grade run` put the marks.")]
Submissions = Annotated[Path, typer.Option("--submissions", metavar="DIR", help="What was handed in.")]
Gradebook = Annotated[
    Path | None,
    typer.Option(
        "--gradebook",
        metavar="DIR",
        help="nbgrader's course directory: points and comments by hand come from there. Default: this folder, or "
        "./gradebook.",
    ),
]

Course = Annotated[
    Path | None,
    typer.Option(
        "--course",
        metavar="FILE",
        help="Which attempt counts, deadlines, extensions. Default: course.toml, if it is here.",
    ),
]


class Format(StrEnum):
    csv = "csv"
    canvas = "canvas"


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command(name="feedback")(feedback)
    app.command(name="report")(report)
    app.command(name="export")(export)
    app.command(name="forget")(forget)


def feedback(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A page for each student: DIR/STUDENT/WEEK.html.")],
    student: Annotated[str | None, typer.Option(metavar="ID", help="Only this student's page.")] = None,
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
    printed: Annotated[
        bool,
        typer.Option(
            help=(
                "Show also what a student's code printed where it failed. It may have printed hidden data: only once "
                "nobody can hand in any more."
            )
        ),
    ] = False,
) -> None:
    """Write each student's page: points, why not all of them, own pictures, comments by hand, what to do next."""
    from rich.progress import track

    from grading.reports.feedback import files_of, path_of, write_pages

    found, here = _class(week, marks, gradebook, course)
    if student is not None:
        here = _only(here, student)
    pages = write_pages(found, here, to, files_of(submissions, found), printed=printed)
    for _ in track(pages, "pages", total=len(here), transient=True, disable=not _terminal()):
        pass
    unsure = sum(not s.settled for s in here)
    typer.echo(
        f"{len(here)} {'page is' if len(here) == 1 else 'pages are'} in {to}, for example "
        f"{path_of(to, found, here[0].student)}"
    )
    if unsure:
        typer.echo(
            f"{unsure} of them {'says' if unsure == 1 else 'say'} that a human will look: `grade report {week}` "
            "lists who and why"
        )


def report(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The page: one self-contained file.")],
    marks: Marks = Path("marks"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Draw the class's page, what it has not understood first, and print its short form."""
    from rich.console import Console

    from grading.reports.class_page import render, write_page
    from grading.reports.overview import overview

    seen = overview(*_class(week, marks, gradebook, course))
    write_page(seen, to)
    render(seen, Console())
    typer.echo(f"The page is {to}")


def export(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.csv", help="The table.")],
    format: Annotated[
        Format, typer.Option(help="csv: everything; canvas: what Canvas' gradebook imports.")
    ] = Format.csv,
    assignment: Annotated[
        str | None,
        typer.Option(
            metavar="TITLE",
            help="canvas: the assignment's title there, as its own export has it, for example 'Week 13 (4711)'.",
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="canvas: the gradebook that Canvas exported; it tells Canvas' own numbers of the students.",
        ),
    ] = None,
    automatic: Annotated[
        bool, typer.Option("--automatic", help="canvas: the automatic points alone, before anything is graded by hand.")
    ] = False,
    marks: Marks = Path("marks"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Write the class's points as CSV, or as the CSV that Canvas imports."""
    from grading.reports import canvas
    from grading.reports import export as table

    if format is not Format.canvas and (assignment or roster or automatic):
        raise typer.BadParameter("--assignment, --roster and --automatic belong to --format canvas")
    found, here = _class(week, marks, gradebook, course)
    if format is Format.canvas:
        written = canvas.export(found, here, to, assignment=assignment, roster=roster, automatic_only=automatic)
        for sentence in written.told:
            typer.echo(sentence)
        typer.echo(f"{written.lines} of {len(here)} students are in {to}; in Canvas: Grades, Import")
        return
    table.export(found, here, to)
    open_ = sum(s.total is None for s in here)
    typer.echo(
        f"{len(here)} students are in {to}" + (f"; {open_} have no total yet, their state says why" if open_ else "")
    )


def forget(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The student's id.")],
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    feedback: Annotated[Path, typer.Option("--feedback", metavar="DIR", help="Where feedback was put.")] = Path(
        "feedback"
    ),
    gradebook: Gradebook = None,
    course: Course = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove everything that is stored of one student: marks, what was handed in, feedback, rows in the gradebook.

    Shows first what will go, and asks. Interrupted? The same command removes the rest. Status 1: something is left that
    only you can remove, or could not be searched.
    """
    from grading.gradebook.course import course_folder, course_root
    from grading.intake.policy import FILE
    from grading.reports.forget import find, size
    from grading.reports.forget import forget as remove
    from grading.reports.page import count, one_line
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError

    weeks, book = find_weeks(), course_folder(gradebook)
    places = find(
        student, weeks, marks=marks, submissions=submissions, feedback=feedback, course=book, rules=course or Path(FILE)
    )
    if not places.found and not places.told and not places.unread:
        raise LabError(
            f"nothing is stored of {student!r} here: is the id written as `grade run` shows it? Other "
            "folders: --marks, --submissions, --feedback, --gradebook"
        )
    if course_root(book) is None:
        typer.echo("No course directory of nbgrader's is here or in ./gradebook, so none was searched: --gradebook DIR")
    if places.found:
        typer.echo(f"Of {one_line(student)} there is:")
    for place in places.found:
        files, total = (0, 0) if place.is_rows else size(place.path)
        much = count(place.rows, "row") if place.is_rows else f"{count(files, 'file')}, {total / 1000:,.1f} kB"
        typer.echo(f"  {place.what}: {place.path} ({much})")
    if places.found and not yes:
        typer.confirm("Remove all of it for good?", abort=True)
    for place in remove(student, places):
        typer.echo(f"removed: {place.what}, {place.path}")
    for sentence in (*places.told, *places.unread):
        typer.echo(f"left to you: {sentence}")
    raise typer.Exit(1 if places.told or places.unread else 0)


def _class(week: str, marks: Path, gradebook: Path | None, course: Path | None) -> tuple:
    """(the week, where each student stands in it)."""
    from grading.gradebook.course import course_folder
    from grading.intake.policy import find_rules
    from grading.reports.standing import standings
    from labkit.checks.tasks import find_week, find_weeks

    found = find_week(week)
    return found, standings(found, marks, course_folder(gradebook), find_rules(course, find_weeks()))


def _only(standings: list, student: str) -> list:
    from labkit.checks.tasks import nearest
    from labkit.errors import LabError

    found = [s for s in standings if s.student == student]
    if not found:
        raise LabError(f"there is no mark of {student!r}{nearest(student, [s.student for s in standings][:30])}")
    return found


def _terminal() -> bool:
    import sys

    return sys.stderr.isatty() and sys.stdout.isatty()
