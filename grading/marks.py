"""Marks in files: what grading one submission gave. One JSON file an attempt, written whole or not at all.

    marks/week13/anna/1.json        the first attempt of anna; an id is quoted where it could not be a folder's name

`grade run` writes them; the gradebook, feedback, reports and export read them and nothing else. A mark holds no
expected value of a hidden case and nothing of another student.

`key` is a hash of (submission, tests, seed, environment): a mark whose key is still right need not be made again.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from grading.files import put
from labkit.errors import LabError

VERSION = 1
SANDBOXED, UNSANDBOXED = "bubblewrap", "none"
LOCK = ".lock"  # in a week's folder: held while its marks are made
MAX_NAME = 200  # bytes of a folder's name


class BadId(LabError):
    """A student's id that fits no folder's name. Who goes through a class tells it, and goes on."""


@dataclass
class Mark:
    """The automatic part of one attempt's grade.

    student     the id of the submission's folder, as given (any text)
    assignment  "week13"
    attempt     1, 2, ...
    received    ISO 8601 time at which it was handed in, with its offset; "" if unknown
    key         see above; `submission`, `tests`, `environment` are the hashes it is made of (hex), `seed` the class's
    isolation   SANDBOXED, or UNSANDBOXED: then the student's code could have done anything, also to this mark
    points      automatic points earned; `possible`: of how many. Written tasks are in `tasks` with points None
    complete    False: the grader itself failed somewhere (`attention` says where). Not a zero: a human must look
    attention   sentences for the instructor
    notes       sentences for the student, about the submission as a whole ("there is no collectives.py: ...")
    missing     file of a graded module that was not handed in -> a file that looks like it, or "":
                {"collectives.py": "collectives (1).py"}
    unanswered  ids of written tasks to which nothing was handed in: no notebook, or its cells as they were handed out
    tasks       as Outcome.to_json gives them: id, title, kind, cell, points, possible, cases
    group       the group that handed it in: one person's points are the others', see reports/together.py
    seconds     wall clock; core_seconds: of all its processes and the judge
    """

    student: str
    assignment: str
    attempt: int = 1
    received: str = ""
    key: str = ""
    submission: str = ""
    tests: str = ""
    environment: str = ""
    seed: int = 0
    isolation: str = SANDBOXED
    points: float = 0
    possible: float = 0
    complete: bool = True
    attention: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    core_seconds: float = 0.0
    finished: str = ""
    version: int = VERSION
    group: str = ""

    @property
    def cases(self) -> list[dict[str, Any]]:
        """All cases of all tasks: test, behaviour, verdict, points, possible, seconds, text, cause, printed."""
        return [case for task in self.tasks for case in task["cases"]]

    def verdicts(self) -> dict[str, int]:
        """How often each verdict came: {"passed": 40, "hung": 2}."""
        count: dict[str, int] = {}
        for case in self.cases:
            count[case["verdict"]] = count.get(case["verdict"], 0) + 1
        return count


def path_of(folder: Path, assignment: str, student: str, attempt: int) -> Path:
    """Where the mark of an attempt lies below a marks folder."""
    return folder / assignment / quoted(student) / f"{attempt}.json"


def quoted(student: str) -> str:
    """A student's id as one folder name: any text goes in and comes back; "." and ".." stay harmless. BadId if too
    long.

    Letters and digits of all scripts stay as they are, so that a person can read the name; everything else but a few
    signs is percent-quoted."""
    name = "".join(c if unicodedata.category(c)[0] in "LMN" else quote(c, safe=" @+,=~") for c in student)
    if not name.strip("."):
        return name.replace(".", "%2E") or "%00"
    if len(name.encode()) > MAX_NAME:
        raise BadId(
            f"{student[:40]!r}... has {len(student)} characters, too many for a folder's name: give the student a "
            f"shorter id, in [ids] of course.toml or by renaming"
        )
    return name


def checked(student: str) -> str:
    """The id. BadId if it fits no folder's name."""
    quoted(student)
    return student


def unquoted(name: str) -> str:
    """The inverse of `quoted`."""
    return "" if name == "%00" else unquote(name)


def write(folder: Path, mark: Mark) -> Path:
    """Put a mark in its place, whole: a reader sees the old one or the new one, also after a kill."""
    path = path_of(folder, mark.assignment, mark.student, mark.attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(mark), indent=1, ensure_ascii=False, allow_nan=False)
    put(path, text.encode("utf-8", "backslashreplace"), 0o600)
    return path


def read(path: Path) -> Mark:
    """A mark from its file. LabError if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise LabError(
                f"{path} is a mark of version {data['version']}, and this grader reads version {VERSION}: "
                "run `grade run` again"
            )
        return Mark(**data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{path} is not a mark ({type(error).__name__}: {error}): delete it, and run `grade run` again"
        ) from None


def all_marks(folder: Path, assignment: str) -> Iterator[Mark]:
    """All marks of an assignment, by student and attempt. LabError for a broken file."""
    root = folder / assignment
    if not root.is_dir():
        raise LabError(f"there are no marks of {assignment} in {folder}: run `grade run {assignment}` first")
    for student in sorted(root.iterdir()):
        if student.is_dir():
            for path in sorted((p for p in student.glob("*.json") if p.stem.isdigit()), key=lambda p: int(p.stem)):
                yield read(path)
