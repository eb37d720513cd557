"""The `grade` command, for instructors. Each command imports what it needs when it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grading import packing
from grading.gradebook import commands as gradebook
from grading.intake import commands as intake
from grading.reports import commands as reports
from grading.rubric import commands as rubric
from grading.similar import commands as similar
from grading.typed import understandable
from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.checks.tasks import Week

app = typer.Typer(
    name="grade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="For instructors: hand out the labs, grade what comes back.",
)
Marks = Annotated[Path, typer.Option("--marks", metavar="DIR", help="Where marks are kept.")]
WeekName = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]
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


@app.command()
def run(
    week: WeekName,
    submissions: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Submissions: nbgrader's submitted/, a folder for each student, the zips of an LMS."
        ),
    ] = Path("submitted"),
    marks: Marks = Path("marks"),
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Submissions at a time; if several, one more while one only waits.")
    ] = 1,
    student: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this student. Repeatable.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="With --student: grade once more with this seed, show the verdicts, and write nothing."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Grade on the workers of this Dask scheduler, or on --jobs of them started here: local.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK",
            help="Judge only this task, of every attempt that has a mark: anew, or a stretch task. Repeatable.",
        ),
    ] = None,
    because: Annotated[
        str, typer.Option(metavar="TEXT", help="Why marks are made anew; it is kept with what changes.")
    ] = "",
    unsandboxed: Annotated[
        bool,
        typer.Option(
            "--unsandboxed",
            help="Run submissions with your own rights. Only for people whom you trust; every mark says so.",
        ),
    ] = False,
) -> None:
    """Grade submissions. Interrupted? The same command goes on. What has not changed is not graded again.

    Status 0: every submission has a complete mark. Status 1: a human must look at some; they are named.
    """
    from rich.console import Console

    gc.disable()  # what is imported stays, and torch is large
    try:
        from grading import run as running
    finally:
        gc.enable()
    from grading.table import class_table, one, shown
    from labkit.checks.tasks import find_week

    console = Console()
    chosen = find_week(week)
    _need(submissions, chosen)
    student = _called(student or (), submissions, chosen)
    how = running.UNSANDBOXED if unsandboxed else running.SANDBOXED
    if seed is not None:
        if task:
            raise LabError("--seed shows every task of one student's attempts, and --task judges anew: one of them")
        if not student or len(student) != 1:
            raise LabError(
                "--seed repeats one student's verdict: name the student with --student ID (the class's seed "
                "is made by the first run, and `grade seed` shows it)"
            )
        with shown(console) as told:
            found = running.again(chosen, submissions, marks, student[0], seed, isolation=how, told=told)
        for mark in found:
            one(mark, chosen, console)
        raise typer.Exit(0 if all(mark.complete for mark in found) else 1)
    for id in task or ():
        if id not in chosen or chosen.task(id).kind == "written":
            judged = ", ".join(one.id for one in chosen.tasks if one.kind != "written")
            raise LabError(
                f"--task {id}: "
                + (f"{id} is marked by a person" if id in chosen else f"{chosen.name} has no task of this number")
                + f"; tests judge {judged}"
            )
    if task and dask is not None:
        raise LabError("--task works on this machine: leave --dask away")
    with shown(console) as told:
        report = running.run(
            chosen, submissions, marks, jobs=jobs, isolation=how, students=student, tasks=task or (),
            because=because, dask=dask, told=told,
        )  # fmt: skip
    class_table(report, console)
    raise typer.Exit(0 if all(mark.complete for mark in report.all) and not report.unreadable else 1)


def _need(submissions: Path, week: Week) -> None:
    """LabError if nothing was collected yet, of this week either, or if this is not the class's folder."""
    from grading.here import not_the_class
    from grading.intake.pending import refuse_other_weeks

    not_the_class(submissions)
    if not submissions.exists():
        raise LabError(
            f"there is no folder {submissions}: `grade collect {week.name} --from DOWNLOAD.zip` makes it, in the "
            "class's folder; --submissions DIR names another one"
        )
    refuse_other_weeks(submissions, week)


def _called(students: Sequence[str], submissions: Path, week: Week) -> list[str]:
    """The ids under which these students' hand-ins are kept: [ids] in course.toml may call them otherwise."""
    from grading.intake.find import find_submissions
    from grading.intake.policy import find_rules
    from labkit.checks.tasks import find_weeks

    if not students:
        return []
    rules = find_rules(None, find_weeks())
    here = {entry.student for entry in find_submissions(submissions, week)}
    return [rules.among(student, here) for student in students]


@app.command()
def why(
    week: WeekName,
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The student's id.")],
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this task: 13.4.")] = None,
    marks: Marks = Path("marks"),
    gradebook: Annotated[Path | None, typer.Option(metavar="DIR", help="nbgrader's course directory.")] = None,
    course: Annotated[Path | None, typer.Option(metavar="FILE", help="The rules. Default: course.toml.")] = None,
) -> None:
    """Answer a student's question from the record: attempts, points, diagnoses, points by hand, and every regrade."""
    from rich.console import Console

    from grading.gradebook.course import course_folder
    from grading.intake.policy import find_rules
    from grading.reports.record import show
    from labkit.checks.tasks import find_week, find_weeks

    weeks = find_weeks()
    show(find_week(week, weeks), student, task, marks, course_folder(gradebook), find_rules(course, weeks), Console())


@app.command()
def seed(
    week: WeekName,
    marks: Marks = Path("marks"),
    course: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Deadlines and extensions. Default: course.toml, if it is here.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also while somebody may still hand in.")] = False,
) -> None:
    """Show the class's seed, to be published once nobody can hand in any more: `lab check WEEK --seed N` then repeats
    the data."""
    from grading.intake.policy import find_rules, refuse_while_open
    from grading.run import class_seed
    from labkit.checks.tasks import find_week, find_weeks

    weeks = find_weeks()
    found = find_week(week, weeks)
    own = marks / found.name
    if not (own / ".seed.json").exists():
        raise LabError(f"{own} has no seed yet: the first `grade run {week}` makes it")
    refuse_while_open(find_rules(course, weeks), found.name, "the seed", anyway)
    typer.echo(class_seed(own))


@app.command()
def race(
    week: WeekName,
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="Submissions, as for `grade run`.")] = Path(
        "submitted"
    ),
    marks: Marks = Path("marks"),
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write the class's table there too.")] = None,
    who: Annotated[bool, typer.Option("--who", help="Tell also who is who, and who did not finish and why.")] = False,
) -> None:
    """Run the week's race for everybody in the sandbox, and show the class's table, by pseudonym.

    Status 1: somebody's entry did not finish.
    """
    from rich.console import Console
    from rich.text import Text

    from grading import race as racing
    from grading.run import class_seed
    from labkit.checks.tasks import find_week

    console, chosen = Console(), find_week(week)
    _need(submissions, chosen)
    (marks / chosen.name).mkdir(parents=True, exist_ok=True)
    with console.status("racing ...") as status:
        ranked, out = racing.race(
            chosen, submissions, class_seed(marks / chosen.name), lambda student: status.update(f"racing: {student}")
        )
    if not ranked and not out:
        raise LabError(f"nobody handed in an entry to the race of {chosen.name}")
    shown = racing.class_table(chosen, ranked)
    console.print(shown)
    if to is not None:
        with to.open("w", encoding="utf-8") as file:
            Console(file=file, width=120).print(shown)
    if who:
        for placed in (*ranked, *out):
            console.print(Text(f"{placed.pseudonym}: {placed.student}" + (f": {placed.why}" if placed.why else "")))
    elif out:
        console.print(f"{len(out)} did not finish: --who tells who, and why.")
    raise typer.Exit(1 if out else 0)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to put it all.")] = Path("runs/grading-demo"),
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Submissions at a time.")] = 2,
) -> None:
    """Release week 13, grade four submissions (reference, blank, wrong, hanging), and print the class's table."""
    from grading.demo import demo as run_demo

    run_demo(out, jobs)


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
