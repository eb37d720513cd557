"""`grade doctor`, `grade run` and `grade seed`: what a person sees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Marks = Annotated[Path, typer.Option("--marks", metavar="DIR", help="Where marks are kept.")]
WeekName = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command()(doctor)
    app.command()(run)
    app.command()(seed)
    app.command()(demo)


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


def run(
    week: WeekName,
    submissions: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help=("Submissions: nbgrader's submitted/, a folder for each student, the zips of an LMS.")
        ),
    ] = Path("submitted"),
    marks: Marks = Path("marks"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Submissions at a time.")] = 1,
    student: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this student. Repeatable.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help=("With --student: grade once more with this seed, show the verdicts, and write nothing.")),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help=("Grade on the workers of this Dask scheduler, or on --jobs of them started here: local."),
        ),
    ] = None,
    unsandboxed: Annotated[
        bool,
        typer.Option(
            "--unsandboxed",
            help=("Run submissions with your own rights. Only for people whom you trust; every mark says so."),
        ),
    ] = False,
) -> None:
    """Grade submissions. Interrupted? The same command goes on. What has not changed is not graded again.

    Status 0: every submission has a complete mark. Status 1: a human must look at some; they are named.
    """
    from rich.console import Console

    from grading import run as running
    from grading.table import class_table, one, shown
    from labkit.errors import LabError

    console = Console()
    chosen = _week(week)
    if not submissions.exists():
        raise LabError(f"there is no folder {submissions}: name the submissions with --submissions DIR")
    how = running.UNSANDBOXED if unsandboxed else running.SANDBOXED
    if seed is not None:
        if not student or len(student) != 1:
            raise LabError(
                "--seed repeats one student's verdict: name the student with --student ID (the class's seed "
                "is made by the first run, and `grade seed` shows it)"
            )
        found = running.again(chosen, submissions, marks, student[0], seed, isolation=how)
        for mark in found:
            one(mark, chosen, console)
        raise typer.Exit(0 if all(mark.complete for mark in found) else 1)
    with shown(console) as told:
        report = running.run(
            chosen, submissions, marks, jobs=jobs, isolation=how, students=student or (), dask=dask, told=told
        )
    class_table(report, console)
    raise typer.Exit(0 if all(mark.complete for mark in report.all) and not report.unreadable else 1)


def seed(week: WeekName, marks: Marks = Path("marks")) -> None:
    """Show the class's seed, to be published after the deadline: `lab check WEEK --seed N` then repeats the data."""
    from grading.run import class_seed
    from labkit.errors import LabError

    own = marks / _week(week).name
    if not (own / ".seed.json").exists():
        raise LabError(f"{own} has no seed yet: the first `grade run {week}` makes it")
    typer.echo(class_seed(own))


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to put it all.")] = Path("runs/grading-demo"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Submissions at a time.")] = 2,
) -> None:
    """Release week 13, grade four submissions (reference, blank, wrong, hanging), and print the class's table."""
    from grading.demo import demo as run_demo

    run_demo(out, jobs)


def _week(name: str):
    from grading.tree import choose
    from labkit.checks.tasks import find_weeks

    source = find_weeks()[0].folder.parent
    return choose(source, [name])[0]
