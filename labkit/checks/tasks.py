"""Tasks: what a week asks for, under which id, for how many points.

A week's `tasks.toml` is the registry:

    title = "All-reduce"                    # of the week
    notebook = "lab.ipynb"
    tests = ["test_week13.py"]
    uses = ["labkit.model"]                 # of labkit, beyond comm and checks (labkit.checks.boundary); mostly nothing
    weeks = ["week14_fsdp"]                 # earlier weeks whose modules this one's import; graded with the reference's
                                            # in a [[task]]: what it alone may use besides
    records = ["*.json"]                    # of its results/, beyond pages: what the notebook reads, so students get it

    [[task]]
    id = "13.4"                             # names the same thing everywhere: heading, blank, test, grade cell task-13-4
    title = "ring all-reduce"
    kind = "auto"                           # "auto": by tests; "written": by hand; "stretch": tests, no points
    points = 20
    functions = ["collectives.ring_all_reduce"]     # what the student writes
    without = ["torch"]                     # judged where these packages do not exist, in NumPy; mostly nothing
    stands_on = ["13.2", "13.3"]            # graded with reference parts for these, so that no mistake counts twice

In the test file `@task("13.4", points=6)` says how many of the task's points a test is worth; its parametrised cases
share them equally. The sum over a task's tests must be the registry's number.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from labkit.errors import LabError
from labkit.strict import Config, load_toml, nearest, require

REGISTRY = "tasks.toml"
FOLDERS = ("week*", "capstone*")  # a tasks.toml elsewhere is somebody else's
Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists


class Task(Config):
    """One task. `functions` are "module.function" of the week's package, `uses` what it may import of labkit."""

    id: str
    title: str
    kind: Literal["auto", "written", "stretch"]
    points: int | float
    functions: Names = ()
    stands_on: Names = ()
    uses: Names = ()
    without: Names = ()

    @model_validator(mode="after")
    def _own(self) -> "Task":
        right = re.fullmatch(r"(\d+|C)\.\d+", self.id) is not None
        require(right, "an id is WEEK.NUMBER, for example 13.4; C is the capstone's")
        require(not (self.without and self.stands_on), "a task judged without packages stands on no other")
        points = self.points == 0 if self.kind == "stretch" else self.points > 0
        require(points, "points are above 0, and 0 for stretch tasks only")
        return self

    @property
    def cell(self) -> str:
        """The id of its grade cell in the notebook: "13.4" -> "task-13-4"."""
        return "task-" + self.id.replace(".", "-")

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules a student edits for it, without doubles."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.functions))


class Registry(Config):
    """A week's tasks.toml."""

    title: str
    notebook: str
    tests: Names
    task: list[Task]
    uses: Names = ()
    weeks: Names = ()
    records: Names = ()

    @model_validator(mode="after")
    def _together(self) -> "Registry":
        ids = [task.id for task in self.task]
        for task in self.task:
            require(ids.count(task.id) == 1, f"there are two tasks {task.id}: an id names one task")
            for other in task.stands_on:
                require(other in ids, f"task {task.id} stands on {other}, which is not in this file")
        return self


@dataclass(frozen=True)
class Week:
    """One week's folder, and its registry."""

    name: str
    title: str
    folder: Path
    notebook: Path
    tests: tuple[Path, ...]
    tasks: tuple[Task, ...]
    uses: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    weeks: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        return self.folder.name

    @property
    def below(self) -> tuple[Path, ...]:
        """The folders of the earlier weeks that its modules import."""
        return tuple(self.folder.parent / name for name in self.weeks)

    def task(self, id: str) -> Task:
        """The task with this id. KeyError without one; `id in week` asks."""
        return {task.id: task for task in self.tasks}[id]

    def __contains__(self, id: str) -> bool:
        return any(task.id == id for task in self.tasks)

    def points(self, *kinds: str) -> float:
        """Points of all tasks of these kinds (of all kinds, if none is named)."""
        return sum(task.points for task in self.tasks if not kinds or task.kind in kinds)

    @property
    def hours(self) -> float:
        """The sum of the hours in its README's table of tasks, stretch tasks left out: their points are no number."""
        readme = (self.folder / "README.md").read_text("utf-8")
        return sum(map(float, re.findall(r"^\|.*\| \d+ \| ([\d.]+)[^|]*\|$", readme, re.MULTILINE)))


def task(id: str, *, points: float, like: str = "") -> Callable[[Callable], Callable]:
    """Decorator of a test: which task it judges, and its share of the task's points (its cases divide the share).

    like    a test whose seed it gets: with `call(shared=True)` both judge the answer to one call, from two sides
    """
    import pytest

    return pytest.mark.task(id, points=points, like=like)


def load_week(folder: str | Path) -> Week:
    """Read a week's registry. LabError names the file and what is wrong in it."""
    folder = Path(folder).resolve()
    path = folder / REGISTRY
    if not path.exists():
        raise LabError(f"{folder} is no week's folder: it has no {REGISTRY}")
    found = load_toml(path, Registry)
    tasks = tuple(task.replace(uses=(*found.uses, *task.uses)) for task in found.task)
    name = re.match(r"week\d+", folder.name)
    return Week(
        name.group() if name else folder.name,
        found.title,
        folder,
        folder / found.notebook,
        tuple(folder / test for test in found.tests),
        tasks,
        tuple(dict.fromkeys(name for task in tasks for name in task.uses)),
        found.records,
        found.weeks,
    )


def find_weeks(start: str | Path | None = None) -> list[Week]:
    """The weeks of the course that `start` (default: the working directory) lies in, else of labkit's; in order."""
    start = Path(start or Path.cwd()).resolve()
    for root in (start, *start.parents, Path(__file__).resolve().parents[2]):
        folders = [path.parent for name in FOLDERS for path in sorted(root.glob(f"{name}/{REGISTRY}"))]
        if folders:
            return [load_week(folder) for folder in folders]
    raise LabError("there is no course here: go to the folder that holds the week folders, and try again")


def find_week(name: str, weeks: Sequence[Week] | None = None) -> Week:
    """The week called "week13" or "week13_allreduce". LabError with the nearest name for an unknown one."""
    weeks = find_weeks() if weeks is None else weeks
    wanted = name.strip().rstrip("/")
    found = next((week for week in weeks if wanted in (week.name, week.package)), None)
    if found is None:
        raise LabError(f"there is no week {name!r}{nearest(name, [week.name for week in weeks])}")
    return found


def select(names: Sequence[str], weeks: Iterable[Week]) -> list[tuple[Week, tuple[str, ...]]]:
    """What "13.4", "week13", "week13_allreduce" or nothing mean: weeks with the ids to check. LabError: unknown."""
    ids: dict[str, tuple[str, ...]] = {}  # by every name that one may type
    for week in (weeks := list(weeks)):
        ids[week.name] = ids[week.package] = tuple(task.id for task in week.tasks if task.kind != "stretch")
        ids |= {task.id: (task.id,) for task in week.tasks}
    chosen: set[str] = set()
    for name in names or [week.name for week in weeks]:
        if (wanted := name.strip().rstrip("/")) not in ids:
            known = [n for week in weeks for n in (week.name, *(task.id for task in week.tasks))]
            raise LabError(f"there is no task or week {name!r}{nearest(wanted, known)}")
        chosen.update(ids[wanted])
    return [(week, own) for week in weeks if (own := tuple(t.id for t in week.tasks if t.id in chosen))]
