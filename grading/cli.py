"""The `grade` command, for instructors: thirteen commands over one class. Each imports what it needs when it runs."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grading import commands
from grading.intake.names import count, printable, some
from grading.options import HERE, Anyway, Folder, Unsandboxed, WeekName, blocking, opened, say, understandable
from labkit.errors import LabError, run_command

app = typer.Typer(
    name="grade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="For instructors: hand out the labs, grade what comes back.",
)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The class's folder, a new one or one that is there.")],
    roster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Who is in the class: Canvas' exported gradebook, Moodle's grading worksheet, Gradescope's "
            "roster, Brightspace's grades, or ids, one a line. "
            "Again with a newer one: who is new, and who left.",
        ),
    ] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="The time zone of a new class: Europe/Berlin.")] = "",
    exchange: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder that students share with you, if they type `nbgrader submit`."),
    ] = None,
    migrate: Annotated[
        Path | None, typer.Option(metavar="OLD", help="Take over a class's folder of the former program.")
    ] = None,
) -> None:
    """Make a class from its roster, or take a newer roster into one."""
    from grading.here import not_the_course
    from grading.marking.course import FOLDER, make
    from grading.register.classes import ROSTER, init_class, open_class

    not_the_course(folder)
    if migrate is not None:
        from grading.register.migrate import migrate as take_over

        say(take_over(migrate, folder, roster, zone))
    else:
        if roster is None and not (folder / ROSTER).is_file():
            raise LabError(f"who is in the class? grade init {folder} --roster FILE --zone Europe/Berlin")
        made = init_class(folder, roster or folder / ROSTER, zone)
        typer.echo(
            f"{folder.resolve().name}: {count(made.stay + len(made.new), 'student')}, {len(made.new)} of them new"
        )
        if made.staff:
            typer.echo(f"no students, by their role in {roster} or without an id there: {some(made.staff, 20)}")
        if made.back:
            typer.echo(f"back, with all that they handed in: {', '.join(one.name for one in made.back)}")
        if made.left:
            typer.echo(f"left since, with all that they handed in: {', '.join(one.name for one in made.left)}")
        if made.given:
            typer.echo(f"given to whoever is new: {count(made.given, 'submission')} of before")
    if exchange is not None:
        with open_class(folder) as cls:
            say(make(cls.folder / FOLDER, cls.weeks, exchange=exchange)[1])


@app.command()
def release(
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="The student tree: a new folder, or one to upgrade.")
    ] = None,
    git: Annotated[
        Path | None,
        typer.Option(
            "--git",
            metavar="DIR",
            help="Instead: the student tree as a git repository of its own, one commit a release, for GitHub Classroom "
            "or GitLab. Students pull.",
        ),
    ] = None,
    weeks: Annotated[list[str] | None, typer.Argument(metavar="WEEK", help="The weeks to release; or: all.")] = None,
    solutions: Annotated[
        bool,
        typer.Option(
            "--solutions",
            help="Hand out these weeks' solutions, into solutions/ in the tree, and show the seeds of their hidden "
            "data, for `lab check WEEK --seed N`.",
        ),
    ] = False,
    anyway: Anyway = False,
    folder: Folder = HERE,
) -> None:
    """Make the student tree, or upgrade one: blanks in place of solutions, nothing of the instructors'.

    A file that was changed there is never overwritten: the new text goes beside it, as NAME.new. Interrupted? The same
    command goes on. Status 1: something there is a link in a folder's place, and nothing was put into it.
    """
    from grading import release as releasing
    from grading.register.classes import open_class
    from grading.register.deadlines import refuse_while_open
    from grading.repository import release_to_git
    from grading.run import class_seed
    from labkit.checks.tasks import find_week, find_weeks

    if (to is None) == (git is None):
        raise LabError("say where: --to DIR, a folder, or --git DIR, a repository of its own")
    known, seeds = find_weeks(releasing.COURSE), list[str]()
    weeks = [week.name for week in known] if weeks == ["all"] else weeks or []
    if solutions:
        if not weeks:
            raise LabError("--solutions: of which week? grade release week13 --to DIR --solutions")
        found = [find_week(name, known) for name in weeks]
        with open_class(folder, known) as cls:
            for week in found:
                if not anyway:
                    refuse_while_open(cls, week.name, "its solutions", shows="the answers")
                seeds.append(f"the seed of {week.name}: {class_seed(cls, week)}")
    handed = weeks if solutions else ()
    if git is not None:
        say([*release_to_git(git, weeks, solutions=handed), *seeds])
        return
    assert to is not None
    report = releasing.release(to, weeks, solutions=handed)
    say([*report.sentences(), *seeds])
    raise typer.Exit(1 if report.blocked else 0)


@app.command()
def collect(
    week: WeekName,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="DOWNLOAD [WORKSHEET.csv]",
            help="The platform's download of the submissions, and Moodle's grading worksheet, which has times and "
            "groups; or a folder, or nbgrader's exchange.",
        ),
    ],
    received: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="By when it was handed in, where there is no record: 2026-11-20T23:59+01:00."
        ),
    ] = None,
    folder: Folder = HERE,
) -> None:
    """Keep what was handed in. Again with a newer download: what is here already stays as it is.

    Status 1: something is to be looked at, and is named.
    """
    from rich.console import Console

    from grading.collect import command
    from grading.publish.platforms import keep_worksheet
    from grading.publish.status import tell

    tables = [path for path in files if path.suffix.lower() in (".csv", ".txt")]
    downloads = [path for path in files if path not in tables]
    if len(downloads) != 1 or len(tables) > 1:
        raise LabError(f"one download, and with Moodle its worksheet: grade collect {week} DOWNLOAD.zip WORKSHEET.csv")
    with opened(folder, week) as (cls, [found], _):
        failed = command(cls, found, downloads[0], tables[0] if tables else None, received)
        if tables:
            keep_worksheet(cls, found, tables[0])
        waits = blocking(cls, found)
        tell(waits, Console())
    raise typer.Exit(1 if waits or failed else 0)


@app.command()
def run(
    week: WeekName,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Submissions at a time; if several, one more while one only waits.")
    ] = 1,
    student: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Only this student's, or this submission. Repeatable.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="With --student: grade once more with this seed, show the verdicts, and keep nothing."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK",
            help="Judge only this task, of everybody who has a mark: again, or a stretch task. Repeatable.",
        ),
    ] = None,
    because: Annotated[
        str, typer.Option(metavar="TEXT", help="Why it is graded again; it is kept with what changes.")
    ] = "",
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Grade on the workers of this Dask scheduler, or on --jobs of them started here: local.",
        ),
    ] = None,
    unsandboxed: Unsandboxed = False,
    folder: Folder = HERE,
) -> None:
    """Grade submissions. Interrupted? The same command goes on. What has not changed is not graded again.

    Status 0: every submission has a complete mark. Status 1: a human must look at some; they are named.
    """
    from rich.console import Console

    from grading import run as running
    from grading.publish.status import tell as show_problems
    from grading.register.problems import MISNAMED, problems
    from grading.register.submissions import attempts
    from grading.table import class_table, one

    console = Console()
    tell = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    isolation = running.UNSANDBOXED if unsandboxed else running.SANDBOXED
    with opened(folder, week) as (cls, [found], _):
        if seed is not None and (task or len(student or ()) != 1):
            raise LabError("--seed repeats one student's verdicts: name one with --student, and leave --task away")
        for id in task or ():
            if id not in found or found.task(id).kind == "written":
                judged = ", ".join(each.id for each in found.tasks if each.kind != "written")
                why = "is marked by a person" if id in found else f"is no task of {found.name}"
                raise LabError(f"--task {id}: {id} {why}; tests judge {judged}")
        if task and dask is not None:
            raise LabError("--task works on this machine: leave --dask away")
        numbers = running.chosen_numbers(cls, found, student or ())
        if seed is not None:
            entries = [running.entry_of(cls, found, each) for each in attempts(cls, found.name) if each.id in numbers]
            marks = running.again(found, entries, seed, cls.folder / ".work", isolation=isolation, tell=tell)
            for mark in marks:
                one(mark, console)
            raise typer.Exit(0 if all(mark.complete for mark in marks) else 1)
        wishes = running.Wishes(numbers=numbers, tasks=tuple(task or ()), because=because, jobs=jobs, dask=dask,
                                isolation=isolation)  # fmt: skip
        report = running.run(cls, found, wishes, tell)
        class_table(report, console)
        show_problems([each for each in problems(cls, found) if each.kind == MISNAMED], console)
    raise typer.Exit(0 if all(mark.complete for mark in report.all) and not report.unreadable else 1)


app.command()(commands.mark)
app.command()(commands.publish)
app.command()(commands.status)
app.command()(commands.why)
app.command()(commands.who)
app.command()(commands.submission)
app.command()(commands.similar)
app.command()(commands.forget)


@app.command()
def doctor() -> None:
    """Say which isolation this machine gives, and what is missing with the fix.

    Status 0: submissions can be graded in a sandbox here. Status 1: they can not.
    """
    from rich.console import Console
    from rich.table import Table

    from grading.sandbox.isolation import checks

    console = Console()
    with console.status("trying ..."):
        found = list(checks())
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


@app.command(hidden=True)
def gradescope(
    week: WeekName,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.zip", help="The autograder to upload.")],
    unsandboxed: Unsandboxed = False,
    folder: Folder = HERE,
) -> None:
    """Pack the week's autograder for Gradescope: the same judge, the same seed as `grade run` here.

    The archive holds the solutions: it is for Gradescope's assignment settings and for nobody else.
    """
    from grading.gradescope.pack import pack
    from grading.here import not_the_students
    from grading.run import class_seed

    not_the_students(to)
    with opened(folder, week) as (cls, [found], _):
        many = pack(found, cls.weeks, to, class_seed(cls, found), unsandboxed=unsandboxed)
    size, points = to.stat().st_size / 1e6, found.points("auto")
    typer.echo(f"{to}: {count(many, 'file')}, {size:.1f} MB, {points:g} automatic points")
    typer.echo(
        "In Gradescope: a Programming Assignment, Configure Autograder; it holds the solutions, so send it nowhere"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `grade`. Errors that a user can fix are a sentence on stderr and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)

    def body() -> None:
        understandable(words)
        app(words)

    run_command("grade", body, printable, "interrupted; the same command goes on")


if __name__ == "__main__":
    main()
