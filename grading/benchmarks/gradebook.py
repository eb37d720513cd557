"""How long `grade mark` takes until formgrader shows a class: python -m grading.benchmarks.gradebook --students 300

Marks and submissions of week 13 are made up (every third student has failures with diagnoses), each submission is the
released notebook and modules; then the class is brought onto the screen, once into an empty gradebook and once again.
Timed is what `grade mark` does before Jupyter starts: reading class.db and archives, the gradebook, the notebooks.
"""

from __future__ import annotations

import io
import json
import os
import platform
import resource
import tempfile
import time
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from grading.intake.arrival import Arrival, Key
from grading.mark import Mark
from grading.marking.course import make
from grading.marking.session import prepare
from grading.register.classes import init_class, open_class
from grading.register.marks import add_mark
from grading.register.submissions import add_submission
from labkit.checks.tasks import Task, Week, find_week, find_weeks
from labkit.checks.verdict import PASSED, WRONG
from labkit.errors import run_command

TEXT = "rank 2: chunk 1 differs\n  expected  [6, 8, 10]\n  got       [2, 4, 6]\n  cause: do not divide by N\n" * 3


def main(
    students: Annotated[int, typer.Option(min=1)] = 300,
    week: str = "week13",
    cases: Annotated[int, typer.Option(min=1, help="Cases of each automatic task.")] = 8,
) -> None:
    """Prepare a made-up class for marking twice and print the seconds as JSON."""
    found = find_week(week)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "class"
        (Path(folder) / "ids.csv").write_text("\n".join(["student", *map(str, range(students))]))
        init_class(root, Path(folder) / "ids.csv", "UTC")
        course, _ = make(root / "gradebook", find_weeks())
        archive = _archive(found, course.root / "source" / found.name)
        with open_class(root) as cls:
            for number in range(students):
                arrival = Arrival(str(number), [Key("id", str(number))], archive, None, "folder", "made up")
                submission = add_submission(cls, found, arrival).id
                add_mark(cls, _mark(found, submission, cases, fails=number % 3 == 0))
            seconds = []
            for _ in range(2):
                begin = time.monotonic()
                report = prepare(cls, found).report
                seconds.append(round(time.monotonic() - begin, 2))
    assert report.same == students and not report.human, report
    print(
        json.dumps(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "what": "grade mark",
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


def _mark(week: Week, submission: int, cases: int, fails: bool) -> Mark:
    tasks = [_task(task, cases, fails) for task in week.tasks if task.kind != "stretch"]
    return Mark(submission, week.name, tasks=tasks)


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


def _archive(week: Week, released: Path) -> bytes:
    modules = {module.split(".")[0] + ".py" for task in week.tasks for module in task.modules}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted({week.notebook.name, *modules}):
            if (released / name).is_file():
                archive.write(released / name, name)
    return out.getvalue()


if __name__ == "__main__":
    run_command("gradebook", lambda: typer.run(main))
