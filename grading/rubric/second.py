"""A second marker who does not see the first: a course directory of their own, and where the two differ.

The second directory holds the same hand-ins and verdicts and nothing that anybody gave by hand. Formgrader shows a
submission's number there, and no name unless one asks for it. Who is in a sample is told by a hash, so that a second
`grade second` takes the same. The sample's ids are put down first, in sample.json: a directory that was not filled to
its end, or is not marked to its end, says nothing about agreement, and is told.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from grading.files import put
from grading.gradebook.course import SAMPLE, Course, course_root, open_course
from grading.gradebook.init import init
from grading.gradebook.items import Item, Marking, items
from grading.gradebook.load import Files, load
from grading.intake.policy import Rules
from grading.marks import all_marks, quoted
from grading.reports.by_hand import all_by_hand
from grading.reports.together import counting, same_hand_in
from grading.rubric.apply import markings, written
from labkit.checks.tasks import Task, Week
from labkit.errors import LabError

SETTLE = 0.1  # of a task's points: a larger difference is for the two to settle


def sample(students: Sequence[str], week: str, share: float) -> list[str]:
    """A share of the students, at least one: the same ones each time, and others in another week."""
    many = max(1, math.ceil(share * len(students)))
    return sorted(sorted(students, key=lambda s: hashlib.sha256(f"{week}\0{s}".encode()).digest())[:many])


def second(
    week: Week,
    marks: Path,
    to: Path,
    first: Course,
    *,
    share: float,
    files: Files,
    rules: Rules,
    source: Path | None = None,
) -> list[str]:
    """Make the second marker's course directory; who is in it, of a group one member. LabError where it would be the
    first one's, and if nobody has written anything."""
    if to.resolve() == first.root.resolve():
        raise LabError(f"{to} is the first marker's course directory: choose another folder for the second")
    ids = {task.id for task in written(week)}
    students = sorted({mark.student for mark in all_marks(marks, week.name) if ids - set(mark.unanswered)})
    same = same_hand_in(marks, week, rules)
    students = [one for one in students if one == min(set(same[one]) & set(students))]
    if not ids or not students:
        raise LabError(f"{week.name} has no written answers to mark")
    chosen = sample(students, week.name, share)
    course = init(to, source=source).course
    put(to / SAMPLE, json.dumps({**_samples(to), week.name: chosen}, ensure_ascii=False).encode(), 0o600)
    with tempfile.TemporaryDirectory(prefix="grade-second-") as scratch:
        for student in chosen:
            shutil.copytree(marks / week.name / quoted(student), Path(scratch) / week.name / quoted(student))
        load(course, week, Path(scratch), files=files, rules=rules)
    return chosen


@dataclass
class Agreement:
    """Two markers over the second's sample.

    sample   how many answers are in it; both: of these, how many both marked
    items    (task, item, how many, mean of the first, of the second, mean distance, share of equal, kappa or None)
    settle   (student, task, first's points, second's) of those who differ by more than SETTLE of the points
    open     students whose answers the first, the second has not marked yet, or only as they were before
    other    of `open`, those of whom the first's, the second's directory shows another hand-in than counts now
    lost     students of the sample who are not in the second's directory
    items_only  of `open`, how many of the first, of the second have items in their comment: `grade rubric` makes points
    """

    sample: int = 0
    both: int = 0
    items: list[tuple[Task, Item, int, float, float, float, float, float | None]] = field(default_factory=list)
    totals: list[tuple[Task, int, float, float]] = field(default_factory=list)
    settle: list[tuple[str, Task, float, float]] = field(default_factory=list)
    open: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    other: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    lost: list[str] = field(default_factory=list)
    items_only: tuple[int, int] = (0, 0)


def agreement(week: Week, first: Path, other: Path, rules: Rules, marks: Path) -> Agreement:
    """How far two course directories agree on the written tasks of a week. What a group handed in is one answer,
    wherever among its members it was marked: `marks` tell. LabError if the second holds no answer."""
    if course_root(other) is None:
        raise LabError(
            f"{other} is no second marker's course directory: `grade second {week.name} --to {other}` makes it"
        )
    courses = [open_course(first), open_course(other)]
    if courses[0].root.resolve() == courses[1].root.resolve():
        raise LabError(
            f"--second {other} is the first marker's own course directory: name the one that `grade second` made"
        )
    asked = _to_mark(courses[1], week)
    if not asked:
        raise LabError(
            f"{other} holds no written answer of {week.name}: run `grade second {week.name} --to {other}` again"
        )
    marked = [markings(course, week, rules) for course in courses]
    given = [all_by_hand(course.root, week) for course in courses]
    there = (marks / week.name).is_dir()
    same, counts = (same_hand_in(marks, week, rules), counting(marks, week, rules)) if there else ({}, {})

    def items_of(which: int, student: str, task: Task) -> Marking | None:
        found = (marked[which].get((one, task.id)) for one in same.get(student, [student]))
        return next(filter(None, found), None)

    result = Agreement()
    waits = [0, 0]
    result.lost = sorted(set(_samples(other).get(week.name, ())) - {student for student, _ in asked})
    for task in written(week):
        points: list[dict[str, float]] = [{}, {}]
        earlier: tuple[set[str], set[str]] = (set(), set())
        here = {student for student, id in asked if id == task.id}
        for which, (each, own, before) in enumerate(zip(given, points, earlier)):
            for student in here:
                theirs = [(each.get(one, {}).get(task.id), counts.get(one)) for one in same.get(student, [student])]
                marks_of = [(has, mark) for has, mark in theirs if has is not None and has.points is not None]
                # The others are for an earlier answer, which formgrader shows beside what came since, or alone.
                now = [(has, mark is None or has.is_of(mark)) for has, mark in marks_of]
                fresh = [has.points or 0.0 for has, current in now if current and not has.again]
                if any(not current for _, current in now) and not fresh:
                    result.other[which].add(student)
                own |= {student: fresh[0]} if fresh else {}
                before |= {student} if marks_of and not fresh else set()
        both = sorted(here & set(points[0]) & set(points[1]))
        result.sample += len(here)
        result.both += len(both)
        for which, (own, unmarked) in enumerate(zip(points, result.open)):
            unmarked += sorted(here - set(own))
            bare = here - set(own) - earlier[which]
            waits[which] += sum(items_of(which, student, task) is not None for student in bare)
        if both:
            distances = [abs(points[0][student] - points[1][student]) for student in both]
            result.totals.append((task, len(both), fmean(distances), max(distances)))
        for student in both:
            if abs(points[0][student] - points[1][student]) > SETTLE * task.points:
                result.settle.append((student, task, points[0][student], points[1][student]))
        for item in items(week, task):
            pairs = [
                (one.points[item.number], two.points[item.number])
                for student in both
                if (one := items_of(0, student, task)) and (two := items_of(1, student, task))
                if item.number in one.points and item.number in two.points
            ]
            if pairs:
                result.items.append(
                    (
                        task,
                        item,
                        len(pairs),
                        fmean(a for a, _ in pairs),
                        fmean(b for _, b in pairs),
                        fmean(abs(a - b) for a, b in pairs),
                        fmean(a == b for a, b in pairs),
                        kappa(pairs),
                    )
                )
    result.items_only = (waits[0], waits[1])
    return result


def _to_mark(course: Course, week: Week) -> set[tuple[str, str]]:
    """(student, task) of the written answers in a course directory that are there to be marked, or are."""
    from nbgrader.api import Assignment, BaseCell, Grade, SubmittedAssignment, SubmittedNotebook

    from grading.gradebook.course import student_of

    cells = {task.cell: task.id for task in written(week)}
    with course.gradebook() as book:
        query = (
            book.db.query(SubmittedAssignment.student_id, BaseCell.name, Grade.manual_score, Grade.needs_manual_grade)
            .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
            .join(BaseCell, BaseCell.id == Grade.cell_id)
            .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
            .filter(Assignment.name == week.name)
        )
        return {
            (student_of(who), cells[name])
            for who, name, score, waits in query
            if name in cells and (waits or score is not None)
        }


def _samples(folder: Path) -> dict[str, list[str]]:
    """week -> who is in the second marker's sample. LabError for a damaged file."""
    try:
        return {week: list(ids) for week, ids in json.loads((folder / SAMPLE).read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise LabError(
            f"{folder / SAMPLE} is damaged ({type(error).__name__}): delete it, and run `grade second` again"
        ) from None


def kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Cohen's kappa with quadratic weights (Cohen, Psychological Bulletin 70, 1968): 1 is agreement, 0 is chance. None
    where chance alone would agree wholly: everybody has the same points."""
    seen = fmean((a - b) ** 2 for a, b in pairs)
    chance = fmean((a - b) ** 2 for a, _ in pairs for _, b in pairs)
    return 1 - seen / chance if chance else None
