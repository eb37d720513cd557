"""What the commands of `grade` share: options, the opened class, and what an instructor types out of habit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grading.intake.names import printable
from labkit.errors import LabError

if TYPE_CHECKING:
    from grading.register.problems import Problem
    from grading.register.schema import Class
    from labkit.checks.tasks import Week

Folder = Annotated[
    Path, typer.Option("--class", metavar="DIR", help="The class's folder, which `grade init` made. Default: this one.")
]
WeekName = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Also while somebody may still hand in.")]
Unsandboxed = Annotated[
    bool,
    typer.Option(
        "--unsandboxed",
        help="Run submissions with your own rights. Only for people whom you trust; every mark says so.",
    ),
]
HERE = Path(".")
FORMER = {
    "export": "grade publish WEEK writes the platform's table, all.csv and the term's table",
    "feedback": "grade publish WEEK writes the pages",
    "report": "grade publish WEEK writes the class's page",
    "pack": "grade publish WEEK writes upload.zip; Gradescope's archive: grade gradescope WEEK --to FILE.zip",
    "load": "grade mark WEEK opens formgrader and reads what was typed there; there is nothing to load",
    "course": "grade mark WEEK makes nbgrader's course directory; for its exchange: grade init DIR --exchange FOLDER",
    "rubric": "grade mark WEEK shows the rubric, and makes points of items in comments",
    "second": "two markers share formgrader: grade mark WEEK",
    "agree": "two markers share formgrader: grade mark WEEK",
    "seed": "grade release WEEK --to DIR --solutions shows the seed, once nobody can hand in any more",
    "rename": "grade submission NUMBER rename OLD NEW; grade status WEEK has the numbers",
    "withdraw": "grade submission NUMBER withdraw; grade status WEEK has the numbers",
    "retime": "grade submission NUMBER time TIME; grade status WEEK has the numbers",
    "race": "python -m grading.race, in the class's folder",
    "demo": "make demo",
}


@contextlib.contextmanager
def opened(folder: Path, week: str | None = None) -> Iterator[tuple[Class, list[Week], list[str]]]:
    """The class, the week (or all), and what was typed into formgrader and cannot be meant: what was typed since is
    read first, so that every command shows it."""
    from grading.marking.typed import read_back
    from grading.register.classes import open_class

    with open_class(folder) as cls:
        weeks = [cls.week(week)] if week else list(cls.weeks)
        yield cls, weeks, [sentence for one in weeks for sentence in read_back(cls, one)]


def say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        typer.echo(printable(sentence))


def blocking(cls: Class, week: Week) -> list[Problem]:
    from grading.register.problems import problems

    return [one for one in problems(cls, week) if one.blocks]


def understandable(words: Sequence[str]) -> None:
    """LabError for a command of the former program, and for a week in two words: click says only what it did not expect."""
    if words and words[0] in FORMER:
        raise LabError(f"`grade {words[0]}` is no command any more: {FORMER[words[0]]}")
    if {"--help", "-h"} & set(words):
        return
    for one, other in pairwise(words):
        if one.lower() == "week" and other.isdigit():
            raise LabError(f"a week's name is one word: week{other}")
