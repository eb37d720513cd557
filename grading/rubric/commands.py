"""`grade rubric`, `grade second`, `grade agree`. Each imports what it needs when it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from grading.typed import fraction

Week = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]
Marks = Annotated[Path, typer.Option("--marks", metavar="DIR", help="Where `grade run` put the marks.")]
Gradebook = Annotated[
    Path | None,
    typer.Option(
        "--gradebook", metavar="DIR", help="nbgrader's course directory. Default: this folder, or ./gradebook."
    ),
]
Course = Annotated[
    Path | None, typer.Option("--course", metavar="FILE", help="\\[comments] and the rules. Default: course.toml.")
]


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command()(rubric)
    app.command()(second)
    app.command()(agree)


def rubric(
    week: Week,
    gradebook: Gradebook = None,
    course: Course = None,
    items_decide: Annotated[
        bool, typer.Option("--items-decide", help="Where formgrader has other points than the items, the items count.")
    ] = False,
) -> None:
    r"""Show the rubric's items, and turn what markers wrote by items in formgrader's comments into its points.

    A comment holds a line for each item, `2: 6 #units`; #units is a sentence of \[comments] in course.toml. Status 1:
    something is marked in a way that cannot be meant, and is told.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from grading.gradebook.course import course_folder, course_root, open_course
    from grading.gradebook.items import items
    from grading.intake.policy import find_rules
    from grading.reports.page import count
    from grading.rubric.apply import apply, written
    from labkit.checks.outcome import number
    from labkit.checks.tasks import find_week, find_weeks

    weeks, console = find_weeks(), Console()
    found, rules, folder = find_week(week, weeks), find_rules(course, weeks), course_folder(gradebook)
    done = apply(open_course(folder), found, rules, items_decide=items_decide) if course_root(folder) else None
    means = {(task.id, item.number): (mean, many) for task, item, mean, many in (done.means if done else ())}
    for task in written(found):
        console.print(Text(f"{task.id} {task.title}", "bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("item", "points", "mean", "answers", "what"):
            table.add_column(name, justify="left" if name == "what" else "right")
        for item in items(found, task):
            mean, many = means.get((task.id, item.number), (None, 0))
            shown = (f"{mean:.1f}", str(many)) if mean is not None else ("", "")
            table.add_row(str(item.number), f"{number(item.points)}", *shown, Text(item.title))
        console.print(table)
    for code, sentence in rules.comments.items():
        console.print(Text(f"#{code}: {sentence}"), soft_wrap=True)
    if done is None:
        console.print("There is no course directory here, so nobody has marked anything: --gradebook DIR")
        return
    for sentence in (*done.given, *done.told):
        console.print(Text(sentence), soft_wrap=True)
    console.print(
        f"{count(len(done.given), 'answer has', 'answers have')} points from their items now, {done.same} had them "
        f"already; {len(done.told)} to mend"
    )
    raise typer.Exit(1 if done.told else 0)


def second(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The second marker's course directory.")],
    share: Annotated[float, typer.Option(callback=fraction, help="How many of the hand-ins, as a fraction.")] = 0.2,
    marks: Marks = Path("marks"),
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="What was handed in.")] = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Make a course directory for a second marker, with a sample of the hand-ins and nothing that was given by hand."""
    from grading.gradebook.course import course_folder, open_course
    from grading.gradebook.load import files_of
    from grading.intake.policy import find_rules
    from grading.reports.page import count
    from grading.rubric.second import second as make
    from labkit.checks.tasks import find_week, find_weeks

    weeks = find_weeks()
    found, rules = find_week(week, weeks), find_rules(course, weeks)
    first = open_course(course_folder(gradebook))
    chosen = make(found, marks, to, first, share=share, files=files_of(submissions, found), rules=rules)
    typer.echo(
        f"{count(len(chosen), 'hand-in is', 'hand-ins are')} in {to}: cd {to}; jupyter lab; Formgrader, Manual Grading"
    )
    typer.echo(f"Then `grade rubric {week} --gradebook {to}`, and `grade agree {week} --second {to}`")


def agree(
    week: Week,
    other: Annotated[Path, typer.Option("--second", metavar="DIR", help="The second marker's course directory.")],
    gradebook: Gradebook = None,
    course: Course = None,
    marks: Marks = Path("marks"),
) -> None:
    """Show where two markers differ: by item, and the answers that they must settle.

    Status 1: there are such, or answers of the second's sample that one of the two has not marked yet.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from grading.gradebook.course import course_folder
    from grading.intake.policy import find_rules
    from grading.reports.canvas import names
    from grading.reports.page import count
    from grading.rubric.second import SETTLE, agreement
    from labkit.checks.outcome import number
    from labkit.checks.tasks import find_week, find_weeks

    weeks, console = find_weeks(), Console()
    found = agreement(find_week(week, weeks), course_folder(gradebook), other, find_rules(course, weeks), marks)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("task", "item", "answers", "first", "second", "distance", "equal", "kappa", "what"):
        table.add_column(name, justify="left" if name in ("task", "what") else "right")
    for task, item, many, one, two, distance, equal, kappa in found.items:
        shown = "–" if kappa is None else f"{kappa:.2f}"
        numbers = (f"{one:.1f}", f"{two:.1f}", f"{distance:.2f}", f"{equal:.0%}", shown)
        table.add_row(task.id, str(item.number), str(many), *numbers, Text(item.title))
    if found.items:
        console.print(table)
    for task, many, mean, most in found.totals:
        console.print(
            f"{task.id}: {count(many, 'answer')}, {mean:.2f} of {task.points:g} points apart in the mean, "
            f"{most:g} at most"
        )
    for student, task, one, two in found.settle:
        console.print(Text(f"{student}, {task.id}: {number(one)} and {number(two)}, to be settled"))
    for who, students, waits, where, changed, brings in (
        ("first", found.open[0], found.items_only[0], gradebook, found.other[0], "load"),
        ("second", found.open[1], found.items_only[1], other, found.other[1], "second"),
    ):
        if students:
            told = (
                f"not marked by the {who} yet: {len(students)} of {count(found.sample, 'answer')} ({names(students)})"
            )
            if waits:
                command = shlex.join(["grade", "rubric", week, *(["--gradebook", str(where)] if where else [])])
                told += f"; {waits} of them by items alone, of which `{command}` makes points"
            if changed:
                told += f"; another hand-in of {names(sorted(changed))} counts now: run `grade {brings}` again"
            console.print(Text(told), soft_wrap=True)
    unknown = f"; {len(found.lost)} of the sample are not there: run `grade second` again" if found.lost else ""
    console.print(
        f"{found.both} of the sample's {count(found.sample, 'answer')} marked by both, {len(found.settle)} of them to "
        f"be settled (more than {SETTLE:.0%} of a task's points apart){unknown}",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    if found.settle:
        console.print(
            "To settle one, change the items in the comment of the first marker, of the second or of both; then `grade "
            f"rubric {week} --items-decide`, for the second's with --gradebook {other}. The first's points count.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    raise typer.Exit(1 if found.settle or any(found.open) or found.lost else 0)
