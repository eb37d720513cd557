"""What `grade collect` keeps: every attempt as it was handed in, and a receipt for each.

    submitted/week13/collected.json       says that this folder is one, and which collections came to their end
    submitted/week13/anna/1.zip           the first attempt: the student's own archive as it came, or the files packed
    submitted/week13/anna/1.json          its receipt; an attempt is there when its receipt is

Both are put in place whole, the receipt last: a collection that is killed leaves no half attempt. No attempt is ever
overwritten or removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from grading.files import put
from grading.marks import quoted
from labkit.errors import LabError

MARKER = "collected.json"
WITHDRAWN = "withdrawn"  # a folder beside a student's attempts: those that count no more (withdraw.py)
FORMAT = 1
OWN, GIVEN, MARKED, CHANGED = "handed in", "given", "marked late", "changed"  # what `Receipt.timed` says
NO_TIME = "It does not tell by how much, so this counts as handed in right after the deadline."  # a note of MARKED


@dataclass
class Receipt:
    """One collected attempt.

    received    when it was handed in; None if nothing told
    timed       how that is known: OWN (the hand-in itself tells), GIVEN (the instructor did), MARKED (the LMS told that
                it was late, and this is the least that it can mean), CHANGED (it is an attempt that was collected
                before, and has been changed since: not earlier than that), times.PUT (when its files were last
                written, which does not fit what it says); "" if it is not known
    digest      sha256 (hex) of the content
    name        what the student's file was called; "" for a folder or several files
    source      where it was found, for people
    late        whether the LMS marked it as late; None if nothing tells
    left_out    path -> why it was not collected, as the end of a sentence
    called      what the source called the student, as [ids] may name it
    participant  Moodle's name and number of the student, which tell two of one name apart; "" of other systems
    group       the group that handed it in, as Moodle's download calls it: see groups.py; "" of one's own
    path        where the attempt lies
    """

    student: str
    attempt: int
    received: datetime | None
    timed: str
    digest: str
    name: str = ""
    source: str = ""
    collected: str = ""
    late: bool | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    path: Path = Path()
    called: str = ""
    participant: str = ""
    group: str = ""


def folder_of(root: Path, student: str) -> Path:
    """Where a student's attempts lie below a week's folder. LabError for an id that fits no folder's name."""
    name = quoted(student)
    # An id like that would stand in the marker's way, and no attempt of anybody could be kept.
    return root / (name.replace(".", "%2E") if name.casefold() == MARKER else name)


def write_receipt(receipt: Receipt) -> None:
    """Put a receipt beside its attempt, which must be in place."""
    data = asdict(receipt)
    del data["path"]
    data |= {"received": receipt.received.isoformat() if receipt.received else "", "format": FORMAT}
    put(receipt.path.with_suffix(".json"), json.dumps(data, indent=1).encode())


def read_receipt(path: Path) -> Receipt:
    """A receipt from its file. LabError if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != FORMAT:
            raise LabError(f"{path} was written by another version of `grade collect`: collect into a new folder")
        time = data.pop("received")
        receipt = Receipt(**data, received=datetime.fromisoformat(time) if time else None)
        receipt.path = path.with_suffix(".zip")
        if not isinstance(receipt.student, str) or receipt.attempt != int(path.stem):
            raise ValueError("it names another attempt")
        return receipt
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} is not a receipt ({type(error).__name__}: {error}): move it and its .zip away, and collect again"
        ) from None


def receipts_in(folder: Path) -> list[Receipt]:
    """One student's receipts, by attempt."""
    found = [path for path in folder.glob("*.json") if path.stem.isdigit()]
    return [read_receipt(path) for path in sorted(found, key=lambda path: int(path.stem))]


def handed_in_last(theirs: Sequence[Receipt]) -> Receipt:
    """Of one student's attempts the last one, as grading takes it: by time where all are known, else by number."""
    if all(one.received for one in theirs):
        return max(theirs, key=lambda one: (one.received, one.attempt))
    return max(theirs, key=lambda one: one.attempt)


def read_receipts(root: Path, assignment: str) -> Iterator[Receipt]:
    """All receipts below a week's folder, in no special order. LabError for a broken one, or another week's folder."""
    read_marker(root, assignment)
    with os.scandir(root) as students:
        for student in students:
            if student.is_dir(follow_symlinks=False):
                yield from receipts_in(Path(student.path))


def read_withdrawn(root: Path) -> list[Receipt]:
    """All receipts of attempts that were taken back."""
    return [receipt for folder in sorted(root.glob(f"*/{WITHDRAWN}")) for receipt in receipts_in(folder)]


def read_marker(root: Path, assignment: str) -> list[str]:
    """Which collections came to their end. LabError if the folder is damaged, or another week's."""
    try:
        marker = json.loads((root / MARKER).read_text(encoding="utf-8"))
        of, ended = marker["assignment"], [str(one) for one in marker["ended"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{root / MARKER} is damaged ({type(error).__name__}): write "
            f'{{"assignment": "{assignment}", "ended": []}} into it'
        ) from None
    if of != assignment:
        raise LabError(f"{root} holds what was handed in for {of}, not for {assignment}: name another folder")
    return ended


def write_marker(root: Path, assignment: str, ended: list[str]) -> None:
    """Make the folder one of `grade collect`, and say which collections came to their end."""
    text = json.dumps({"assignment": assignment, "ended": ended}, indent=1)
    put(root / MARKER, text.encode())
