"""How long `grade load` takes for a class: python -m grading.benchmarks.gradebook --students 300

Marks and submissions of week 13 are made up (every third student has failures with diagnoses), each submission is the
released notebook and modules; then the class is loaded, once into an empty gradebook and once again. Timed is what
`grade load` does after its start: reading marks and submissions, the gradebook, the notebooks for formgrader.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from grading.gradebook.init import init
from grading.gradebook.load import files_of, load
from grading.marks import Mark, write
from labkit.checks.tasks import Task, Week, find_week
from labkit.checks.verdict import PASSED, WRONG

TEXT = "rank 2: chunk 1 differs\n  expected  [6, 8, 10]\n  got       [2, 4, 6]\n  cause: do not divide by N\n" * 3


def main(
    students: Annotated[int, typer.Option(min=1)] = 300,
    week: str = "week13",
    cases: Annotated[int, typer.Option(min=1, help="Cases of each automatic task.")] = 8,
) -> None:
    """Load a made-up class twice and print the seconds as JSON."""
    found = find_week(week)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        course = init(root / "course", source=found.folder.parent).course
        released = course.root / "source" / found.name
        for number in range(students):
            student = f"student{number:04}"
            write(root / "marks", _mark(found, student, cases, fails=number % 3 == 0))
            _hand_in(found, released, root / "submitted" / student / found.name)
        seconds = []
        for _ in range(2):
            begin = time.monotonic()
            report = load(course, found, root / "marks", files=files_of(root / "submitted", found))
            seconds.append(round(time.monotonic() - begin, 2))
    assert report.same == students and not report.human, report.sentences()
    print(
        json.dumps(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "what": "grade load",
                "week": week,
                "students": students,
                "cases_per_task": cases,
                "seconds": seconds[0],
                "seconds_again": seconds[1],
                "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "cores": os.cpu_count(),
                "machine": platform.machine(),
                "python": platform.python_version(),
                **{name: version(name) for name in ("nbgrader", "SQLAlchemy")},
            },
            indent=1,
        )
    )


def _mark(week: Week, student: str, cases: int, fails: bool) -> Mark:
    tasks = [_task(task, cases, fails) for task in week.tasks if task.kind != "stretch"]
    return Mark(student, week.name, received="2026-10-05T12:30:00+00:00", tasks=tasks)


def _task(task: Task, cases: int, fails: bool) -> dict[str, Any]:
    share = task.points / cases
    lost = cases // 2 if fails else 0
    found: list[dict[str, Any]] = [
        {
            "test": f"test_week.py::test_{number}",
            "behaviour": f"behaviour {number}: N=4, L=1000",
            "verdict": WRONG if number < lost else PASSED,
            "points": 0 if number < lost else share,
            "possible": share,
            "seconds": 0.1,
            "text": TEXT if number < lost else "",
            "cause": [],
            "printed": "",
        }
        for number in range(cases)
    ]
    return {
        "id": task.id,
        "title": task.title,
        "kind": task.kind,
        "cell": task.cell,
        "possible": task.points,
        "points": None if task.kind == "written" else sum(case["points"] for case in found),
        "cases": [] if task.kind == "written" else found,
    }


def _hand_in(week: Week, released: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    modules = {module.split(".")[0] + ".py" for task in week.tasks for module in task.modules}
    for name in (week.notebook.name, *modules):
        if (released / name).is_file():
            (folder / name).write_bytes((released / name).read_bytes())


if __name__ == "__main__":
    typer.run(main)
