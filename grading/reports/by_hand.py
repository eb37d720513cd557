"""What people gave by hand: points, extra points and comments, read from nbgrader's gradebook if there is one.

Read only. A written task's points are given when its cell has a manual score; an automatic task has points here only if
somebody overruled its mark. What `grade load` put there itself, the automatic scores, is not read back: marks are.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.checks.tasks import Week
from labkit.errors import LabError

if TYPE_CHECKING:
    from grading.gradebook.course import Course
    from grading.marks import Mark


HEAD, NOTE = 4096, re.compile(r'"labkit": (\{[^{}]*\})')  # the note stands in front of a class's megabytes of cells
GRADE = ("manual_score", "extra_credit", "needs_manual_grade", "auto_score")


@dataclass
class ByHand:
    """One task of one student.

    points      given by a person (None: not given), of `possible`
    extra       given on top of whatever points there are
    again       what it was given for changed since: somebody should look again
    automatic   an automatic task's points as the gradebook has them; None: they are left to a person, or not there
    of          (attempt, hash of the submission) that the gradebook shows; None: it does not tell
    comments    as they were written
    """

    task: str
    points: float | None = None
    extra: float = 0.0
    again: bool = False
    automatic: float | None = None
    of: tuple[int, str] | None = None
    comments: list[str] = field(default_factory=list)

    def is_of(self, mark: Mark) -> bool:
        """Whether the gradebook shows this attempt, with this file of it; True where it does not tell."""
        return self.of is None or self.of in ((mark.attempt, mark.submission), (mark.attempt, ""))


def all_by_hand(course: Path, week: Week) -> dict[str, dict[str, ByHand]]:
    """student -> task id -> what was given by hand, of the whole class in two queries; {} without a course directory or
    without nbgrader."""
    there = course_directory(course)
    if there is None:
        return {}
    from nbgrader.api import Assignment, BaseCell, Comment, Grade, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy.exc import SQLAlchemyError

    from grading.gradebook.course import student_of

    cells = {task.cell: task for task in week.tasks}
    out: dict[str, dict[str, ByHand]] = {}

    def rows(book: Any, kind: Any, *columns: Any) -> list:
        query = (
            book.db.query(SubmittedAssignment.student_id, BaseCell.name, *columns)
            .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(kind, kind.notebook_id == SubmittedNotebook.id)
            .join(BaseCell, BaseCell.id == kind.cell_id)
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .filter(Assignment.name == week.name)
            .order_by(BaseCell.name)
        )
        return [(student_of(who), cells[name], *rest) for who, name, *rest in query if name in cells]

    def entry(who: str, task: str) -> ByHand:
        return out.setdefault(who, {}).setdefault(task, ByHand(task))

    try:
        with there.gradebook() as book:
            grades = rows(book, Grade, *(getattr(Grade, name) for name in GRADE))
            comments = rows(book, Comment, Comment.manual_comment)
    except SQLAlchemyError as error:
        raise LabError(
            f"nbgrader's gradebook in {there.root} cannot be read ({type(error).__name__}): run "
            "'nbgrader db upgrade' there if it is of an older version"
        ) from None
    shown = cache(lambda who: _shown(there, week, who))
    for who, task, score, extra, open_, automatic in grades:
        if score is not None or extra:
            given = entry(who, task.id)
            given.points, given.extra, given.again = score, extra or 0.0, bool(open_ and score is not None)
            given.automatic, given.of = automatic, shown(who)
    for who, task, comment in comments:
        if comment and comment.strip():
            entry(who, task.id).comments.append(comment.strip())
    return out


def _shown(course: Course, week: Week, student: str) -> tuple[int, str] | None:
    """Which attempt formgrader shows, by what `grade load` wrote beside it."""
    from grading.gradebook.course import gradebook_id

    try:
        place = course.folder(course.autograded, gradebook_id(student), week.name) / week.notebook.name
        with place.open(encoding="utf-8") as file:
            note = json.loads(NOTE.search(file.read(HEAD))[1])  # type: ignore[index]  # None is caught
        return int(note["attempt"]), str(note.get("submission", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LabError):
        return None


def course_directory(folder: Path) -> Course | None:
    """nbgrader's course directory that `folder` is or lies in; None without one, or without nbgrader."""
    from grading.gradebook.course import CONFIG, open_course

    start = folder.resolve()
    if not any((path / CONFIG).is_file() for path in (start, *start.parents)):
        return None
    if importlib.util.find_spec("nbgrader") is None:
        return None
    return open_course(start)
