"""`grade similar`. It imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grading.typed import fraction


def add_commands(app: typer.Typer) -> None:
    """Register the command with the `grade` application."""
    app.command()(similar)


def similar(
    week: Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The page: one self-contained file.")],
    submissions: Annotated[Path, typer.Option(metavar="DIR", help="What was handed in.")] = Path("submitted"),
    earlier: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="An earlier year's class folder, or its submitted/. Repeatable."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            callback=fraction,
            help="Show pairs that share so much of the smaller one, as a fraction. Default: what was measured.",
        ),
    ] = None,
) -> None:
    """Find pairs of hand-ins that share more than the given code and the class's habits explain, side by side.

    The functions of the tasks alone are compared, as syntax trees, of every attempt. The course's own solutions take
    part. Nothing is run, and no mark is changed.
    """
    import importlib.util
    from dataclasses import replace

    from rich.console import Console
    from rich.text import Text

    from grading.intake.find import find_submissions
    from grading.intake.groups import group_name
    from grading.intake.load import load
    from grading.intake.pending import refuse_other_weeks
    from grading.reports.page import count
    from grading.run import reference_submission
    from grading.similar import compare, page
    from labkit.checks.tasks import find_week
    from labkit.errors import LabError

    if importlib.util.find_spec("copydetect") is None:
        raise LabError("copydetect is not installed: run `make grading`, or pip install copydetect==0.5.0")
    found, console, least = find_week(week), Console(), compare.SHARE if share is None else share

    def here():
        refuse_other_weeks(submissions, found)
        for folder, year in ((submissions, ""), *(_year(one, found.name) for one in earlier or ())):
            for entry in find_submissions(folder, found):  # of a group's members none has copied from another
                whose = group_name(entry.group) if entry.group else entry.student
                yield load(replace(entry, student=whose), found), year

    with console.status("reading ...") as status:
        pairs, works, unread = compare.compare(
            found,
            here,
            share=least,
            ours=reference_submission(found),  # type: ignore[arg-type]
            progress=lambda who: status.update(f"reading {who}"),
        )
    page.write(found, pairs, len(works), unread, least, to)
    for pair in pairs[:20]:
        most = f"most alike: {pair.functions[0][0]}, {pair.functions[0][1]:.0%}"
        console.print(Text(f"{pair.first.name} and {pair.second.name}: {pair.share:.0%}, {pair.shared} nodes; {most}"))
    alike = count(len(pairs), f"pair of {count(len(works), 'hand-in')} shares", f"pairs of {len(works)} hand-ins share")
    console.print(f"{alike} much; side by side in {to}", highlight=False)
    for student in unread:
        console.print(Text(f"{student}: none of the tasks' functions is finished, or can be read"))


def _year(folder: Path, week: str) -> tuple[Path, str]:
    """(where an earlier year's hand-ins of a week lie, what the year is called): the class's folder and what it keeps
    them in may be named, and a folder may hold one for each week."""
    whole = folder.resolve()
    named = whole.parent if whole.name == "submitted" else whole
    inside = folder / "submitted" if (folder / "submitted").is_dir() else folder
    return (inside / week if (inside / week).is_dir() else inside), named.name
