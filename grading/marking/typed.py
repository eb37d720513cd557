"""What was typed into formgrader goes into class.db: points, extra points and comments, each at its submission.

A comment may hold the rubric's items, a line for each (items.py): their sum becomes formgrader's points where none were
typed, or where only the comment has changed since. Points that were typed stay; where they differ from the items, that
is reported. Read by SQL, without nbgrader, since every command that shows points begins with it.
"""

import contextlib
import getpass
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grading.intake.names import count
from grading.marking.course import CONTENT, FOLDER
from grading.marking.items import Item, Marking, crowded, items, read, unknown_codes
from grading.register.marks import HandMark, add_hand_mark, hand_marks
from grading.register.schema import Class
from grading.register.standing import standings
from grading.register.submissions import attempts
from labkit.checks.outcome import number
from labkit.checks.tasks import Task, Week
from labkit.errors import LabError

PATIENCE = 30.0  # seconds to wait for formgrader's own write to end
_ROWS = """
    select s.student_id, c.name, g.id, g.manual_score, g.extra_credit, g.auto_score, g.needs_manual_grade,
           (select m.manual_comment from comment m where m.notebook_id = n.id and m.cell_id = c.id)
    from grade g join submitted_notebook n on g.notebook_id = n.id
    join submitted_assignment s on n.assignment_id = s.id
    join assignment a on s.assignment_id = a.id join base_cell c on g.cell_id = c.id
    where a.name = ? order by s.student_id, c.name
"""


@dataclass(frozen=True)
class Typed:
    """What formgrader holds of one task of one submission. `row`: its grade's id; `asks`: it asks for points, or to
    look again; `automatic`: the automatic points that it shows."""

    row: str
    points: float | None
    extra: float
    comment: str
    automatic: float | None
    asks: bool


def typed(folder: Path, week: Week) -> dict[tuple[int, str], Typed]:
    """(submission, task) -> what formgrader holds; {} without a course directory."""
    database = folder / FOLDER / "gradebook.db"
    if not database.is_file():
        return {}
    cells = {task.cell: task.id for task in week.tasks}
    with opened(database) as book:
        rows = book.execute(_ROWS, (week.name,)).fetchall()
    return {
        (int(who), cells[cell]): Typed(id, points, extra or 0.0, (comment or "").strip(), auto, bool(asks))
        for who, cell, id, points, extra, auto, asks, comment in rows
        if who.isdigit() and cell in cells
    }


def read_back(cls: Class, week: Week) -> list[str]:
    """Put what was typed since into class.db. Sentences on what cannot be meant, which a person corrects."""
    odd, rubrics, known = list[str](), dict[str, list[Item]](), hand_marks(cls, week.name)
    again = {
        (one.counted.submission.id, id) for one in standings(cls, week) if one.counted for id in one.looked_at_again
    }
    ours = {one.id for one in attempts(cls, week.name, withdrawn=True)}
    for (submission, id), now in typed(cls.folder, week).items():
        if submission not in ours:  # of another class, whose folder this was
            continue
        task, last = week.task(id), known.get(submission, {}).get(id) or HandMark(id, None)
        marking = None
        if task.kind == "written" and now.comment:
            rubrics[id] = rubrics.get(id) or items(week, task)
            marking = read([now.comment], rubrics[id], cls.rules.comments)
        faults, points = _decided(now, last, marking)
        faults += _odd(now, task, marking, cls.rules.comments)
        odd += [f"submission {submission}, {id}: {'; '.join(faults)}"] if faults else []
        if points != now.points:
            with opened(cls.folder / FOLDER / "gradebook.db") as book:
                book.execute(
                    "update grade set manual_score = ?, needs_manual_grade = 0 where id = ?", (points, now.row)
                )
        content = shown_content(cls.folder, submission, week)
        given = HandMark(
            id,
            points,
            now.extra,
            now.comment,
            getpass.getuser(),
            content,
            now.automatic if task.kind == "auto" else None,
        )
        # Looked at again: formgrader shows the files and the points of now, and asks no more.
        shown = (content, given.automatic) != (last.content, last.automatic)
        confirmed = (submission, id) in again and shown and not now.asks
        if confirmed or (points, now.extra, now.comment) != (last.points, last.extra, last.comment):
            add_hand_mark(cls, week, submission, given)
    return odd


def shown_content(folder: Path, submission: int, week: Week) -> str:
    """The digest of the files that formgrader shows of a submission; "" if it tells none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / FOLDER / "autograded" / str(submission) / week.name / CONTENT).read_text(encoding="utf-8")
    return ""


def _decided(now: Typed, last: HandMark, marking: Marking | None) -> tuple[list[str], float | None]:
    """(what cannot be meant, the points): the items' sum, where nobody typed otherwise since."""
    if marking is None:
        return [], now.points
    if marking.faults:
        return list(marking.faults), now.points
    items_alone = now.points is None or (now.points == last.points and now.comment != last.comment)
    if items_alone or now.points == marking.total:
        return [], marking.total
    typed = count(number(now.points or 0), "point")
    return [f"formgrader has {typed}, which count, and the items add up to {number(marking.total)}"], now.points


def _odd(now: Typed, task: Task, marking: Marking | None, codes: dict[str, str]) -> list[str]:
    """What a comment without items, and points, may have wrong."""
    found = []
    if now.points is not None and now.points > task.points:
        found.append(f"{number(now.points)} points, of {number(task.points)}")
    if marking is None and task.kind == "written" and now.comment:
        found += unknown_codes(now.comment, codes)
        if now.points is None:
            none = ["no line of the comment begins with an item, as `1: 4` does"]
            found.append(f"no points, and {'; '.join(crowded([now.comment]) or none)}")
    return found


@contextlib.contextmanager
def opened(database: Path) -> Iterator[sqlite3.Connection]:
    """nbgrader's gradebook, in one transaction."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=PATIENCE)) as book, book:
            yield book
    except sqlite3.Error as error:
        raise LabError(
            f"nbgrader's gradebook {database} cannot be read or changed ({error}): close formgrader; if it is of an older "
            "version, run 'nbgrader db upgrade' in its folder"
        ) from None
