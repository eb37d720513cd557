"""Marks, and points that people give: rows are only added, so nothing changes silently and a kill loses nothing."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import pairwise

from grading.history import Change, compare
from grading.mark import Mark
from grading.register.schema import Class
from labkit.checks.tasks import Week
from labkit.errors import LabError


@dataclass(frozen=True)
class Marked:
    """One mark of a submission's history: because: the reason that was given for making it; tasks: those that were
    judged again, () for all."""

    mark: Mark
    because: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class HandMark:
    """What a person gave for one task of a submission.

    points     of `possible`; None: none, and the automatic ones hold
    extra      on top of whatever points there are
    content    the digest of the files that the marker saw;   automatic: the task's automatic points of then; None where
               there were none, since the grader had failed. Neither is given: those of the newest mark"""

    task: str
    points: float | None
    extra: float = 0.0
    comment: str = ""
    marker: str = ""
    content: str | None = None
    automatic: float | None = None
    at: str = ""


def add_mark(cls: Class, mark: Mark, because: str = "", tasks: Sequence[str] = ()) -> None:
    """Add a submission's newest mark."""
    with cls.writing():
        cls.db.execute(
            "INSERT INTO mark (submission, key, json, because, tasks, finished) VALUES (?, ?, ?, ?, ?, ?)",
            (mark.submission, mark.key, mark.to_json(), because, json.dumps(list(tasks)), mark.finished),
        )


def newest_marks(cls: Class, week: str) -> dict[int, Mark]:
    """submission -> its newest mark."""
    rows = cls.db.execute(
        "SELECT json FROM mark WHERE id IN (SELECT max(mark.id) FROM mark "
        "JOIN submission ON submission.id = submission WHERE assignment = ? GROUP BY submission)",
        (week,),
    )
    return {mark.submission: mark for mark in (Mark.from_json(row["json"]) for row in rows)}


def marks_of(cls: Class, submission: int) -> list[Marked]:
    """All marks of a submission, the newest last."""
    rows = cls.db.execute("SELECT json, because, tasks FROM mark WHERE submission = ? ORDER BY id", (submission,))
    return [Marked(Mark.from_json(row["json"]), row["because"], tuple(json.loads(row["tasks"]))) for row in rows]


def changes(cls: Class, submission: int) -> list[Change]:
    """What became of a submission's mark each time that it was graded again, the oldest first."""
    every = marks_of(cls, submission)
    return [compare(old.mark, new.mark, new.because, new.tasks) for old, new in pairwise(every)]


def add_hand_mark(cls: Class, week: Week, submission: int, given: HandMark) -> None:
    """Add what a person gives for a task: it holds from now on, for every member of the submission, and goes over to no
    other attempt. `content` and `automatic`, where they are not given, are those of the newest mark.

    LabError for a task that the week does not have."""
    if given.task not in week:
        raise LabError(f"{week.name} has no task {given.task!r}")
    mark = next((one.mark for one in reversed(marks_of(cls, submission))), None)
    automatic = given.automatic
    if automatic is None and mark is not None and given.content is None:
        automatic = mark.automatic(given.task)
    content = given.content if given.content is not None else mark.content if mark else ""
    at = given.at or datetime.now(UTC).isoformat(timespec="seconds")
    row = {**vars(given), "submission": submission, "content": content, "automatic": automatic, "at": at}
    with cls.writing():
        cls.db.execute(f"INSERT INTO hand_mark ({', '.join(row)}) VALUES (:{', :'.join(row)})", row)


def hand_marks(cls: Class, week: str) -> dict[int, dict[str, HandMark]]:
    """submission -> task -> what holds of what people gave: the newest."""
    rows = cls.db.execute(
        "SELECT hand_mark.* FROM hand_mark JOIN submission ON submission.id = submission WHERE assignment = ? "
        "ORDER BY hand_mark.id",
        (week,),
    )
    found: dict[int, dict[str, HandMark]] = {}
    for row in rows:
        found.setdefault(row["submission"], {})[row["task"]] = _given(row)
    return found


def hand_history(cls: Class, submission: int) -> list[HandMark]:
    """All that people gave for a submission, the newest last."""
    rows = cls.db.execute("SELECT * FROM hand_mark WHERE submission = ? ORDER BY id", (submission,))
    return [_given(row) for row in rows]


def _given(row: sqlite3.Row) -> HandMark:
    return HandMark(**{one.name: row[one.name] for one in fields(HandMark)})
