"""What formgrader shows, made from class.db: each submission that counts, with its verdicts and its points by hand.

For each submission, in one transaction: its automatic scores and what a person gave; then the notebook's file. Killed
between any two steps, the next `grade mark` does what is left, since it compares and writes what differs. A submission
that counts no more leaves the screen; what was given for it stays in class.db, and comes back if it counts again.

A task that the grader itself failed on is left open. Points by hand stay, also on an automatic task; where what they
were given for has changed since, formgrader asks to look again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grading.files import put
from grading.intake.submission import read_submission
from grading.mark import UNSANDBOXED, Mark
from grading.marking import view
from grading.marking.cells import graded_tasks, read_notebook
from grading.marking.course import CONTENT, Course
from grading.register.marks import HandMark, hand_marks
from grading.register.schema import Class
from grading.register.standing import Standing, standings
from labkit.checks.tasks import Task, Week

if TYPE_CHECKING:
    from nbgrader.api import Gradebook

PATIENCE = 30  # seconds to wait for formgrader's own write to end


@dataclass
class Report:
    """How many submissions are new on the screen, changed, as they were, and gone; `open`: how many answers wait for
    points; `human`: sentences on what somebody must look at."""

    new: int = 0
    changed: int = 0
    same: int = 0
    gone: int = 0
    open: int = 0
    ungraded: int = 0
    human: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """One submission on the screen.

    worth   whether anything of it counts: of one that was handed in too late nobody reads the answers
    again   tasks whose points by hand somebody must look at again"""

    number: int
    mark: Mark
    remark: str
    worth: bool
    given: Mapping[str, HandMark]
    again: Collection[str]


def fill(
    course: Course, cls: Class, week: Week, progress: Callable[[int, int], None] = lambda done, total: None
) -> Report:
    """Bring formgrader's rows and notebooks of a week up to date. progress: gets how many are done, of how many."""
    report, notebook = Report(), read_notebook(week.notebook)
    given, by_number = hand_marks(cls, week.name), dict[int, list[Standing]]()
    for one in standings(cls, week):
        if one.counted is not None and not one.excused:
            by_number.setdefault(one.counted.submission.id, []).append(one)
    report.ungraded = sum(theirs[0].mark is None for theirs in by_number.values())
    shown = [
        Shown(
            number,
            mark,
            theirs[0].rule,
            any(one.factor > 0 for one in theirs),
            given.get(number, {}),
            {id for one in theirs for id in one.looked_at_again},
        )
        for number, theirs in sorted(by_number.items())
        if (mark := theirs[0].mark) is not None
    ]
    with course.one_writer(), course.gradebook() as book:
        screen = _Screen(course, book, week, notebook, set(cls.rules.full_points.get(week.name, ())), report)
        for done, each in enumerate(shown):
            progress(done, len(shown))
            read = read_submission(cls.archive(week, each.number), each.mark.renamed.items())
            screen.show(each, read.files)
        screen.leave({each.number for each in shown}, given)
    return report


@dataclass
class _Screen:
    """The week's rows and notebooks, while they are brought up to date. full: tasks of which everybody has all points.

    What a person may have typed is written into new rows alone: in the others it may be newer than class.db."""

    course: Course
    book: Gradebook
    week: Week
    notebook: dict[str, Any]
    full: Collection[str]
    report: Report

    def show(self, one: Shown, files: Mapping[str, bytes]) -> None:
        report = self.report
        with _transaction(self.book):
            is_new, is_changed = self._rows(one)
        shown = view.build(self.week, self.notebook, one.number, one.mark, files, one.remark)
        is_changed |= self._put(one, json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
        report.new += is_new
        report.changed += is_changed and not is_new
        report.same += not is_changed and not is_new
        left = [
            task.id
            for task in graded_tasks(self.week)
            if task.kind == "auto" and one.mark.automatic(task.id) is None and task.id not in one.given
        ]
        said = [
            *(
                [f"the grader itself failed: `grade run`, or give the points by hand: {', '.join(left)}"]
                if left
                else []
            ),
            *(f"{id} has points by hand of before: look at them again" for id in sorted(one.again)),
            *(["its mark was made without a sandbox"] if one.mark.isolation == UNSANDBOXED else []),
            *(["its files cannot be read, so formgrader has the verdicts only"] if not files else []),
        ]
        report.human += [f"submission {one.number}: {sentence}" for sentence in said]

    def _rows(self, one: Shown) -> tuple[bool, bool]:
        """Bring one submission's rows up to date: whether they are new, whether anything changed."""
        from nbgrader.api import Comment, Grade, MissingEntry

        book, week, changed = self.book, self.week, False
        try:
            submission, is_new = book.find_submission(week.name, str(one.number)), False
        except MissingEntry:
            book.update_or_create_student(str(one.number))
            with book.db.no_autoflush:  # nbgrader builds the rows before it adds them; this keeps SQLAlchemy quiet
                submission, is_new = book.add_submission(week.name, str(one.number)), True
        sheet = next(n for n in submission.notebooks if n.name == week.notebook.stem)
        cells = {cell.name: cell for cell in [*sheet.notebook.grade_cells, *sheet.notebook.task_cells]}
        grades, comments = {g.name: g for g in sheet.grades}, {c.name: c for c in sheet.comments}
        for task in graded_tasks(week):
            fresh = is_new or task.cell not in grades
            if task.cell not in grades:  # of a task that came after this submission
                grades[task.cell] = Grade(cell_id=cells[task.cell].id, notebook_id=sheet.id, needs_manual_grade=True)
                book.db.add(grades[task.cell])
            if task.cell not in comments:
                comments[task.cell] = Comment(cell_id=cells[task.cell].id, notebook_id=sheet.id)
                book.db.add(comments[task.cell])
            book.db.flush()
            grade = grades[task.cell]
            if fresh and (given := one.given.get(task.id)) is not None:
                changed |= _set(grade, manual_score=given.points, extra_credit=given.extra or None)
                changed |= _set(comments[task.cell], manual_comment=given.comment or None)
            automatic = self._automatic(task, one)
            asks = task.id in one.again or (grade.manual_score is None and automatic is None)
            self.report.open += asks
            changed |= _set(grade, auto_score=automatic, needs_manual_grade=asks)
        book.db.flush()
        return is_new, changed

    def _automatic(self, task: Task, one: Shown) -> float | None:
        """What formgrader shows as a task's automatic points; None: it asks a person."""
        if task.id in self.full:
            return float(task.points)
        if task.kind == "written":  # nothing to read: it asks nobody, and takes points from whoever gives some
            return 0.0 if task.id in one.mark.unanswered or not one.worth else None
        return one.mark.automatic(task.id)

    def leave(self, kept: Collection[int], given: Mapping[int, Mapping[str, HandMark]]) -> None:
        """Take what counts no more off the screen, but for what somebody has typed into since it was read."""
        for student in [one.student_id for one in self.book.assignment_submissions(self.week.name)]:
            if student.isdigit() and int(student) in kept:
                continue
            with _transaction(self.book):
                submission = self.book.find_submission(self.week.name, student)
                known = given.get(int(student), {}) if student.isdigit() else {}
                if any(_is_newer(sheet, self.week, known) for sheet in submission.notebooks):
                    continue
                self.book.remove_submission(self.week.name, student)
            self.report.gone += 1
        there = {one.student_id for one in self.book.assignment_submissions(self.week.name)}
        for place in [*self.course.root.glob(f"autograded/*/{self.week.name}")]:
            if place.parent.name not in there:
                shutil.rmtree(place, ignore_errors=True)
                shutil.rmtree(self.course.root / "submitted" / place.parent.name / self.week.name, ignore_errors=True)

    def _put(self, one: Shown, text: str) -> bool:
        """Write the notebook whole, unless it has this text, then of which files it is. Returns whether it was written.
        The folder in submitted/ is what formgrader's first page counts."""
        (self.course.root / "submitted" / str(one.number) / self.week.name).mkdir(parents=True, exist_ok=True)
        place, written = self.course.notebook(one.number, self.week), False
        for path, content in ((place, text.encode()), (place.with_name(CONTENT), one.mark.content.encode())):
            with contextlib.suppress(OSError):
                if path.read_bytes() == content:
                    continue
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, content)
            written = True
        return written


def _is_newer(sheet: Any, week: Week, known: Mapping[str, HandMark]) -> bool:
    """Whether a submission's rows hold points or comments that class.db does not have."""
    comments = {one.name: (one.manual_comment or "").strip() for one in sheet.comments}
    for grade in sheet.grades:
        task = next((task for task in week.tasks if task.cell == grade.name), None)
        if task is not None:
            last = known.get(task.id) or HandMark(task.id, None)
            now = (grade.manual_score, grade.extra_credit or 0.0, comments.get(grade.name, ""))
            if now != (last.points, last.extra, last.comment):
                return True
    return False


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
        connection.exec_driver_sql(f"PRAGMA busy_timeout={PATIENCE * 1000}")
        connection.rollback()
        with connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            book.db.configure(bind=connection, join_transaction_mode="create_savepoint")
            try:
                yield
                book.db.commit()
            finally:
                book.db.remove()
                book.db.configure(bind=book.engine)
