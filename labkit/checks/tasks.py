"""Tasks: what a week asks for, under which id, for how many points.

A week's `tasks.toml` is the registry. It is data: grading and the gradebook read it without running a test.

    title = "All-reduce"                    # of the week
    notebook = "lab.ipynb"
    tests = ["test_week13.py"]
    uses = ["labkit.model"]                 # of labkit, beyond comm and checks (labkit.checks.boundary); mostly nothing
    records = ["*.json"]                    # of its results/, beyond pages: what the notebook reads, so students get it

    [[task]]
    id = "13.4"                             # names the same thing everywhere: heading, hole, test, grade cell task-13-4
    title = "ring all-reduce"
    kind = "auto"                           # "auto": by tests; "written": by hand; "stretch": tests, no points
    points = 20
    functions = ["collectives.ring_all_reduce"]     # what the student writes
    stands_on = ["13.2", "13.3"]            # graded with reference parts for these, so that no mistake counts twice

In the test file `@task("13.4", points=6)` says how many of the task's points a test is worth; its parametrised cases
share them equally. The sum over a task's tests must be the registry's number.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError

KINDS = ("auto", "written", "stretch")
REGISTRY = "tasks.toml"
FOLDERS = ("week*", "capstone*")  # a tasks.toml elsewhere is somebody else's


@dataclass(frozen=True)
class Task:
    """One task. `functions` are "module.function" of the week's package."""

    id: str
    title: str
    kind: str
    points: float
    functions: tuple[str, ...] = ()
    stands_on: tuple[str, ...] = ()

    @property
    def cell(self) -> str:
        """The id of its grade cell in the notebook: "13.4" -> "task-13-4"."""
        return "task-" + self.id.replace(".", "-")

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules a student edits for it, without doubles."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.functions))


@dataclass(frozen=True)
class Week:
    """One week's folder. `name` is what one types: "week13"; `package` is the folder's name: "week13_allreduce"; `uses`
    is what its tasks may import of labkit (see labkit.checks.boundary), `records` patterns below its results/."""

    name: str
    title: str
    folder: Path
    notebook: Path
    tests: tuple[Path, ...]
    tasks: tuple[Task, ...]
    uses: tuple[str, ...] = ()
    records: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        return self.folder.name

    def task(self, id: str) -> Task:
        """The task with this id. KeyError without one; `id in week` asks."""
        for task in self.tasks:
            if task.id == id:
                return task
        raise KeyError(id)

    def __contains__(self, id: str) -> bool:
        return any(task.id == id for task in self.tasks)

    def points(self, *kinds: str) -> float:
        """Points of all tasks of these kinds (of all kinds, if none is named)."""
        return sum(task.points for task in self.tasks if not kinds or task.kind in kinds)


def task(id: str, *, points: float) -> Callable[[Callable], Callable]:
    """Decorator of a test: which task it judges, and its share of the task's points (its cases divide the share)."""
    import pytest

    return pytest.mark.task(id, points=points)


def load_week(folder: str | Path) -> Week:
    """Read a week's registry. LabError names the file and what is wrong in it."""
    folder = Path(folder).resolve()
    path = folder / REGISTRY
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabError(f"{folder} is no week's folder: it has no {REGISTRY}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not valid TOML: {error}") from None
    _fields(data, {"title": str, "notebook": str, "tests": list, "task": list}, path, {"uses": list, "records": list})
    tasks = tuple(_task(entry, path) for entry in data["task"])
    ids = [t.id for t in tasks]
    for id in ids:
        if ids.count(id) > 1:
            raise LabError(f"{path} has two tasks {id}: an id names one task")
    for t in tasks:
        for other in t.stands_on:
            if other not in ids:
                raise LabError(f"{path}: task {t.id} stands on {other}, which is not in this file")
    name = re.match(r"week\d+", folder.name)
    return Week(
        name.group() if name else folder.name,
        data["title"],
        folder,
        folder / data["notebook"],
        tuple(folder / test for test in data["tests"]),
        tasks,
        tuple(data.get("uses", ())),
        tuple(data.get("records", ())),
    )


def find_weeks(start: str | Path | None = None) -> list[Week]:
    """The weeks of the course that `start` (default: the working directory) lies in, else of the one with labkit."""
    start = Path(start or Path.cwd()).resolve()
    for root in (start, *start.parents, Path(__file__).resolve().parents[2]):
        folders = sorted(path.parent for name in FOLDERS for path in root.glob(f"{name}/{REGISTRY}"))
        if folders:
            return [load_week(folder) for folder in folders]
    raise LabError("there is no course here: go to the folder that holds the week folders, and try again")


def find_week(name: str, weeks: Sequence[Week] | None = None) -> Week:
    """The week called "week13" or "week13_allreduce", of `weeks` (default: `find_weeks()`). LabError with the nearest
    name for an unknown one."""
    weeks = find_weeks() if weeks is None else weeks
    wanted = name.strip().rstrip("/")
    found = next((week for week in weeks if wanted in (week.name, week.package)), None)
    if found is None:
        raise LabError(f"there is no week {name!r}{nearest(name, [week.name for week in weeks])}")
    return found


def select(names: Sequence[str], weeks: Iterable[Week]) -> list[tuple[Week, tuple[str, ...]]]:
    """What "13.4", "week13", "week13_allreduce" or nothing mean: weeks with the ids of the tasks to check.

    A whole week means its tasks that give points; a stretch task is checked when it is named. An unknown name is a
    LabError with the nearest known one."""
    weeks = list(weeks)
    if not names:
        return [(week, _graded(week)) for week in weeks]
    chosen: dict[str, set[str]] = {}
    for name in names:
        wanted = name.strip().rstrip("/")
        for week in weeks:
            if wanted in (week.name, week.package):
                chosen.setdefault(week.name, set()).update(_graded(week))
            elif wanted in week:
                chosen.setdefault(week.name, set()).add(wanted)
            else:
                continue
            break
        else:
            known = [n for week in weeks for n in (week.name, *(t.id for t in week.tasks))]
            raise LabError(f"there is no task or week {name!r}{nearest(wanted, known)}")
    return [
        (week, tuple(t.id for t in week.tasks if t.id in chosen[week.name])) for week in weeks if week.name in chosen
    ]


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error sentence: "; did you mean ...?", or what there is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def _graded(week: Week) -> tuple[str, ...]:
    return tuple(t.id for t in week.tasks if t.kind != "stretch")


def _task(entry: Any, path: Path) -> Task:
    if not isinstance(entry, dict):
        raise LabError(f"{path}: each task is a table, [[task]]")
    _fields(
        entry,
        {"id": str, "title": str, "kind": str, "points": (int, float)},
        path,
        optional={"functions": list, "stands_on": list},
    )
    where = f"{path}: task {entry['id']}"
    if not re.fullmatch(r"\d+\.\d+", entry["id"]):
        raise LabError(f"{where}: an id is WEEK.NUMBER, for example 13.4")
    if entry["kind"] not in KINDS:
        raise LabError(f"{where}: kind is one of {', '.join(KINDS)}, not {entry['kind']!r}")
    points, stretch = entry["points"], entry["kind"] == "stretch"
    if isinstance(points, bool) or points < 0 or stretch != (points == 0):
        raise LabError(f"{where}: points are above 0, and 0 for stretch tasks only")
    return Task(
        entry["id"],
        entry["title"],
        entry["kind"],
        points,
        tuple(entry.get("functions", ())),
        tuple(entry.get("stands_on", ())),
    )


def _fields(data: dict, wanted: dict[str, Any], path: Path, optional: dict[str, Any]) -> None:
    for key, kind in wanted.items():
        if not isinstance(data.get(key), kind):
            raise LabError(f"{path}: {key} is missing or has the wrong type")
    for key, value in data.items():
        if key not in wanted and key not in optional:
            raise LabError(f"{path}: {key!r} is unknown{nearest(key, [*wanted, *optional])}")
        if key in optional and not isinstance(value, optional[key]):
            raise LabError(f"{path}: {key} has the wrong type")
