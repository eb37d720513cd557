"""`grade forget`: where something of one student lies, and removing it, and nothing of anyone else.

Marks, what was handed in, feedback, nbgrader's folders and rows, also a second marker's. Only names are looked at: a
place is found by what it is called, and no list is kept. Each place is removed by itself, and the gradebook's rows in
one transaction. Killed in between, the same command finds what is left. Pages, tables, rosters and archives hold others
as well: they are told, and a person makes them anew or deletes them.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.gradebook.course import SAMPLE
from grading.intake import roster
from grading.intake.names import clean, lms_name
from grading.intake.policy import Rules
from grading.marks import quoted, read
from grading.reports import page
from grading.reports.by_hand import course_directory
from grading.reports.export import harmless
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import load_toml

if TYPE_CHECKING:
    from grading.gradebook.course import Course

_OURS = re.compile(r'<meta name="generator" content="grade (?:report|similar)">')


@dataclass(frozen=True)
class Place:
    """A file or folder that is wholly this student's, or their rows in nbgrader's gradebook (`path` is the folder of
    `course` then, and `name` what they are called there)."""

    what: str
    path: Path
    rows: int = 0
    course: Course | None = None
    name: str = ""

    @property
    def is_rows(self) -> bool:
        return self.rows > 0


@dataclass
class Places:
    """All of them. `told`: what only a person can do, and what could not be looked at."""

    found: list[Place] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

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
    own = _in_rules(places, student, rules)
    names = set(own.called(student))
    for week in sorted(path for path in marks.glob("*") if path.is_dir()):
        for name in sorted(names):
            places.add(f"marks of {week.name}", week / quoted(name))
    folders = {marks.resolve().parent, feedback.resolve().parent, Path.cwd()}
    _handed_in(places, names, weeks, submissions)
    for name in sorted(names):
        places.add("feedback", feedback / quoted(name))
    for one in _courses(course, folders):
        for name in sorted(names):
            _nbgrader(places, name, names, weeks, one)
    _of_the_group(places, names, weeks, marks, course, own)
    _mentions(places, names, own, folders, (rules.parent / own.roster.file,) if own.roster.file else ())
    return places


def _of_the_group(
    places: Places, names: set[str], weeks: Sequence[Week], marks: Path, course: Path, rules: Rules
) -> None:
    """Points by hand that a group has through this student's copy alone: the other members lose them with it."""
    from grading.reports.by_hand import all_by_hand
    from grading.reports.canvas import names as some
    from grading.reports.together import same_hand_in

    for week in (week for week in weeks if any(_in_a_group(marks / week.name / quoted(name)) for name in names)):
        try:
            same = same_hand_in(marks, week, rules)
        except LabError as error:
            places.unread.append(f"whether a group of {week.name} has points through this student's copy: {error}")
            continue
        given = all_by_hand(course, week) if names & set(same) else {}
        for student in sorted(names & set(given)):
            others = [one for one in same.get(student, [student]) if one not in names]
            for task, own in given[student].items():
                kept = [one for one in others if (has := given.get(one, {}).get(task)) and has.points is not None]
                if others and own.points is not None and not kept:
                    places.told.append(
                        f"{week.name}, {task}: {number(own.points)} of their group's points stood at this student's "
                        f"copy alone; give them at the copy of {some(others)}"
                    )


def _in_a_group(folder: Path) -> bool:
    """Whether a mark in this student's folder is of a group's hand-in. Nobody else's is read."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(LabError):
            if read(path).group:
                return True
    return False


def _in_rules(places: Places, student: str, path: Path) -> Rules:
    """The course's rules: what a platform calls the student. The file is written by hand, so a person takes the lines
    out."""
    if not path.exists():
        return Rules()
    try:
        rules = load_toml(path, Rules)
    except LabError as error:
        places.unread.append(str(error))
        return Rules()
    excused = any(rules.is_excused(student, week) for week in rules.excused)
    if len(rules.called(student)) > 1 or student in rules.extensions or excused:
        places.told.append(f"{path} names this student: take the lines out")
    return rules


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


def _courses(folder: Path, folders: Iterable[Path]) -> Iterator[Course]:
    """nbgrader's course directory, and those beside it: a second marker's holds the same hand-ins."""
    from grading.gradebook.course import CONFIG

    seen: set[Path] = set()
    beside = sorted(config.parent for each in folders for config in each.glob(f"*/{CONFIG}"))
    for path in (folder, *beside):
        course = course_directory(path)
        if course is not None and course.root.resolve() not in seen:
            seen.add(course.root.resolve())
            yield course


def _nbgrader(places: Places, student: str, names: set[str], weeks: Sequence[Week], course: Course) -> None:
    from grading.gradebook.course import gradebook_id

    id = gradebook_id(student)
    for which in (course.submitted, course.autograded, str(course.root / "feedback" / "{student}" / "{assignment}")):
        head, found, _ = which.partition("{student}")
        if found and head.endswith("/") and which[len(head) + len(found) :].startswith("/"):
            places.add(f"nbgrader's {Path(head).name}/", Path(head) / id)
        else:  # a course that names its folders otherwise
            for week in weeks:
                places.add(f"nbgrader's folder for {week.name}", course.folder(which, id, week.name))
    if student in _sample(course.root):
        places.told.append(f"{course.root / SAMPLE} names this student: take the id out")
    if rows := _count(course, id):
        places.found.append(Place("rows in nbgrader's gradebook", course.root, rows, course, student))
    inbound = _inbound(course)
    if inbound is not None and inbound.is_dir():
        _handed_in(places, {*names, id}, weeks, inbound)
    copies = [
        f"{path} is a copy of the gradebook, and may hold this student: delete it when you need it no more"
        for path in sorted(course.root.glob("gradebook.db.*"))
    ]
    places.told += [sentence for sentence in copies if sentence not in places.told]


def _sample(folder: Path) -> list[str]:
    """All ids of a second marker's samples."""
    try:
        return [id for ids in json.loads((folder / SAMPLE).read_text(encoding="utf-8")).values() for id in ids]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def _inbound(course: Course) -> Path | None:
    """Where students' submissions arrive, if nbgrader_config.py names an exchange."""
    from traitlets.config.loader import PyFileConfigLoader

    from grading.gradebook.course import CONFIG

    config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
    root = config.Exchange.get("root")
    return Path(root) / course.id / "inbound" if isinstance(root, str) and root else None


def _mentions(places: Places, names: set[str], rules: Rules, folders: set[Path], rosters: Sequence[Path]) -> None:
    """What is of the whole class and names this student: pages, tables, rosters, archives of a learning platform."""
    from markupsafe import escape

    shown = [f">{escape(page.visible(name, 120, 2))}<" for name in names]
    quoted_ = ['"{}"'.format(harmless(name).replace('"', '""')) for name in names]
    ids = {rules.id_of(name) for name in names}
    ours = {path for folder in folders for path in (*folder.glob("*.html"), *folder.glob("*.csv"))}
    for path in sorted(ours | {path.resolve() for path in rosters}):
        text = _text(path)
        mine = _OURS.search(text) is not None or text.startswith(('"student",', '"Student",'))
        listed = path.suffix == ".csv" and any(_in_roster(path, name, rules) for name in sorted(names))
        if mine and (listed or any(told in text for told in (*shown, *quoted_))):
            places.told.append(f"{path} names this student: make it again, or delete it")
        elif listed:
            places.told.append(f"{path} is a roster or worksheet that names this student: take the line out")
    for path in sorted(path for folder in folders for path in folder.glob("*.zip")):
        if any(rules.id_of(name) in ids for name in _in_archive(path)):
            places.told.append(f"{path} holds files of this student: make it again, or delete it")


def _text(path: Path) -> str:
    """A file's text; "" if it cannot be read, or is larger than any page or table of ours."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace") if path.stat().st_size < 50_000_000 else ""
    except OSError:
        return ""


def _in_roster(path: Path, student: str, rules: Rules) -> bool:
    """Whether it is a platform's table, exported or ours with its columns, in which a line is or may be theirs."""
    try:
        line, why = roster.find(student, roster.read(path), rules)
    except LabError:
        return False  # some other table
    return line is not None or why != roster.NOT_THERE


def _in_archive(path: Path) -> Iterator[str]:
    """What a learning platform's archive, its download or ours for its upload, calls its students."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = {part for name in archive.namelist() for part in clean(name).split("/")[:2]}
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for named in map(lms_name, parts):
        if named is not None:
            yield named.student
            yield f"{named.student}_{named.number}"


def forget(places: Places) -> Iterator[Place]:
    """Remove the places one after the other; yields each when it is gone. LabError if one cannot be removed."""
    for place in places.found:
        if place.course is not None:
            _forget_rows(place.course, place.name)
        else:
            _remove(place.path)
        yield place


def size(path: Path) -> tuple[int, int]:
    """(files, bytes) at a path; links are counted and not followed."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size
    files = [inner for inner in path.rglob("*") if inner.is_symlink() or not inner.is_dir()]
    return len(files), sum(inner.lstat().st_size for inner in files)


def _rows(book: Any, id: str) -> Iterator[Any]:
    """A student's rows in nbgrader's gradebook, what hangs on others first."""
    from nbgrader.api import Comment, Grade, Student, SubmittedAssignment, SubmittedNotebook

    submissions = book.db.query(SubmittedAssignment).filter(SubmittedAssignment.student_id == id).all()
    for submission in submissions:
        sheets = book.db.query(SubmittedNotebook).filter(SubmittedNotebook.assignment_id == submission.id).all()
        for sheet in sheets:
            for kind in (Grade, Comment):
                yield from book.db.query(kind).filter(kind.notebook_id == sheet.id).all()
            yield sheet
        yield submission
    yield from book.db.query(Student).filter(Student.id == id).all()


def _count(course: Course, id: str) -> int:
    with course.gradebook() as book:
        return sum(1 for _ in _rows(book, id))


def _remove(path: Path) -> None:
    """A file, a link (not what it points to), or a folder with what is in it; links inside are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LabError(
            f"{error.filename or path} cannot be removed ({error.strerror}): get the right to, and run the "
            "same command again; it removes the rest"
        ) from None


def _forget_rows(course: Course, student: str) -> None:
    """Delete the rows in one transaction, and what SQLite keeps of deleted rows in free pages."""
    from sqlalchemy.exc import SQLAlchemyError

    from grading.gradebook.course import gradebook_id

    try:
        with course.one_writer(), course.gradebook() as book:
            sqlite = book.engine.dialect.name == "sqlite"
            if sqlite:
                book.db.connection().exec_driver_sql("PRAGMA secure_delete=ON")
            for row in list(_rows(book, gradebook_id(student))):
                book.db.delete(row)
                book.db.flush()
            book.db.commit()
            if sqlite:  # older versions of comments and scores are in free pages, too
                with book.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.exec_driver_sql("VACUUM")
    except SQLAlchemyError as error:
        raise LabError(
            f"the gradebook in {course.root} could not be changed ({type(error).__name__}): close "
            "formgrader, and run the same command again"
        ) from None
