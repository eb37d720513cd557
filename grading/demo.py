"""`grade demo`: the last act of `make demo`. It releases week 13, hands in four submissions and grades them.

reference   the course's own solutions
blank       what students get, untouched
wrong       one index of the ring is off by one
hanging     every rank sends before it receives
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

WEEK = "week13"
# What a student might have written: (file, the reference's line, theirs).
WRONG = ("collectives.py", "return finish_(chunk[r], op, N)", "return finish_(chunk[(r + 1) % N], op, N)")
HANGING = (
    "collectives.py",
    "        group.sendrecv(chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N])\n",
    "        group.send(chunk[(r - s) % N], dst=right)\n        group.recv(left, out=chunk[(r - s - 1) % N])\n",
)


def demo(out: Path, jobs: int = 2) -> None:
    """Do all of it below `out`, and print the class's table."""
    from rich.console import Console

    from grading import run as running
    from grading.release import release
    from grading.sandbox import isolation
    from grading.table import class_table, shown

    console = Console()
    week = next((week for week in find_weeks() if week.name == WEEK), None)
    if week is None:
        raise LabError(f"this course has no {WEEK}: run the demo in a whole copy of it")
    for folder in ("submitted", "marks"):
        shutil.rmtree(out / folder, ignore_errors=True)
    console.print(f"\nGrading: {WEEK} is released to students, and four submissions come back.", style="bold")
    with tempfile.TemporaryDirectory(prefix="grade-demo-") as students:  # outside the course, as every release
        release(Path(students, "tree"), [WEEK], source=week.folder.parent)
        hand_in(out / "submitted", Path(students, "tree") / week.package, week)
    why = isolation.missing()
    if why:
        console.print(
            f"No submission can be shut in on this machine ({why}), so these four, which are our own, run "
            "UNSANDBOXED. `grade doctor` tells what is missing.",
            style="bold red",
            highlight=False,
        )
    with shown(console) as told:
        report = running.run(
            week,
            out / "submitted",
            out / "marks",
            jobs=jobs,
            told=told,
            isolation=running.UNSANDBOXED if why else running.SANDBOXED,
        )
    class_table(report, console)
    for mark in report.all:
        told_once = next((case for case in mark.cases if case["verdict"] in ("wrong", "hung")), None)
        if told_once is not None:
            console.print(f"\n{mark.student}, {told_once['behaviour']}:", highlight=False)
            console.print(
                "    " + told_once["text"].partition("\n\n")[0].replace("\n", "\n    "),
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def hand_in(to: Path, released: Path, week: Week) -> None:
    """The four submissions, as nbgrader's submitted/STUDENT/ASSIGNMENT/."""
    solved = {
        path.name: path.read_text(encoding="utf-8") for path in week.folder.glob("*.py") if path not in week.tests
    }
    names = {f"{module}.py" for task in week.tasks if task.kind == "auto" for module in task.modules}
    for student, edit in (("reference", None), ("blank", None), ("wrong", WRONG), ("hanging", HANGING)):
        folder = to / student / week.name
        folder.mkdir(parents=True)
        shutil.copyfile(released / week.notebook.name, folder / week.notebook.name)
        for name in sorted(names):
            text = (released / name).read_text(encoding="utf-8") if student == "blank" else solved[name]
            if edit is not None and edit[0] == name:
                if edit[1] not in text:
                    raise LabError(f"the demo's {student} submission changes a line of {name} that is gone")
                text = text.replace(edit[1], edit[2])
            (folder / name).write_text(text, encoding="utf-8")
