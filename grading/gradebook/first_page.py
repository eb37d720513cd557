"""What formgrader's first page counts: folders of nbgrader's own, which this course does not grade from.

"# Submissions" counts the folders submitted/STUDENT/week13, and "Status" says "released" if the exchange has a folder
outbound/week13. Without an exchange the page begins with a warning. So `grade course init` makes an exchange inside of
the course directory, unless it was given one that students use, and `grade load` makes the folders of the students
whose marks it loads. They hold the time of handing in and nothing else.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

from grading.files import put
from grading.gradebook.course import Course
from grading.intake.receipts import MARKER
from labkit.checks.tasks import Week

TIMESTAMP = "timestamp.txt"
OURS = ".by-grade-load"


def exchange(course: Course) -> None:
    """Make the exchange that lies in the course directory; one that lies elsewhere is somebody else's."""
    if (root := _own_exchange(course)) is not None:
        for which in ("inbound", "outbound", "feedback"):
            (root / course.id / which).mkdir(parents=True, exist_ok=True)


def has_come(course: Course, week: Week, student: str, received: datetime | None) -> None:
    """Count a student's hand-in, and the week as released.

    student    as nbgrader knows them
    received   in UTC, as the gradebook has it: formgrader takes a submission whose times differ for not graded"""
    if (root := _own_exchange(course)) is not None:
        with contextlib.suppress(OSError):
            (root / course.id / "outbound" / week.name).mkdir(parents=True, exist_ok=True)
    folder = course.folder(course.submitted, student, week.name)
    if (folder.parent.parent / week.name / MARKER).exists():
        return  # `grade collect` keeps attempts there
    if folder.is_dir() and not is_ours(folder):
        return  # nbgrader's own, with what was handed in
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OURS).touch()
    if received is not None:
        put(folder / TIMESTAMP, f"{received:%Y-%m-%d %H:%M:%S.%f} UTC".encode())
    else:
        (folder / TIMESTAMP).unlink(missing_ok=True)


def is_ours(folder: Path) -> bool:
    """Whether `grade load` made this folder."""
    return (folder / OURS).exists()


def _own_exchange(course: Course) -> Path | None:
    root = Path(course.exchange) if course.exchange else None
    return root if root is not None and root.is_relative_to(course.root) else None
