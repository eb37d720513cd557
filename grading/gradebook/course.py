"""nbgrader's course directory, as `grade course init` made it, and what it calls a student.

nbgrader puts a student's id into folder names, shell patterns and addresses (unquoted: a "%" there would be decoded on
the way), and unescaped into its pages and their scripts. On many learning platforms students choose their display name,
and with it the name of the file that is downloaded. So the id is itself where that is harmless, else has "=3C" and the
like in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from grading.files import locked
from grading.here import CONFIG as CONFIG
from grading.here import course_root as course_root
from labkit.errors import LabError

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

SAMPLE = "sample.json"  # in a second marker's: {"week13": [ids]}, see grading.rubric.second
NAME = "distributed-training"
GUARD = "grading.gradebook.guard.NoAutograde"  # see there
PLAIN = " _-.@+,~'()"  # in an id, besides letters, marks and digits of any script
LONGEST = 128  # characters of an id: nbgrader's column
EMPTY = "=00"


@dataclass(frozen=True)
class Course:
    """An open course directory: what its nbgrader_config.py says, with nbgrader's own defaults."""

    root: Path
    id: str
    db_url: str
    autograded: str  # format of a folder's name, with {student} and {assignment}
    submitted: str
    exchange: str = ""  # its root, if the file names one

    def folder(self, which: str, student: str, assignment: str) -> Path:
        """`which` is `self.autograded` or `self.submitted`; `student` an id as nbgrader knows it."""
        return Path(which.replace("{student}", student).replace("{assignment}", assignment))

    def one_writer(self) -> AbstractContextManager[None]:
        """Hold the course's lock, which ends with the process. LabError if another one holds it."""
        return locked(
            self.root / ".grade.lock", f"another `grade` is writing into {self.root}: wait until it has finished"
        )

    def gradebook(self) -> Gradebook:
        """nbgrader's gradebook, made if there is none: a context manager."""
        need_nbgrader()
        from nbgrader.api import Gradebook

        with _scripts_on_path():
            return Gradebook(self.db_url, self.id)


def course_folder(given: Path | None) -> Path:
    """The course directory that is meant: the one given, else the one that this folder is or lies in, else ./gradebook,
    where the page for instructors puts it."""
    if given is None:
        beside = course_root(Path(".")) is None and (Path("gradebook") / CONFIG).is_file()
        given = Path("gradebook" if beside else ".")
    return given


def open_course(folder: str | Path = ".") -> Course:
    """The course directory that `folder` is or lies in. LabError if there is none, or its Autograde is not off."""
    root = course_root(Path(folder))
    if root is None:
        raise LabError(
            f"{Path(folder).resolve()} is no course directory of nbgrader's: `grade course init gradebook` makes one "
            "here, and --gradebook DIR names another"
        )
    need_nbgrader()
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config
    from traitlets.config.loader import PyFileConfigLoader

    try:
        config: Config = PyFileConfigLoader(CONFIG, path=str(root)).load_config()
    except Exception as error:  # it is a program, and a person may have edited it
        raise LabError(f"{root / CONFIG} cannot be read ({type(error).__name__}: {error}): mend it") from None
    if config.Autograde.get("exporter_class") != GUARD:
        raise LabError(
            f"{root / CONFIG} leaves nbgrader's Autograde on, and one click would write over marks: add the "
            f"line  c.Autograde.exporter_class = {GUARD!r}"
        )
    if "root" not in config.CourseDirectory:
        config.CourseDirectory.root = str(root)
    there = CourseDirectory(config=config)
    return Course(
        Path(there.root),
        there.course_id,
        there.db_url,
        there.format_path(there.autograded_directory, "{student}", "{assignment}"),
        there.format_path(there.submitted_directory, "{student}", "{assignment}"),
        str(config.Exchange.root) if "root" in config.Exchange else "",
    )


def gradebook_id(student: str) -> str:
    """The id under which nbgrader knows a student: "Åsa O'Brien" stays, "<b>" becomes "=3Cb=3E".

    Different ids stay different. LabError for one that does not fit nbgrader's column."""
    if _is_plain(student):
        name = student
    else:
        name = quote(student, safe="_-@+,~").replace(".", "%2E").replace("%", "=") or EMPTY
    if len(name) > LONGEST or len(name.encode()) > 200:
        raise LabError(
            f"a student's id must fit nbgrader's {LONGEST} characters; this one does not: {student[:40]!r}..."
        )
    return name


def student_of(gradebook_id: str) -> str:
    """The inverse of `gradebook_id`."""
    return "" if gradebook_id == EMPTY else unquote(gradebook_id.replace("%", "%25").replace("=", "%"))


def _is_plain(student: str) -> bool:
    return (
        student == student.strip(" .") != ""
        and unicodedata.is_normalized("NFC", student)
        and all(c in PLAIN or unicodedata.category(c)[0] in "LMN" for c in student)
    )


def need_nbgrader() -> None:
    if importlib.util.find_spec("nbgrader") is None:
        raise LabError(
            "nbgrader is not installed: run 'pip install nbgrader', or install this course with its [grading] extra"
        )


@contextlib.contextmanager
def _scripts_on_path() -> Iterator[None]:
    """nbgrader runs the command `alembic` when it makes a database, which a shell finds in an activated environment
    only."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before
