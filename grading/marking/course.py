"""nbgrader's course directory in a class's folder: the marking screen, which shows one submission after the other.

    gradebook/nbgrader_config.py    written once, then the instructor's to extend
        gradebook.db                nbgrader's database: assignments, and their grade cells from the weeks' tasks.toml
        autograded/17/week13/       what formgrader shows of submission 17
        submitted/17/week13/        empty, as source/week13/ is: formgrader's first page counts these folders
        exchange/                   formgrader wants one. Students who type `nbgrader submit` share another folder

What nbgrader takes for a student's id is the number of a submission, so whoever marks sees no name. Nothing is stored
here alone: points that were typed are read into class.db (typed.py), and screen.py makes the rest from there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.files import locked, put
from grading.here import not_the_students
from grading.marking.cells import graded_tasks
from labkit.checks.tasks import Week
from labkit.errors import LabError

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

CONFIG = "nbgrader_config.py"
FOLDER = "gradebook"  # in the class's folder
CONTENT = "content.txt"  # beside a notebook: the digest of the files that it shows
NAME = "distributed-training"
GUARD = "grading.marking.guard.NoAutograde"  # see there
TEMPLATE = """# Written by `grade mark`; yours to extend. `grade mark WEEK` starts Jupyter in this folder.
import os

c = get_config()
c.CourseDirectory.root = os.path.dirname(os.path.abspath(__file__))
c.CourseDirectory.course_id = {name!r}
{exchange}
# Marks are made by `grade run`, in a sandbox. nbgrader's Autograde would run submissions in your account and write over
# those marks: it is off. `grade mark` refuses to work where this line is missing.
c.Autograde.exporter_class = {guard!r}
"""
EXCHANGE = "c.Exchange.root = {root!r}\n"
OWN_EXCHANGE = """# Students do not use this exchange: it is here so that formgrader finds one.
# If they hand in through nbgrader, name the folder that they share with you.
c.Exchange.root = os.path.join(c.CourseDirectory.root, "exchange")
"""


@dataclass(frozen=True)
class Course:
    """An open course directory: what its nbgrader_config.py says. `exchange`: its root."""

    root: Path
    id: str
    exchange: Path

    @property
    def database(self) -> Path:
        return self.root / "gradebook.db"

    def notebook(self, submission: int, week: Week) -> Path:
        """What formgrader shows of a submission."""
        return self.root / "autograded" / str(submission) / week.name / week.notebook.name

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
            return Gradebook(f"sqlite:///{self.database}", self.id)


def open_course(root: Path) -> Course:
    """The course directory of this folder. LabError if it cannot be read, or its Autograde is not off."""
    need_nbgrader()
    from traitlets.config.loader import PyFileConfigLoader

    try:
        config: Any = PyFileConfigLoader(CONFIG, path=str(root)).load_config()
    except Exception as error:  # it is a program, and a person may have edited it
        raise LabError(f"{root / CONFIG} cannot be read ({type(error).__name__}: {error}): correct it") from None
    if config.Autograde.get("exporter_class") != GUARD:
        raise LabError(
            f"{root / CONFIG} leaves nbgrader's Autograde on, and one click would write over marks: add the "
            f"line  c.Autograde.exporter_class = {GUARD!r}"
        )
    exchange = Path(config.Exchange.root) if "root" in config.Exchange else root / "exchange"
    return Course(root, str(config.CourseDirectory.get("course_id", NAME)), exchange)


def make(folder: Path, weeks: Sequence[Week], *, exchange: Path | None = None) -> tuple[Course, list[str]]:
    """Make a folder nbgrader's course directory for these weeks, or bring one up to date: (it, sentences on what was
    done). Points and comments that were given stay.

    exchange  the folder through which students submit; None: they do not

    LabError where nbgrader is missing, and for a folder that is somebody else's."""
    need_nbgrader()
    origin, root = weeks[0].folder.parent, folder.resolve()
    if root.is_relative_to(origin) or origin.is_relative_to(root):
        raise LabError(
            f"{root} and the course itself lie in one another: keep the class in a folder outside {origin}, since it "
            "holds what students submitted"
        )
    config, said = root / CONFIG, []
    not_the_students(config)
    try:
        if not config.exists():
            if (root / "gradebook.db").exists():
                raise LabError(f"{root} has a gradebook.db and no {CONFIG}: it is another course's; move it away")
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = EXCHANGE.format(root=str(exchange.resolve())) if exchange else OWN_EXCHANGE
            put(config, TEMPLATE.format(name=NAME, exchange=where, guard=GUARD).encode())
        elif exchange:
            said += _share(config, exchange.resolve())
        course = open_course(root)
        with course.one_writer():
            said += _exchange(course, weeks)
            for week in weeks:
                _register(course, week)
    except OSError as error:
        raise LabError(f"{root} cannot be written ({error.strerror or type(error).__name__})") from None
    return course, said


def is_current(course: Course, week: Week) -> bool:
    """Whether the gradebook knows the week's cells with their points."""
    from nbgrader.api import MissingEntry

    with course.gradebook() as book:
        try:
            there = book.find_notebook(week.notebook.stem, week.name)
        except MissingEntry:
            return False
        known = {cell.name: cell.max_score for cell in [*there.grade_cells, *there.task_cells]}
    return all(known.get(task.cell) == task.points for task in graded_tasks(week))


def need_nbgrader() -> None:
    if importlib.util.find_spec("nbgrader") is None:
        raise LabError(
            "nbgrader is not installed: run 'pip install nbgrader', or install this course with its [grading] extra"
        )


def _share(config: Path, exchange: Path) -> list[str]:
    """Name the students' exchange in a configuration that was written without one. LabError where it names another."""
    text, line = config.read_text(encoding="utf-8"), EXCHANGE.format(root=str(exchange))
    if line in text:
        return []
    if OWN_EXCHANGE not in text:
        raise LabError(f"{config} names another exchange: write {line.strip()} there, and run this again")
    put(config, text.replace(OWN_EXCHANGE, line).encode())
    return [f"{config} names {exchange} now"]


def _exchange(course: Course, weeks: Sequence[Week]) -> list[str]:
    """Make the folders of the exchange. In one that lies elsewhere, which students share, `nbgrader submit` works then:
    it wants an inbound/ that everybody may write into and nobody list, and an outbound/week13_allreduce. What is there
    already stays as it is. Sentences on what students type, or on what is in the way."""
    place = course.exchange / course.id
    if place.is_relative_to(course.root):
        for folder in ("inbound", "feedback", *(f"outbound/{week.name}" for week in weeks)):
            (place / folder).mkdir(parents=True, exist_ok=True)
        return []
    try:
        for folder, mode in (("", 0o755), ("inbound", 0o733), ("outbound", 0o755), ("feedback", 0o711)):
            _made(place / folder, mode)
        for week in weeks:
            _made(place / "outbound" / week.package, 0o755)
    except OSError as error:
        return [f"{place} cannot be made ready for submissions ({error.strerror}): nbgrader submit fails until it is"]
    return [
        f"Students submit from the folder that holds the weeks: nbgrader submit {weeks[0].package} --course "
        f"{course.id} --Exchange.root={course.exchange}"
    ]


def _made(folder: Path, mode: int) -> None:
    """Make a folder of this mode, whatever the umask; one that is there keeps its own."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(mode)


def _register(course: Course, week: Week) -> None:
    """Bring nbgrader's list of a week's cells up to date."""
    here = week.notebook.stem
    (course.root / "source" / week.name).mkdir(parents=True, exist_ok=True)
    with course.gradebook() as book:
        book.update_or_create_assignment(week.name, course_id=course.id)
        book.update_or_create_notebook(here, week.name)
        for task in graded_tasks(week):
            written = task.kind == "written"
            update = book.update_or_create_task_cell if written else book.update_or_create_grade_cell
            update(task.cell, here, week.name, max_score=task.points, cell_type="markdown" if written else "code")


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
