"""What was handed in and the marks do not know yet: pages, tables and exports made now would speak of older attempts.

That is so from `grade collect`, or `grade rename`, until the next `grade run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grading.intake.find import Entry, find_submissions
from grading.intake.load import load
from grading.intake.names import some
from grading.intake.receipts import MARKER
from grading.intake.renames import RENAMED
from grading.marks import Mark
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError


@dataclass
class Pending:
    """new: students with no mark at all; newer: student -> attempts that have none; other: student -> attempts that are
    otherwise than when their mark was made: a file was renamed, or that was taken back, or their time was told; gone:
    student -> attempts with a mark that are not among the hand-ins."""

    new: list[str] = field(default_factory=list)
    newer: dict[str, list[int]] = field(default_factory=dict)
    other: dict[str, list[int]] = field(default_factory=dict)
    gone: dict[str, list[int]] = field(default_factory=dict)

    def told(self, week: Week) -> list[str]:
        """Sentences for the instructor where points are not those of what was handed in."""
        behind = sorted({*self.newer, *self.other})
        return [
            *(
                [
                    f"{_students(behind)} an attempt that is not graded as it is now ({some(behind)}), and the points "
                    f"here are of before: `grade run {week.name}` first"
                ]
                if behind
                else []
            ),
            *(
                [
                    f"{_students(list(self.gone))} a mark of an attempt that is not here any more "
                    f"({some(sorted(self.gone))}), and it counts: `grade withdraw` takes an attempt back with its mark"
                ]
                if self.gone
                else []
            ),
        ]


def _students(which: list[str]) -> str:
    return "1 student has" if len(which) == 1 else f"{len(which)} students have"


def of_other_weeks(submissions: Path, week: Week) -> list[str]:
    """The weeks that `grade collect` keeps there, where it keeps nothing of this one yet."""
    if (submissions / week.name / MARKER).exists():
        return []
    return [other.name for other in find_weeks() if (submissions / other.name / MARKER).exists()]


def refuse_other_weeks(submissions: Path, week: Week) -> None:
    """LabError where other weeks were collected and this one was not: they would be taken for students."""
    if others := of_other_weeks(submissions, week):
        raise LabError(
            f"{submissions} holds what was collected of {some(others)}, and nothing of {week.name}: "
            f"`grade collect {week.name} --from DOWNLOAD.zip` first"
        )


def entries_of(submissions: Path, week: Week) -> list[Entry]:
    """What was handed in; nothing where there is no folder, or one of other weeks."""
    return find_submissions(submissions, week) if submissions.is_dir() and not of_other_weeks(submissions, week) else []


def pending(week: Week, entries: Iterable[Entry], marks: Iterable[Mark]) -> Pending:
    """marks: all of the week's, of every attempt."""
    known: dict[str, dict[int, Mark]] = {}
    for mark in marks:
        known.setdefault(mark.student, {})[mark.attempt] = mark
    found, seen = Pending(), set()
    for entry in entries:
        own = known.get(entry.student, {}).get(entry.attempt)
        if entry.student not in known:
            found.new = sorted({*found.new, entry.student})
        elif own is None:
            found.newer.setdefault(entry.student, []).append(entry.attempt)
        elif (entry.received and own.received != entry.received.isoformat()) or (
            _may_differ(entry, own) and load(entry, week).digest != own.submission
        ):
            found.other.setdefault(entry.student, []).append(entry.attempt)
        seen.add((entry.student, entry.attempt))
    for student, attempts in known.items() if seen else ():
        if missing := sorted(attempt for attempt in attempts if (student, attempt) not in seen):
            found.gone[student] = missing
    return found


def _may_differ(entry: Entry, mark: Mark) -> bool:
    """Whether a file of it is renamed, or was when it was marked: only then the hand-in is read."""
    return bool(entry.renamed) or any(note.endswith(RENAMED) for note in mark.notes)
