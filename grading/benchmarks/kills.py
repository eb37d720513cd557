"""`grade run` killed at twenty random moments: does the next run go on, and are the marks those of an undisturbed run?

    python -m grading.benchmarks.kills --out results/2026-11-21-grading-kills.json

The class of 29 (classroom.py) is graded once undisturbed. Then again from nothing with the same seed, and the grader is
killed (SIGKILL, no warning) at random moments, twenty times, before a last run finishes: the first four while it measures
the reference, the others, which find that done, while it judges. Shown: how many marks each run found and left, that no
process stayed, that no mark was lost, and that the marks are equal but for their times.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path

from grading.benchmarks.against_nbgrader import hardware_and_versions
from grading.benchmarks.classroom import CLASS, grade_run, make_class, marks_in
from grading.register.classes import open_class
from grading.run import class_seed
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import run_command
from labkit.record.files import writable

KILLS, AT_THE_REFERENCE = 20, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=20261121, help="of the moments")
    parser.add_argument("--only", default="", help="names of submissions, by comma")
    args = parser.parse_args()
    writable(args.out.parent)
    week = next(week for week in find_weeks(Path(__file__)) if week.name == "week13")
    chosen = [made for made in CLASS if not args.only or made.name in args.only.split(",")]
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="grading-kills-") as name:
        root = Path(name)
        make_class(week, root / "killed", [(made.name, made) for made in chosen])
        with open_class(root / "killed", [week]) as cls:
            class_seed(cls, week)
        shutil.copytree(root / "killed", root / "calm")
        begin = time.perf_counter()
        undisturbed = subprocess.run(
            grade_run(root / "calm", 2), cwd=week.folder.parent, capture_output=True, text=True
        )
        calm = time.perf_counter() - begin
        if undisturbed.returncode:
            sys.exit(undisturbed.stderr)
        want = verdicts(week, root / "calm")
        runs = []
        for turn in range(KILLS):
            if turn == AT_THE_REFERENCE:
                measured = Path(".work") / week.name / "reference.json"
                (root / "killed" / measured).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / "calm" / measured, root / "killed" / measured)
            after = draw.uniform(0.2, 4.0 * calm / KILLS)
            there = len(marks_in(week, root / "killed"))
            process = subprocess.Popen(
                grade_run(root / "killed", 2),
                cwd=week.folder.parent,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                process.wait(timeout=after)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            runs.append(
                {
                    "seconds": round(after, 2),
                    "killed": process.returncode == -signal.SIGKILL,
                    "marks_before": there,
                    "marks_after": len(marks_in(week, root / "killed")),
                    "left_processes": left(str(root)),
                }
            )
            print(runs[-1], flush=True)
        last = subprocess.run(grade_run(root / "killed", 2), cwd=week.folder.parent, capture_output=True, text=True)
        got = verdicts(week, root / "killed")
        record = {
            "kind": "grading killed",
            "command": "python -m grading.benchmarks.kills",
            "date": date.today().isoformat(),
            **hardware_and_versions(),
            "submissions": len(chosen),
            "undisturbed_seconds": round(calm, 1),
            "runs": runs,
            "last_status": last.returncode,
            "last_line": last.stdout.strip().splitlines()[-1],
            "marks_lost": sum(max(0, one["marks_after"] - two["marks_before"]) for one, two in pairwise(runs)),
            "marks_equal": got == want,
            "marks": len(got),
        }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    kept = record["marks_equal"] and not record["marks_lost"]
    print("the marks are equal, none was lost" if kept else "THE MARKS DIFFER")
    sys.exit(0 if kept and last.returncode == 0 else 1)


def verdicts(week: Week, folder: Path) -> dict:
    """The marks without their times: points and verdicts of every case."""
    return {
        student: [(case["test"], case["verdict"], case["points"]) for case in mark.cases]
        for student, mark in marks_in(week, folder).items()
    }


def left(word: str, seconds: float = 5.0) -> int:
    """Processes with this word in their command line, so long after the kill at most."""
    deadline = time.monotonic() + seconds
    while True:
        found = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found += word in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


if __name__ == "__main__":
    run_command("kills", main)
