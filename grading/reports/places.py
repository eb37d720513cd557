"""Where something of one student lies: marks, what was handed in, feedback, nbgrader's folders and rows.

Only names are looked at. A place is found by what it is called, so one that was half removed is found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from grading.intake.policy import Rules
from grading.marks import quoted
from grading.reports import page
from grading.reports.by_hand import course_directory
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import load_toml

if TYPE_CHECKING:
    from grading.gradebook.course import Course


@dataclass(frozen=True)
class Place:
    """A file or folder that is wholly this student's, or their rows in nbgrader's gradebook (`path` is the database's
    folder then)."""

    what: str
    path: Path
    rows: int = 0

    @property
    def is_rows(self) -> bool:
        return self.rows > 0


@dataclass
class Places:
    """All of them. `told`: what only a person can do, and what could not be looked at."""

    found: list[Place] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    course: Course | None = None

    def add(self, what: str, path: Path) -> None:
        if (path.is_symlink() or path.exists()) and all(path != place.path for place in self.found):
            self.found.append(Place(what, path))


def find(
    student: str, weeks: Sequence[Week], *, marks: Path, submissions: Path, feedback: Path, course: Path, rules: Path
) -> Places:
    """Everything of `student` in these folders. Nothing of anyone else: each place bears this id alone.

    rules   the course's rules: they tell what a learning platform calls the student, and name those with an extension
    """
    places = Places()
    for week in sorted(path for path in marks.glob("*") if path.is_dir()):
        places.add(f"marks of {week.name}", week / quoted(student))
    names = {student, *_in_rules(places, student, rules)}
    _handed_in(places, names, weeks, submissions)
    places.add("feedback", feedback / quoted(student))
    _nbgrader(places, student, names, weeks, course)
    _mentions(places, student, {marks.resolve().parent, feedback.resolve().parent, Path.cwd()})
    return places


def _in_rules(places: Places, student: str, path: Path) -> list[str]:
    """What a platform calls the student. The file is written by hand, so a person takes the lines out."""
    if not path.exists():
        return []
    try:
        rules = load_toml(path, Rules)
    except LabError as error:
        places.unread.append(str(error))
        return []
    found = [name for name, id in rules.ids.items() if id == student]
    if found or student in rules.extensions:
        places.told.append(f"{path} names this student: take the lines out")
    return found


def _handed_in(places: Places, names: set[str], weeks: Sequence[Week], root: Path) -> None:
    """Attempts as `grade collect` keeps them, here or in a folder for each week, and what else find_submissions knows.
    A collection is not read: somebody else's damaged receipt must not stand in the way."""
    from grading.intake.find import find_submissions
    from grading.intake.names import clean
    from grading.intake.receipts import MARKER, folder_of

    collected = [path for path in (root, *(root / week.name for week in weeks)) if (path / MARKER).is_file()]
    for path in collected:
        for name in sorted(names):
            places.add(f"what was handed in, {path.name}", folder_of(path, name))
    if not root.is_dir() or root in collected:
        return
    for week in weeks:
        if root / week.name in collected:
            continue
        try:
            found = find_submissions(root, week)
        except LabError as error:
            places.unread.append(f"{root} was not searched: {error}")
            return
        for entry in found:
            for _, path in entry.parts:
                if entry.student in names:
                    places.add("what was handed in", root / path.relative_to(root).parts[0])
        for name in found.without:
            if name in names:
                for path in root.iterdir():
                    if clean(path.name) == name:
                        places.add("what was handed in", path)


def _nbgrader(places: Places, student: str, names: set[str], weeks: Sequence[Week], folder: Path) -> None:
    course = course_directory(folder)
    if course is None:
        return
    from grading.gradebook.names import gradebook_id

    places.course, id = course, gradebook_id(student)
    for which in (course.submitted, course.autograded, str(course.root / "feedback" / "{student}" / "{assignment}")):
        head, found, _ = which.partition("{student}")
        if found and head.endswith("/") and which[len(head) + len(found) :].startswith("/"):
            places.add(f"nbgrader's {Path(head).name}/", Path(head) / id)
        else:  # a course that names its folders otherwise
            for week in weeks:
                places.add(f"nbgrader's folder for {week.name}", course.folder(which, id, week.name))
    if rows := _rows(course, id):
        places.found.append(Place("rows in nbgrader's gradebook", course.root, rows))
    inbound = _inbound(course)
    if inbound is not None and inbound.is_dir():
        _handed_in(places, {*names, id}, weeks, inbound)
    places.told += [
        f"{path} is a copy of the gradebook, and may hold this student: delete it when you need it no more"
        for path in sorted(course.root.glob("gradebook.db.*"))
    ]


def _rows(course: Course, id: str) -> int:
    """How many rows of the gradebook are this student's."""
    from grading.reports.forget import rows_of

    with course.gradebook() as book:
        return sum(1 for _ in rows_of(book, id))


def _inbound(course: Course) -> Path | None:
    """Where students' submissions arrive, if nbgrader_config.py names an exchange."""
    from traitlets.config.loader import PyFileConfigLoader

    from grading.gradebook.course import CONFIG

    config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
    root = config.Exchange.get("root")
    return Path(root) / course.id / "inbound" if isinstance(root, str) and root else None


def _mentions(places: Places, student: str, folders: set[Path]) -> None:
    """Pages and tables for the whole class that name this student: they are everyone's, so a person makes them anew."""
    from markupsafe import escape

    shown = str(escape(page.visible(student, 120, 2)))
    for folder in sorted(folders):
        for path in sorted([*folder.glob("*.html"), *folder.glob("*.csv")]):
            if any(name in text for text in _texts(path) for name in (f">{shown}<", f'"{_csv(student)}"')):
                places.told.append(f"{path} names this student: make it again, or delete it")


def _texts(path: Path) -> Iterator[str]:
    """The text of a page or table of ours."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace") if path.stat().st_size < 50_000_000 else ""
    except OSError:
        return
    if '<meta name="generator" content="grade report">' in text or text.startswith(('"student",', '"Student",')):
        yield text


def _csv(student: str) -> str:
    from grading.reports.export import harmless

    return harmless(student).replace('"', '""')
