"""`grade status`, `grade feedback`, `grade report`, `grade forget`. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grading.reports.exporting import export
from grading.reports.one_week import again, class_of, missing, waiting
from grading.reports.options import Course, Gradebook, Marks, RosterFile, Submissions, Week


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command(name="status")(status)
    app.command(name="feedback")(feedback)
    app.command(name="report")(report)
    app.command(name="export")(export)
    app.command(name="forget")(forget)


def status(
    week: Annotated[
        str | None, typer.Argument(metavar="WEEK", help="The week. Without one: a line for each week.")
    ] = None,
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
    roster: RosterFile = None,
) -> None:
    """Show in one table what has come, is graded, waits for a person, is late or missing."""
    from datetime import UTC, datetime

    from rich.console import Console

    from grading.gradebook.course import course_folder
    from grading.here import not_the_class
    from grading.intake.policy import find_rules
    from grading.reports import status as standing
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(submissions, marks)
    weeks, console = find_weeks(), Console()
    rules, book = find_rules(course, weeks), course_folder(gradebook)
    shown = 0
    for one in [find_week(week)] if week else weeks:
        found = standing.status(one, submissions, marks, book, rules, datetime.now(UTC), roster)
        if week and (found.rows or submissions.exists() or marks.exists() or rules.deadlines):
            shown += 1
            standing.show(found, console)
        elif not week and (found.come or found.graded or one.name in rules.deadlines):
            shown += 1
            console.print(standing.summary(found), highlight=False, soft_wrap=True)
    if not shown:
        console.print(
            f"No class is here: {submissions} holds no hand-in, {marks} no marks, and no course.toml a deadline. Type "
            "it in the class's folder, or name --submissions and --marks.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


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
    anyway: Annotated[bool, typer.Option("--anyway", help="Also while somebody may still hand in.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Write beside each page the text of a mail: DIR/STUDENT/WEEK.txt.")
    ] = False,
) -> None:
    """Write each student's page: points, why not all of them, own pictures, comments by hand, what to do next.

    Refused while anybody may still hand in, extensions included: pages tell of hidden data."""
    from rich.progress import track

    from grading.intake.names import some
    from grading.intake.policy import find_rules, refuse_while_open
    from grading.marks import unquoted
    from grading.reports import mail, page
    from grading.reports.feedback import files_of, path_of, write_pages
    from labkit.checks.tasks import find_week, find_weeks

    weeks = find_weeks()
    refuse_while_open(find_rules(course, weeks), find_week(week, weeks).name, "feedback", anyway)
    found, here = class_of(week, marks, gradebook, course)
    if student is not None:
        here = _only(here, find_rules(course, weeks).among(student, [one.student for one in here]))
    pages = write_pages(found, here, to, files_of(submissions, found), printed=printed)
    for _ in track(pages, "pages", total=len(here), transient=True, disable=not _terminal()):
        pass
    for one in here:
        beside = path_of(to, found, one.student).with_suffix(".txt")
        if text or beside.exists():  # an older mail would speak of other points than its page
            page.write(beside, mail.text(found, one))
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
    if later := sum(bool(one.ungraded) for one in here):
        typer.echo(
            f"{later} of them {'says' if later == 1 else 'say'} that points by hand come later: "
            f"`grade status {found.name}` tells whose"
        )
    waits = waiting(found, submissions, marks)
    if bare := [] if student else waits.new:
        typer.echo(f"No page for {some(bare)}: handed in, and not graded yet")
    known = {path_of(to, found, one.student) for one in here}
    if student is None and (old := sorted(path for path in to.glob(f"*/{found.name}.html") if path not in known)):
        whose = some([unquoted(path.parent.name) for path in old])
        typer.echo(f"A page of before is there of {whose}, who has no mark now: delete it before you hand {to} out")
    for sentence in (*waits.told(found), *again(here)):
        typer.echo(sentence)


def report(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The page: one self-contained file.")],
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Draw the class's page, what it has not understood first, and print its short form."""
    from rich.console import Console

    from grading.reports.class_page import render, write_page
    from grading.reports.overview import overview

    found, here = class_of(week, marks, gradebook, course)
    seen = overview(found, here)
    seen.absent = [one.student for one in missing(found, here, submissions, course, None)[2]]
    write_page(seen, to)
    render(seen, Console())
    for sentence in waiting(found, submissions, marks).told(found):
        typer.echo(sentence)
    typer.echo(f"The page is {to}")


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
    from grading.marks import unquoted
    from grading.reports.forget import find, size
    from grading.reports.forget import forget as remove
    from grading.reports.page import count, one_line
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError
    from labkit.strict import nearest

    weeks, book = find_weeks(), course_folder(gradebook)
    places = find(
        student, weeks, marks=marks, submissions=submissions, feedback=feedback, course=book, rules=course or Path(FILE)
    )
    if not places.found and not places.told and not places.unread:
        known = sorted({unquoted(path.name) for week in weeks for path in _folders(marks, submissions, week.name)})
        raise LabError(
            f"nothing is stored of {student!r} here{nearest(student, known) if known else ''}; other folders: --marks, "
            "--submissions, --feedback, --gradebook"
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
    for place in remove(places):
        typer.echo(f"removed: {place.what}, {place.path}")
    for sentence in (*places.told, *places.unread):
        typer.echo(f"left to you: {sentence}")
    raise typer.Exit(1 if places.told or places.unread else 0)


def _folders(marks: Path, submissions: Path, week: str) -> list[Path]:
    """The students' own folders of a week."""
    places = (marks / week, submissions / week)
    return [path for place in places if place.is_dir() for path in place.iterdir() if path.is_dir()]


def _only(standings: list, student: str) -> list:
    from labkit.errors import LabError
    from labkit.strict import nearest

    found = [s for s in standings if s.student == student]
    if not found:
        raise LabError(f"there is no mark of {student!r}{nearest(student, [s.student for s in standings][:30])}")
    return found


def _terminal() -> bool:
    import sys

    return sys.stderr.isatty() and sys.stdout.isatty()
