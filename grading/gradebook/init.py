"""Making nbgrader's course directory, or bringing one up to date: `grade course init`.

    DIR/nbgrader_config.py      made once, then the instructor's to extend
        gradebook.db            nbgrader's database: assignments and their cells from the weeks' tasks.toml
        source/week13/          the released week, its notebook with grade cells; made anew by every init
        autograded/             what formgrader shows, by `grade load`

A second init takes up what is new in the course: a week, a task, other points. Points and comments that were given
stay; a task that left the course keeps its cell as long as a submission has one.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.files import put
from grading.gradebook import first_page
from grading.gradebook.cells import graded_tasks, master, parsed
from grading.gradebook.course import CONFIG, GUARD, NAME, Course, need_nbgrader, open_course
from grading.here import not_the_students
from grading.tree import student_tree
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

MARKER = "# Written by `grade course init`"
EXTENSIONS = tuple(
    f"nbgrader.server_extensions.{name}"
    for name in ("formgrader", "validate_assignment", "assignment_list", "course_list")
)
TEMPLATE = (
    MARKER
    + """; yours to extend. Run `jupyter lab` in this folder.
import os

c = get_config()
c.CourseDirectory.root = os.path.dirname(os.path.abspath(__file__))
c.CourseDirectory.course_id = {name!r}
{exchange}
# Marks are made by `grade run`, in a sandbox. nbgrader's Autograde would run submissions in your account and write over
# those marks: it is off. `grade load` refuses to work where this line is missing.
c.Autograde.exporter_class = {guard!r}
"""
)


EXCHANGE = "c.Exchange.root = {root!r}\n"
OWN_EXCHANGE = """# Students do not use this exchange: it is here so that formgrader finds one.
# If they hand in through nbgrader, name the folder that they share with you.
c.Exchange.root = os.path.join(c.CourseDirectory.root, "exchange")
"""


@dataclass
class Made:
    """What init did: a sentence each."""

    course: Course
    said: list[str] = field(default_factory=list)


def init(
    folder: str | Path, *, source: str | Path | None = None, name: str = NAME, exchange: str | Path | None = None
) -> Made:
    """Make `folder` nbgrader's course directory for all weeks of the course in `source` (default: this course).

    name      nbgrader's course id
    exchange  the folder through which students fetch and submit; default: nbgrader's

    LabError where nbgrader is missing, and for a folder that is somebody else's."""
    need_nbgrader()
    weeks = find_weeks(source)
    origin, root = weeks[0].folder.parent, Path(folder).resolve()
    if root.is_relative_to(origin) or origin.is_relative_to(root):
        raise LabError(
            f"{root} and the course itself lie in one another: choose a folder outside {origin}, since it "
            "will hold what students handed in"
        )
    config, said = root / CONFIG, []
    not_the_students(config)
    try:
        if not config.exists():
            if (root / "gradebook.db").exists():
                raise LabError(f"{root} has a gradebook.db and no {CONFIG}: it is another course; choose a new folder")
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = EXCHANGE.format(root=str(Path(exchange).resolve())) if exchange else OWN_EXCHANGE
            put(config, TEMPLATE.format(name=name, exchange=where, guard=GUARD).encode())
            said.append(f"{config} is written")
        elif exchange:
            said += _share(config, Path(exchange).resolve())
        course = open_course(root)
        with course.one_writer():
            shared = first_page.exchange(course, weeks)
            for week in weeks:
                notebook = _source(course, origin, week)
                said += _register(course, week, notebook)
            said += shared
    except OSError as error:
        raise LabError(
            f"{root} cannot be written ({error.strerror or type(error).__name__}): choose another folder"
        ) from None
    return Made(course, said + extensions())


def _share(config: Path, exchange: Path) -> list[str]:
    """Name the students' exchange in a configuration that init wrote without one. LabError where it names another."""
    text, line = config.read_text(encoding="utf-8"), EXCHANGE.format(root=str(exchange))
    if line in text:
        return []
    if OWN_EXCHANGE not in text:
        raise LabError(f"{config} names another exchange: write {line.strip()} there, and run this again")
    put(config, text.replace(OWN_EXCHANGE, line).encode())
    return [f"{config} names {exchange} now"]


def extensions() -> list[str]:
    """Turn on those of nbgrader's JupyterLab extensions that are off. Sentences on what was done, and what is left."""
    off, said = _off(), []
    if off:
        from jupyter_server.extension.serverextension import toggle_server_extension_python

        for name in off:
            toggle_server_extension_python(name, enabled=True, user=True)
        said += [f"the Jupyter extension {name} was off and is on" for name in off if name not in _off()]
        said += [
            f"the Jupyter extension {name} is off: run 'jupyter server extension enable --sys-prefix {name}'"
            for name in _off()
        ]
    if not _menu():
        said.append("JupyterLab has no nbgrader menu: install nbgrader into the environment of jupyter lab")
    return said


def _menu() -> bool:
    from jupyter_core.paths import jupyter_path

    return any(
        (Path(path) / "@jupyter" / "nbgrader" / "package.json").exists() for path in jupyter_path("labextensions")
    )


def _off() -> list[str]:
    from jupyter_core.paths import jupyter_config_path
    from jupyter_server.services.config import ConfigManager

    known = ConfigManager(read_config_path=jupyter_config_path()).get("jupyter_server_config")
    on = known.get("ServerApp", {}).get("jpserver_extensions", {})
    return [name for name in EXTENSIONS if on.get(name) is not True]


def _source(course: Course, origin: Path, week: Week) -> dict[str, Any]:
    """Put the released week with its grade cells into nbgrader's source directory. Returns the notebook."""
    files = {
        path: file
        for path, file in student_tree(origin, find_weeks(origin)).files.items()
        if path.startswith(f"{week.package}/")
    }
    name = f"{week.package}/{week.notebook.relative_to(week.folder).as_posix()}"
    if name not in files:
        raise LabError(f"{name} is not released with {week.name}: it must be there to register its grade cells")
    notebook = master(week, parsed(files[name].data))
    target = course.root / "source" / week.name
    fresh, old = target.with_name(f".{week.name}.new"), target.with_name(f".{week.name}.old")
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    for path, file in files.items():
        place = fresh / path.removeprefix(f"{week.package}/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_text(notebook).encode() if path == name else file.data)
        place.chmod(0o755 if file.executable else 0o644)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
    return notebook


def _register(course: Course, week: Week, notebook: dict[str, Any]) -> list[str]:
    """Bring nbgrader's list of a week's cells up to date, as its own "Generate" would. Sentences on what is odd."""
    from nbformat import from_dict
    from nbgrader.utils import compute_checksum

    said = []
    here = week.notebook.stem
    with course.gradebook() as book:
        book.update_or_create_assignment(week.name, course_id=course.id)
        kernel = json.dumps(notebook["metadata"].get("kernelspec", {}))
        book.update_or_create_notebook(here, week.name, kernelspec=kernel)
        graded = {
            cell["metadata"]["nbgrader"]["grade_id"]: cell
            for cell in notebook["cells"]
            if "nbgrader" in cell["metadata"]
        }
        for task in graded_tasks(week):
            kind = "markdown" if task.kind == "written" else "code"
            update = book.update_or_create_task_cell if task.kind == "written" else book.update_or_create_grade_cell
            update(task.cell, here, week.name, max_score=task.points, cell_type=kind)
            book.update_or_create_source_cell(
                task.cell,
                here,
                week.name,
                cell_type=kind,
                locked=True,
                source=graded[task.cell]["source"],
                checksum=compute_checksum(from_dict(graded[task.cell])),
            )
        wanted = {(task.cell, "TaskCell" if task.kind == "written" else "GradeCell") for task in graded_tasks(week)}
        notebook_there = book.find_notebook(here, week.name)
        for cell in [*notebook_there.grade_cells, *notebook_there.task_cells]:
            if (cell.name, cell.type) not in wanted:
                if cell.grades:
                    said.append(
                        f"{week.name}: {cell.name} is no task of the course any more; it stays in the "
                        "gradebook, since submissions have points there"
                    )
                    continue
                book.db.delete(cell)
        for cell in notebook_there.source_cells:
            if cell.name not in graded:
                book.db.delete(cell)
        book.db.commit()
        max_score = book.find_assignment(week.name).max_score
    return [f"{week.name} is registered: {len(graded_tasks(week))} grade cells, {max_score:g} points", *said]


def _text(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
