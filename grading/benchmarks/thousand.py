"""How much memory does the grader itself need for a thousand submissions?

    python -m grading.benchmarks.thousand --out results/2026-11-21-grading-1000.json [--count 1000]

Each submission is week 13 as released, signed by another student, so all its cases are run and reported. What is looked at
is the `grade run` process: its peak resident memory as the kernel counts it (VmHWM), read every second, and how it grew
with the marks. Judges and sandboxes are processes of their own, as many as --jobs.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from grading.benchmarks.against_nbgrader import hardware_and_versions
from grading.benchmarks.classroom import RING, Made, grade_run, make_class, marks_in
from labkit.checks.tasks import find_weeks
from labkit.errors import run_command
from labkit.record.files import writable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="kept, and gone on with: the record then says how many marks were there before"
    )
    args = parser.parse_args()
    writable(args.out.parent)
    week = next(week for week in find_weeks(Path(__file__)) if week.name == "week13")
    with tempfile.TemporaryDirectory(prefix="grading-1000-") as name:
        root = args.folder or Path(name, "class")
        if not root.exists():
            signed = [(("*", "", ""), (RING, "", f"\n# student {number}\n")) for number in range(args.count)]
            class_ = [(f"student{n:04}", Made("blank", "wrong", edits)) for n, edits in enumerate(signed)]
            make_class(week, root, class_)
        before = len(marks_in(week, root))
        command = grade_run(root, args.jobs)
        grown: list[dict[str, float]] = []
        begin, highest = time.perf_counter(), 0.0
        process = subprocess.Popen(command, cwd=week.folder.parent, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
            made = len(marks_in(week, root))
            if peak:
                highest = max(highest, int(peak[1]) / 1024)
                if made >= (grown[-1]["marks"] + max(1, args.count // 20) if grown else before + 1):
                    grown.append({"marks": made, "mib": round(highest, 1)})
                    print(grown[-1], flush=True)
            time.sleep(1.0)
        seconds = time.perf_counter() - begin
        made = len(marks_in(week, root))
    record = {
        "kind": "grading 1000",
        "command": f"python -m grading.benchmarks.thousand --count {args.count} --jobs {args.jobs}",
        "date": date.today().isoformat(),
        **hardware_and_versions(),
        "submissions": args.count,
        "marks": made,
        "marks_before": before,
        "status": process.returncode,
        "seconds": round(seconds, 1),
        "peak_mib": round(highest, 1),
        "grown": grown,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['peak_mib']} MiB at its peak, {made} marks in {seconds:.0f} s")
    sys.exit(0 if made == args.count and process.returncode == 0 else 1)


if __name__ == "__main__":
    run_command("thousand", main)
