"""The last act of `make demo`: python -m grading.demo [FOLDER]. Week 13 is released, and four submissions are graded.

reference   the course's own solutions
blank       what students get, untouched
wrong       one index of the ring is off by one
hanging     every rank sends before it receives
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grading.files import zipped
from labkit.checks.tasks import Week, find_week, find_weeks
from labkit.errors import LabError, run_command

WEEK = "week13"
# What a student might have written in collectives.py: the reference's text, theirs.
MISTAKES = {
    "wrong": ("return finish_(chunk[r], op, N)", "return finish_(chunk[(r + 1) % N], op, N)"),
    "hanging": (
        "        group.sendrecv(chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N])\n",
        "        group.send(chunk[(r - s) % N], dst=right)\n        group.recv(left, out=chunk[(r - s - 1) % N])\n",
    ),
}


def demo(out: Path, jobs: int = 2) -> Path:
    """Do all of it below `out`, print the class's table, and return the class's page."""
    from rich.console import Console

    from grading import run as running
    from grading.intake.arrival import Arrival, Key
    from grading.publish import publishing
    from grading.register.classes import init_class, open_class
    from grading.register.submissions import add_submission
    from grading.release import release
    from grading.sandbox import isolation
    from grading.table import class_table

    console = Console()
    week = find_week(WEEK, find_weeks())
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    console.print(f"\nGrading: {WEEK} is released to students, and four submissions come back.", style="bold")
    with tempfile.TemporaryDirectory(prefix="grade-demo-") as students:  # outside the course, as every release
        release(Path(students, "tree"), [WEEK], source=week.folder.parent)
        archives = dict(submissions(Path(students, "tree"), week))
    (out / "roster.csv").write_text("\n".join(["student", *archives]))
    why = isolation.missing()
    if why:
        console.print(
            f"No submission can be shut in on this machine ({why}), so these four, which are our own, run "
            "UNSANDBOXED. `grade doctor` says what is missing.",
            style="bold red",
            highlight=False,
        )
    init_class(out, out / "roster.csv", "UTC")
    with open_class(out) as cls:
        for student, files in archives.items():
            add_submission(cls, week, Arrival(student, [Key("id", student)], files, None, "folder", "the demo"))
        wishes = running.Wishes(jobs, isolation=running.UNSANDBOXED if why else running.SANDBOXED)
        report = running.run(cls, week, wishes, print)
        made = publishing.publish(cls, week, publishing.Wishes(pages=True))
    class_table(report, console)
    return made.folder / "class.html"


def submissions(released: Path, week: Week) -> Iterator[tuple[str, bytes]]:
    """The four of them: who, and the zip that they hand in."""
    from grading.run import reference_submission

    solved = reference_submission(week).files
    blank = {path: (released / path).read_bytes() for path in solved}
    solved |= {path: data for path, data in blank.items() if path.endswith(".ipynb")}
    yield "reference", zipped(solved)
    yield "blank", zipped(blank)
    path = f"{week.package}/collectives.py"
    for student, (old, new) in MISTAKES.items():
        text = solved[path].decode()
        if old not in text:
            raise LabError(f"the demo's {student} submission changes a line of {path} that is gone")
        yield student, zipped(solved | {path: text.replace(old, new).encode()})


def main() -> None:
    there = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/grading-demo")
    page, compared = demo(there).resolve(), Path("runs/demo/report.html").resolve()
    print("\nTo look at, in a browser:")
    if compared.is_file():
        print(f"  {compared}    FP8 against BF16, on this machine")
    print(f"  {page}    what this class has not understood")


if __name__ == "__main__":
    run_command("demo", main)
