"""Marks into nbgrader's gradebook, and beside each the notebook that formgrader shows.

For each student, in one transaction: the submission and its automatic scores; then the notebook's file. Killed between
any two steps, the next run does what is left, since it compares and writes what differs. What a human gave (points,
extra points, comments, flags) is never written here:

  - A task that the grader itself failed on is left open, and formgrader asks a human for its points.
  - Points by hand stay, also on an automatic task. Where the automatic ones changed under them, formgrader asks to look
    again; so it does where a written answer changed after it was graded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.files import put
from grading.gradebook import first_page, view
from grading.gradebook.cells import graded_tasks, read_notebook
from grading.gradebook.course import Course, gradebook_id
from grading.intake.groups import group_name
from grading.intake.load import EMPTY, handed_in
from grading.intake.names import count, some
from grading.intake.policy import DEFAULTS, Final, Rules, final
from grading.intake.receipts import WITHDRAWN
from grading.marks import UNSANDBOXED, Mark, all_marks, read
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

Files = Callable[[Mark], Mapping[str, bytes]]
STILL = "{} still has points by hand of before: look at them again"
_AGAINST = "{} keeps the {} points given by hand here, and [full_points] gives everybody {}: type them in formgrader"
PATIENCE = 30  # seconds to wait for formgrader's own write to end


@dataclass
class Report:
    """What a load did. `human`: sentences on what needs one; `told`: on what else one should know."""

    new: int = 0
    changed: int = 0
    same: int = 0
    human: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        return [
            *self.told,
            *self.human,
            f"{count(self.new + self.changed + self.same, 'student')}: {self.new} new, "
            f"{self.changed} changed, {self.same} as they were; {len(self.human)} to look at",
        ]


def load(
    course: Course,
    week: Week,
    marks: Path,
    *,
    files: Files = lambda mark: {},
    rules: Rules = DEFAULTS,
    progress: Callable[[int, int, str], None] = lambda done, total, student: None,
) -> Report:
    """Put all marks of `week` in the folder `marks` into the course's gradebook.

    files     what the attempt of a mark handed in, by path; {} if that is not here
    rules     which attempt of a student counts, and what lateness costs
    progress  called before each student with (how many are done, of how many, whose turn)

    LabError for a broken mark (then nothing is loaded), a week that is not registered, and a course that another
    process is writing into."""
    every = list(all_marks(marks, week.name))
    chosen = [final(list(group), rules) for _, group in groupby(every, key=lambda m: m.student)]
    if not chosen:
        raise LabError(f"there are no marks of {week.name} in {marks}: run `grade run {week.name}` first")
    notebook, report = read_notebook(week.notebook), Report()
    chosen, ids = _fitting(chosen, report)
    with course.one_writer(), course.gradebook() as book:
        _registered(book, week)
        if week.name in rules.deadlines:
            book.update_or_create_assignment(week.name, duedate=rules.deadlines[week.name])
        for done, (student, one) in enumerate(zip(ids, chosen)):
            progress(done, len(chosen), one.mark.student)
            _one(course, book, week, notebook, student, one, rules, files(one.mark), report)
        counting = {one.mark.student: (id, one.mark) for id, one in zip(ids, chosen)}
        report.human += _left_behind(book, week, [*every, *_withdrawn(marks, week)], counting)
    return report


def _left_behind(
    book: Gradebook, week: Week, every: Sequence[Mark], chosen: Mapping[str, tuple[str, Mark]]
) -> list[str]:
    """Sentences on what a group handed in whose points were given at one member's copy, where another hand-in counts
    for that member now, or none: the others have no points any more. every: also what was withdrawn. chosen: {student:
    (nbgrader's id, the mark that counts)}."""
    told = []
    for student in dict.fromkeys(one.student for one in every if one.group):
        id, mark = chosen.get(student, ("", None))
        before = {(one.group, one.submission) for one in every if one.student == student and one.group}
        others = [
            (name, theirs)
            for name, (theirs, own) in chosen.items()
            if name != student
            and (mark is None or own.submission != mark.submission)
            and (own.group, own.submission) in before
        ]
        if not others:
            continue
        given = _by_hand(book, week, id or _held_as(student))
        lacking = set.intersection(*(set(given) - set(_by_hand(book, week, theirs)) for _, theirs in others))
        for task, (points, asks) in given.items():
            if (asks or mark is None) and task in lacking:
                who = some([name for name, _ in others])
                gone = "which holds another hand-in now" if mark else "which was withdrawn"
                told.append(
                    f"{group_name(chosen[others[0][0]][1].group)}: {task} had its {count(number(points), 'point')} at "
                    f"{student}'s copy, {gone}: give them at the copy of {who}"
                )
    return told


def _held_as(student: str) -> str:
    """nbgrader's id of a student; "" for one whose name it cannot hold."""
    with contextlib.suppress(LabError):
        return gradebook_id(student)
    return ""


def _withdrawn(marks: Path, week: Week) -> list[Mark]:
    """The marks that `grade withdraw` has put aside."""
    found = []
    for path in sorted((marks / week.name).glob(f"*/{WITHDRAWN}/*.json")):
        with contextlib.suppress(LabError):  # one that cannot be read is nobody's here
            found.append(read(path))
    return found


def _by_hand(book: Gradebook, week: Week, student: str) -> dict[str, tuple[float, bool]]:
    """{task: (points that a person gave, whether formgrader asks to look again)}."""
    from nbgrader.api import MissingEntry

    try:
        submission = book.find_submission(week.name, student)
    except MissingEntry:  # withdrawn before it was loaded
        return {}
    sheet = next(n for n in submission.notebooks if n.name == week.notebook.stem)
    grades = {grade.name: grade for grade in sheet.grades}
    tasks = [task for task in graded_tasks(week) if task.cell in grades]
    found = {task.id: grades[task.cell] for task in tasks if _given(grades[task.cell])}
    return {id: (grade.manual_score, grade.needs_manual_grade) for id, grade in found.items()}


def _fitting(chosen: Sequence[Final], report: Report) -> tuple[list[Final], list[str]]:
    """Those whose id nbgrader can hold, with that id; the others are told, and stop nobody."""
    fits, ids = [], []
    for one in chosen:
        try:
            ids.append(gradebook_id(one.mark.student))
            fits.append(one)
        except LabError as error:
            report.human.append(f"not loaded: {error}: a shorter one in [ids] of course.toml helps")
    return fits, ids


def files_of(folder: Path, week: Week) -> Files:
    """Files out of a folder of submissions. LabError if there is no such folder: loading would take the students' work
    out of formgrader."""
    read = handed_in(folder, week)
    return lambda mark: found.files if (found := read(mark.student, mark.attempt)) else {}


def _one(
    course: Course,
    book: Gradebook,
    week: Week,
    notebook: dict[str, Any],
    student: str,
    counts: Final,
    rules: Rules,
    handed: Mapping[str, bytes],
    report: Report,
) -> None:
    mark, factor, sentence = counts
    place = course.folder(course.autograded, student, week.name) / week.notebook.name
    shown = view.build(week, notebook, mark, handed, (sentence,) if sentence else ())
    extension = None
    if due := rules.due(mark.student, week.name):
        extension = due - rules.deadlines[week.name] or None
    read, now = _answers(place), shown["metadata"]["labkit"]["answers"]
    shown["metadata"]["labkit"]["answers"] = now or read
    received = _received(course, week, student, mark)
    with _transaction(book):
        is_new, is_changed, look, said, differs = _store(
            book,
            week,
            student,
            mark,
            factor,
            received,
            extension,
            answers_changed=bool(now and read and now != read),
            full=rules.full_points.get(week.name, ()),
        )
    first_page.has_come(course, week, student, received)
    is_changed |= _put(place, json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
    report.new += is_new
    report.changed += is_changed and not is_new
    if differs and not is_new:
        report.told.append(f"{mark.student}: {', '.join(differs)}")
    report.same += not is_changed and not is_new
    report.told += [f"{mark.student}: {s}" for s in said]
    if factor < 1 and (is_new or is_changed):
        report.told.append(f"{mark.student}: {sentence}")
    if mark.isolation == UNSANDBOXED:
        report.told.append(f"{mark.student}: this mark was made without a sandbox")
    left = [
        f"{task.id} ({why})"
        for task in graded_tasks(week)
        if task.kind == "auto" and (why := view.fault_of(task, mark))
    ]
    if left:
        report.human.append(
            f"{mark.student}: not loaded, give the points by hand or run `grade run` again: {', '.join(left)}"
        )
    report.human += [f"{mark.student}: {sentence}" for sentence in look]
    if not handed and EMPTY not in mark.notes:
        report.told.append(
            f"{mark.student}: nothing that was handed in can be shown, so formgrader has the verdicts only"
        )


def _store(
    book: Gradebook,
    week: Week,
    student: str,
    mark: Mark,
    factor: float,
    received: datetime | None,
    extension: timedelta | None,
    *,
    answers_changed: bool,
    full: Collection[str] = (),
) -> tuple[bool, bool, list[str], list[str], list[str]]:
    """Bring one student's rows up to date; of the tasks `full` all points are there. Returns whether they are new,
    whether anything changed, sentences on what a human must look at again, other sentences, and what changed from what
    to what."""
    from nbgrader.api import Comment, Grade, MissingEntry

    look: list[str] = []
    said: list[str] = []
    differs: list[str] = []
    try:
        submission, is_new = book.find_submission(week.name, student), False
    except MissingEntry:
        book.update_or_create_student(student)
        with book.db.no_autoflush:  # nbgrader builds the rows before it adds them; this keeps SQLAlchemy quiet
            submission, is_new = book.add_submission(week.name, student), True
    sheet = next(n for n in submission.notebooks if n.name == week.notebook.stem)
    grades, comments = {g.name: g for g in sheet.grades}, {c.name for c in sheet.comments}
    cells = {cell.name: cell for cell in [*sheet.notebook.grade_cells, *sheet.notebook.task_cells]}
    for task in graded_tasks(week):  # one that came after this submission has no rows yet
        if task.cell not in grades:
            grades[task.cell] = Grade(cell_id=cells[task.cell].id, notebook_id=sheet.id, needs_manual_grade=True)
            book.db.add(grades[task.cell])
        if task.kind == "written" and task.cell not in comments:
            book.db.add(Comment(cell_id=cells[task.cell].id, notebook_id=sheet.id))
    book.db.flush()
    changed = _set(submission, timestamp=received, extension=extension)
    if changed:
        differs.append("the time of hand-in or deadline")
    for task in graded_tasks(week):
        grade = grades[task.cell]
        by_hand = _given(grade)
        if by_hand and grade.manual_score > task.points:
            look.append(
                f"{task.id} has {number(grade.manual_score)} points by hand, of {number(task.points)}: look again"
            )
        if task.kind == "written":
            before = grade.auto_score
            if task.id in full:
                changed |= _set(grade, auto_score=float(task.points), needs_manual_grade=False)
            elif by_hand and answers_changed:
                changed |= _set(grade, needs_manual_grade=True)
            elif by_hand and grade.needs_manual_grade:
                look.append(STILL.format(task.id))
            elif not by_hand:  # nothing to read: formgrader asks nobody, and takes points from whoever gives some
                nothing = task.id in mark.unanswered or factor == 0
                changed |= _set(grade, auto_score=0.0 if nothing else None, needs_manual_grade=not nothing)
            elif before is not None:  # what everybody had
                changed |= _set(grade, auto_score=None)
            if grade.auto_score != before and not by_hand:
                differs.append(f"{task.id} from {_points(before)} to {_points(grade.auto_score)}")
            if task.id in full and by_hand and grade.manual_score != task.points:
                look.append(_AGAINST.format(task.id, number(grade.manual_score), number(task.points)))
            continue
        entry = None if view.fault_of(task, mark) else view.entry_of(task, mark)
        points = float(task.points) if task.id in full else float(entry["points"]) if entry else None
        moved = grade.auto_score != points
        if by_hand and task.id in full:
            if grade.manual_score != task.points:
                look.append(_AGAINST.format(task.id, number(grade.manual_score), number(task.points)))
        elif by_hand and moved:
            (said if points is None else look).append(
                f"{task.id} keeps the {count(number(grade.manual_score), 'point')} given by hand; the automatic ones "
                f"are now {'open' if points is None else f'{number(points)}: look again'}"
            )
        if moved:
            differs.append(f"{task.id} from {_points(grade.auto_score)} to {_points(points)}")
        elif by_hand and grade.needs_manual_grade:
            look.append(STILL.format(task.id))
        asks = (points is not None and moved) or grade.needs_manual_grade if by_hand else points is None
        changed |= _set(grade, auto_score=points, needs_manual_grade=asks)
    book.db.flush()
    penalty = round((1 - factor) * sheet.score, 6) if factor < 1 else None
    if sheet.late_submission_penalty != penalty:
        left = None if penalty is None else number(sheet.score) - number(sheet.score - penalty)  # adds up as it is told
        differs.append(f"the late penalty from {_points(sheet.late_submission_penalty)} to {_points(left)}")
    changed |= _set(sheet, late_submission_penalty=penalty)
    if answers_changed and any(task.kind == "written" and _given(grades[task.cell]) for task in graded_tasks(week)):
        look.append("a written answer changed after it was graded by hand: look at it again")
    return is_new, changed, look, said, differs


def _given(grade: Any) -> bool:
    return grade.manual_score is not None


def _points(value: float | None) -> str:
    return "none" if value is None else f"{number(value)}"


def _set(row: Any, **values: Any) -> bool:
    """Assign what differs. Returns whether anything did."""
    differs = {name: value for name, value in values.items() if getattr(row, name) != value}
    for name, value in differs.items():
        setattr(row, name, value)
    return bool(differs)


@contextlib.contextmanager
def _transaction(book: Gradebook) -> Iterator[None]:
    """Everything inside, also what nbgrader's API commits, in one transaction of the database.

    The session works on a connection whose transaction is ours: its commits become savepoints. SQLite's lock for
    writing is taken first, so that nothing read here is changed by formgrader before it is written."""
    book.db.remove()
    with book.engine.connect() as connection:
        if book.engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA busy_timeout={PATIENCE * 1000}")
            connection.rollback()
        with connection.begin():
            if book.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            book.db.configure(bind=connection, join_transaction_mode="create_savepoint")
            try:
                yield
                book.db.commit()
            finally:
                book.db.remove()
                book.db.configure(bind=book.engine)


def _registered(book: Gradebook, week: Week) -> None:
    """LabError unless the gradebook knows the week's cells with their points."""
    from nbgrader.api import MissingEntry

    try:
        there = book.find_notebook(week.notebook.stem, week.name)
    except MissingEntry:
        raise LabError(f"{week.name} is not in this course directory: run 'grade course init' on it again") from None
    known = {cell.name: cell.max_score for cell in [*there.grade_cells, *there.task_cells]}
    for task in graded_tasks(week):
        if known.get(task.cell) != task.points:
            raise LabError(
                f"{week.name}: task {task.id} is new or has other points than in this course directory: run "
                "'grade course init' on it again"
            )


def _received(course: Course, week: Week, student: str, mark: Mark) -> datetime | None:
    """The time of the attempt in UTC, as nbgrader keeps it.

    Formgrader takes a submission for not graded if this differs from the time that nbgrader's own folder of it tells;
    one without a time tells none."""
    folder = course.folder(course.submitted, student, week.name)
    theirs = folder.is_dir() and not first_page.is_ours(folder)
    if not mark.received or (theirs and not (folder / first_page.TIMESTAMP).exists()):
        return None
    try:
        time = datetime.fromisoformat(mark.received)
    except ValueError:
        raise LabError(
            f"the mark of {mark.student!r} has no valid time ({mark.received!r}): run `grade run` again"
        ) from None
    return time.astimezone(UTC).replace(tzinfo=None)


def _answers(place: Path) -> str:
    """The hash of the answers that the last load showed; "" if there was none."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))["metadata"]["labkit"]["answers"]
        return found if isinstance(found, str) else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _put(place: Path, text: str) -> bool:
    """Write a file whole, unless it has this text. Returns whether it was written."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if place.read_text(encoding="utf-8") == text:
            return False
    place.parent.mkdir(parents=True, exist_ok=True)
    put(place, text.encode())
    return True
