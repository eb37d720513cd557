"""The options that the commands of the reports share."""

from __future__ import annotations

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


RosterFile = Annotated[
    Path | None,
    typer.Option(
        "--roster",
        metavar="FILE.csv",
        help="Who is in the class: Canvas' exported gradebook, Moodle's grading worksheet, or a list of ids. Default: "
        "what \\[roster] in course.toml names.",
    ),
]
