"""What formgrader's first page counts: folders of nbgrader's own, which this course does not grade from.

"# Submissions" counts the folders submitted/STUDENT/week13, and "Status" says "released" if the exchange has a folder
outbound/week13. Without an exchange the page begins with a warning. So `grade course init` makes an exchange inside of
the course directory, and `grade load` makes the folders of the students whose marks it loads. They hold the time of
handing in and nothing else. An exchange that students use is made ready for what they hand in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from grading.files import put
from grading.gradebook.course import Course
from grading.intake.receipts import MARKER
from labkit.checks.tasks import Week

TIMESTAMP = "timestamp.txt"
OURS = ".by-grade-load"


def exchange(course: Course, weeks: Sequence[Week]) -> list[str]:
    """Make the folders of the exchange. In one that lies elsewhere, which students share, `nbgrader submit` works then:
    it wants an inbound/ that everybody may write into and nobody list, and an outbound/week13_allreduce. What is there
    already stays as it is. Sentences on what students type, or on what is in the way."""
    if (root := _own_exchange(course)) is not None:
        for which in ("inbound", "outbound", "feedback"):
            (root / course.id / which).mkdir(parents=True, exist_ok=True)
    if root is not None or not course.exchange:
        return []
    place = Path(course.exchange) / course.id
    try:
        for folder, mode in (("", 0o755), ("inbound", 0o733), ("outbound", 0o755), ("feedback", 0o711)):
            _made(place / folder, mode)
        for week in weeks:
            _made(place / "outbound" / week.package, 0o755)
    except OSError as error:
        return [f"{place} cannot be made ready for hand-ins ({error.strerror}): nbgrader submit fails until it is"]
    return [
        f"Students hand in from the folder that holds the weeks: nbgrader submit {weeks[0].package} --course "
        f"{course.id} --Exchange.root={course.exchange}"
    ]


def _made(folder: Path, mode: int) -> None:
    """Make a folder of this mode, whatever the umask; one that is there keeps its own."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(mode)


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
