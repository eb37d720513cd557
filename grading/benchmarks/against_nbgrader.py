"""The class of 29 graded twice on the same machine: by `grade run`, and by plain `nbgrader autograde`.

    python -m grading.benchmarks.against_nbgrader --jobs 2,3 --out results/2026-11-21-grading-29.json

nbgrader is set up as its documentation says: a source notebook with locked test cells, `generate_assignment`, then
`autograde`, which executes every submission's notebook in a kernel, one after the other. The test cells run this week's
own checks (`check("13.4")`), so both judge the same behaviours. The notebook holds these cells alone: the lab's
experiments, which nbgrader would execute for every student as well, are left out in its favour.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from importlib import metadata
from pathlib import Path

from grading.benchmarks.classroom import CLASS, Made, grade_run, make_class, marks_in, write
from grading.marking.cells import FORMAT, code_cell, tag
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import run_command
from labkit.record import hardware
from labkit.record.files import writable

CONFIG = """c = get_config()
c.CourseDirectory.course_id = "bench"
c.CourseDirectory.root = {root!r}
c.ClearSolutions.code_stub = {{"python": "raise NotImplementedError()"}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", default="2,3", help="of grade run; several, by comma, one after the other")
    parser.add_argument("--only", default="", help="names of submissions, by comma")
    args = parser.parse_args()
    writable(args.out.parent)
    week = next(week for week in find_weeks(Path(__file__)) if week.name == "week13")
    chosen = [made for made in CLASS if not args.only or made.name in args.only.split(",")]
    record = {
        "kind": "grading 29",
        "command": f"python -m grading.benchmarks.against_nbgrader --jobs {args.jobs}"
        + (f" --only {args.only}" if args.only else ""),
        "date": date.today().isoformat(),
        **hardware_and_versions(),
        "submissions": {made.name: made.kind for made in chosen},
    }
    with tempfile.TemporaryDirectory(prefix="grading-29-") as folder:
        record["grade_run"] = {}
        for jobs in args.jobs.split(","):
            record["grade_run"][jobs] = ours(week, Path(folder, f"jobs{jobs}"), chosen, int(jobs))
            show(f"grade run --jobs {jobs}", record["grade_run"][jobs])
        record["nbgrader"] = theirs(week, Path(folder), chosen)
        show("nbgrader", record["nbgrader"])
    record["times_faster"] = {
        jobs: round(record["nbgrader"]["seconds"] / one["seconds"], 2) for jobs, one in record["grade_run"].items()
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"times faster, by jobs: {record['times_faster']}")


def hardware_and_versions() -> dict:
    found = {}
    for name in ("torch", "numpy", "nbgrader"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {"hardware": hardware.describe(), "versions": {"python": sys.version.split()[0], **found}}


def ours(week: Week, folder: Path, chosen: list[Made], jobs: int) -> dict:
    """`grade run`, as a command: wall clock, and what its marks say."""
    make_class(week, folder, [(made.name, made) for made in chosen])
    command = grade_run(folder, jobs)
    begin, busy = time.perf_counter(), machine_seconds()
    done = subprocess.run(command, cwd=week.folder.parent, capture_output=True, text=True)
    seconds, busy = time.perf_counter() - begin, machine_seconds() - busy
    if done.returncode != 0:
        raise SystemExit(done.stderr + done.stdout)
    found = {}
    for student, mark in marks_in(week, folder).items():
        found[student] = {
            "points": mark.points,
            "seconds": mark.seconds,
            "core_seconds": mark.core_seconds,
            "verdicts": mark.verdicts(),
        }
    return {
        "seconds": round(seconds, 2),
        "machine_core_seconds": round(busy, 1),
        "each": found,
        "peak_rss_mib": _children_mib(),
    }


def theirs(week: Week, folder: Path, chosen: list[Made]) -> dict:
    """Plain nbgrader: wall clock, and the scores in its gradebook."""
    root = folder / "nbgrader"
    source = root / "source" / week.name
    source.mkdir(parents=True)
    (root / "nbgrader_config.py").write_text(CONFIG.format(root=str(root)))
    (source / "lab.ipynb").write_text(json.dumps(notebook(week)))
    run(["generate_assignment", week.name, "--create"], root)
    for made in chosen:
        to = root / "submitted" / made.name / week.name
        shutil.copytree(root / "release" / week.name, to)
        package = to / week.package
        shutil.copytree(week.folder, package, ignore=shutil.ignore_patterns("__pycache__", "results", "*.ipynb"))
        for task in week.tasks:
            for module in task.modules:
                if "." not in module:
                    (package / f"{module}.py").unlink(missing_ok=True)
        write(week, package, made)
    begin, busy = time.perf_counter(), machine_seconds()
    run(["autograde", week.name], root, check=False)
    seconds, busy = time.perf_counter() - begin, machine_seconds() - busy
    from nbgrader.api import Gradebook

    found = {}
    with Gradebook(f"sqlite:///{root}/gradebook.db") as book:
        for made in chosen:
            try:
                found[made.name] = {"points": round(book.find_submission(week.name, made.name).score, 2)}
            except Exception as error:  # not graded: nbgrader gave up on it
                found[made.name] = {"points": None, "why": type(error).__name__}
    return {"seconds": round(seconds, 2), "machine_core_seconds": round(busy, 1), "each": found}


def notebook(week: Week) -> dict:
    """One locked test cell a task: the last value is the points, which nbgrader takes as partial credit."""
    cells = [code_cell("start", "from labkit.checks import check")]
    for task in week.tasks:
        if task.kind == "auto":
            source = f'outcome = check("{task.id}", seed=13)\nfloat(outcome.earned)'
            cells.append(code_cell(task.cell, source, nbgrader=tag(task)))
    return {**FORMAT, "cells": cells}


def run(command: list[str], root: Path, check: bool = True) -> None:
    # nbgrader looks for alembic in PATH.
    env = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command], cwd=root, env=env, capture_output=True, text=True
    )
    if check and done.returncode != 0:
        raise SystemExit(done.stderr[-3000:])


def show(name: str, result: dict) -> None:
    print(f"{name}: {result['seconds']:.1f} s")
    for student, one in result["each"].items():
        print("   ", student, one)


def machine_seconds() -> float:
    """Seconds for which this machine's processors have been busy since it started, for whatever."""
    with open("/proc/stat") as file:
        user, nice, system = file.readline().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _children_mib() -> float:
    """The largest process that has been waited for so far."""
    return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1)


if __name__ == "__main__":
    run_command("against_nbgrader", main)
