"""`grade pack`: what leaves for another platform, in its own form. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grading.reports.options import Course, Gradebook, Marks, Submissions, Week


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    pack = typer.Typer(no_args_is_help=True, help="What leaves for another platform, in the form that it takes.")
    pack.callback()(lambda: None)
    pack.command(name="feedback")(feedback)
    app.add_typer(pack, name="pack")


def feedback(
    week: Week,
    like: Annotated[
        list[Path],
        typer.Option(
            "--like",
            metavar="DOWNLOAD.zip",
            help="The bulk download of the hand-ins, as Canvas or Moodle gave it: it tells how files must be called. "
            "Repeatable.",
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.zip", help="The archive to upload.")],
    pages: Annotated[Path, typer.Option("--feedback", metavar="DIR", help="Where `grade feedback` put pages.")] = Path(
        "feedback"
    ),
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Pack the feedback pages for the upload to Canvas or Moodle. Status 1: somebody is left out, and is named."""
    from grading.here import not_the_students
    from grading.intake.names import some
    from grading.intake.namesakes import of_week
    from grading.intake.pending import entries_of
    from grading.intake.policy import find_rules
    from grading.intake.roster import of_rules, strangers
    from grading.reports import page
    from grading.reports.feedback import path_of, stamp
    from grading.reports.handback import pack
    from grading.reports.one_week import again, class_of, waiting
    from labkit.checks.tasks import find_weeks

    not_the_students(to)
    found, here = class_of(week, marks, gradebook, course)
    rules = of_week(find_rules(course, find_weeks()), submissions, found)
    groups = {entry.student: entry.group for entry in entries_of(submissions, found) if entry.group}
    who = of_rules(rules)
    unknown = {one for one, _ in strangers([one.student for one in here], who, rules)} if who is not None else set()
    packed = pack(found, here, pages, like, to, rules, groups, unknown)
    older = [
        one.student
        for one in here
        if (page_of := path_of(pages, found, one.student)).is_file() and stamp(one).encode() not in page_of.read_bytes()
    ]
    if older:
        packed.told.append(f"{some(older)}: the page is not of the points of now, run `grade feedback` again")
    packed.told += [*waiting(found, submissions, marks).told(found), *again(here)]
    for sentence in packed.told:
        typer.echo(sentence)
    way = {
        "Moodle": "the assignment, Grading action, Upload multiple feedback files in a zip",
        "Canvas": "the assignment, Re-upload submissions",
    }[packed.system]
    typer.echo(f"{to} holds {page.count(len(packed.students), 'page')}; in {packed.system}: {way}")
    raise typer.Exit(1 if packed.told else 0)
