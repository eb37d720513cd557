"""`lab check`, `lab race`, `lab open` and `lab handin`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

WeekName = Annotated[str, Argument(metavar="WEEK", help="The week, for example week13.")]
Names = Annotated[list[str] | None, Argument(metavar="TASK|WEEK", help="13.4, week13; none: the whole course.")]


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `lab` application."""
    app.command(name="check")(check)
    app.command(name="race")(race)
    app.command(name="open")(open_week)
    app.command(name="handin")(handin)


def check(
    names: Names = None,
    seed: Annotated[int | None, Option(help="Use this seed's random data, to repeat a verdict.")] = None,
    deadline: Annotated[float | None, Option(min=0.1, help="Seconds that one call may take. Default: 5.")] = None,
    show_all: Annotated[bool, Option("--all", help="Show the diagnosis of every failing case.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run your functions on real ranks and show which points they earn, and why not all.

    Status 0: every automatic point of what was checked is earned. Status 1: not every one.
    """
    from labkit.checks.results import check as show

    outcome = show(*(names or ()), seed=seed, deadline=deadline, show_all=show_all, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), indent=2))
    raise typer.Exit(0 if outcome.full else 1)


def race(
    week: WeekName = "week13",
    name: Annotated[str | None, Option(help="What to call this attempt in your table.")] = None,
    out: Annotated[Path, Option(help="Where your table is kept.")] = Path("runs/race"),
) -> None:
    """Run your entry in a week's race, on the virtual wire, and show your table. Status 1: it did not finish."""
    from labkit.checks.race import command
    from labkit.checks.tasks import find_week

    raise typer.Exit(command(find_week(week), name, out))


def open_week(week: WeekName) -> None:
    """Open a week's notebook in JupyterLab. End it with Ctrl-C."""
    import importlib.util
    import subprocess
    import sys

    from labkit.checks.tasks import find_week
    from labkit.errors import LabError
    from labkit.record.files import jupyter_may_start

    found = find_week(week)
    if not found.notebook.exists():
        raise LabError(f"{found.name} has no notebook {found.notebook.name}")
    if importlib.util.find_spec("jupyterlab") is None:
        raise LabError("JupyterLab is not installed: pip install jupyterlab")
    jupyter_may_start()
    raise typer.Exit(subprocess.run([sys.executable, "-m", "jupyterlab", str(found.notebook)]).returncode)


def handin(
    week: WeekName,
    more: Annotated[
        list[Path] | None, Option("--with", metavar="PATH", help="A file or folder more. Repeatable.")
    ] = None,
    to: Annotated[Path | None, Option(metavar="FILE", help="The zip. Default: WEEK.zip, here.")] = None,
) -> None:
    """Pack what you wrote in a week into one zip to hand in, with a manifest: nobody has to guess what is what."""
    from labkit.checks.handin import hand_in
    from labkit.checks.tasks import find_week

    found = find_week(week)
    place = to or Path(f"{found.name}.zip")
    sizes = hand_in(found, place, more or ())
    modules = {f"{found.package}/{name.replace('.', '/')}.py" for task in found.tasks for name in task.modules}
    wanted = [*sorted(modules), f"{found.package}/{found.notebook.name}", f"{found.package}/predictions.jsonl"]
    for name, size in sizes.items():
        typer.echo(f"  {name}  ({size:,} bytes)")
    for name in wanted:
        if name not in sizes:
            typer.echo(f"{name} is not there, and is not in it")
    typer.echo(f"{place}: {len(sizes)} files. Hand in this one file, as it is.")
