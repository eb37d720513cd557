"""In Gradescope's container: one submission graded, and results.json written.

    ROOT/submission/                 the student's files
    ROOT/submission_metadata.json    who and when
    ROOT/results/results.json        score, and one test for each case

What was expected and what came is shown after the grades are published, and not before: it tells of hidden data. If the
grader itself fails there is no results.json: Gradescope then tells of a failed autograder, and nobody gets a zero.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from grading import run as running
from grading.files import put
from grading.gradescope.pack import SETTINGS
from grading.intake.attempts import Download, Item, arrival
from grading.intake.guesses import plain
from grading.judge import Entry
from grading.mark import UNSANDBOXED, Mark
from grading.publish import page
from grading.sandbox import isolation
from labkit.checks.tasks import Week, find_week, find_weeks
from labkit.checks.verdict import PASSED
from labkit.errors import LabError

AFTER = "after_published"


def main(argv: list[str]) -> int:
    """Grade; 0 if there is a result."""
    root = Path(argv[0])
    try:
        settings = json.loads(Path(SETTINGS).read_text())
        week = find_week(settings["week"], find_weeks(Path.cwd()))
        mark = grade(root, week, settings["seed"], unsandboxed=settings["unsandboxed"])
    except LabError as error:
        print(f"no result: {error}", file=sys.stderr)
        return 1
    if not mark.complete:
        print("no result, the grader failed: " + " ".join(mark.attention), file=sys.stderr)
        return 1
    (root / "results").mkdir(exist_ok=True)
    put(
        root / "results" / "results.json", json.dumps(results(week, mark), indent=1).encode("utf-8", "backslashreplace")
    )
    return 0


def grade(root: Path, week: Week, seed: int, *, unsandboxed: bool) -> Mark:
    """The mark of what lies in ROOT/submission. LabError where nothing can be shut in and that is asked for."""
    how = running.SANDBOXED
    if why := isolation.missing():
        if not unsandboxed:
            raise LabError(
                f"this machine cannot shut a submission in ({why}); `grade gradescope --unsandboxed` makes an "
                "archive that grades all the same, with the rights of the autograder"
            )
        how = running.UNSANDBOXED
    with tempfile.TemporaryDirectory(prefix="gradescope-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # the sandbox's user is another one
        path, found = folder / "submission.zip", Download("Gradescope")
        one = arrival([Item(root / "submission", plain("student", True))], path, found, week)
        entry = Entry(1, path, (), tuple(one.notes), tuple(one.attention))
        (mark,) = running.again(week, [entry], seed, folder / "work", isolation=how)
        return mark


def results(week: Week, mark: Mark) -> dict[str, Any]:
    """results.json: the automatic points, and a test for each case."""
    said = [page.visible(note, 600, 6) for note in mark.notes]
    if mark.isolation == UNSANDBOXED:
        said.append("UNSANDBOXED: this was graded without isolation.")
    written = [task for task in week.tasks if task.kind == "written"]
    said += [f"Task {task.id} ({task.points:g} points) is graded by a person." for task in written]
    tests = []
    for task in mark.tasks:
        if task["kind"] != "auto":
            continue
        scale = task["possible"] / (sum(case["possible"] for case in task["cases"]) or 1)  # cases' points are rounded
        for number, case in enumerate(task["cases"], 1):
            tests.append(
                {
                    "name": f"{task['id']} {page.one_line(case['behaviour'], 200)}",
                    "number": f"{task['id']}.{number}",
                    "score": round(case["points"] * scale, 4),
                    "max_score": round(case["possible"] * scale, 4),
                    "status": "passed" if case["verdict"] == PASSED else "failed",
                    "output": "" if case["verdict"] == PASSED else page.visible(page.here(case["text"])),
                    "visibility": "visible" if case["verdict"] == PASSED else AFTER,
                }
            )
    return {
        "score": mark.points,
        "execution_time": round(mark.seconds),
        "output": "\n".join(said),
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {"week": week.name, "submission": mark.content, "isolation": mark.isolation},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
