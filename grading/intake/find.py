"""Who handed in: the entries of a folder of submissions, without reading what is in them.

Layouts, which may be mixed in one folder:

    STUDENT/week13/...                      nbgrader's submitted/ (also STUDENT/week13_allreduce/...)
    STUDENT/...                             a folder for each student
    STUDENT.zip, STUDENT.ipynb, STUDENT.py  a file for each student
    STUDENT+week13+TIME+RANDOM/             nbgrader's exchange, its inbound/ folder
    Canvas' and Moodle's bulk downloads     see names.py; all files of one student are one attempt
    week13/STUDENT/1.zip, 2.zip, ...        what `grade collect` made (receipts.py)

Only the last and the exchange know several attempts of a student. If elsewhere two entries have one student's name,
they become attempts, the older first, and a sentence says so.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grading.intake.names import (
    Named,
    clean,
    exchange_name,
    is_exchange_name,
    lms_name,
    other_week,
    parse_time,
    shown,
    some,
)
from grading.intake.receipts import MARKER, read_receipts
from labkit.checks.tasks import REGISTRY, Week
from labkit.errors import LabError

TIMESTAMP = "timestamp.txt"  # nbgrader puts it into a submission's folder
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_CODE = (".py", ".ipynb")
_NOISE = ("__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini", "lost+found")


@dataclass(frozen=True)
class Entry:
    """One attempt of one student.

    student    the student's id: any text, in composed form (NFC)
    attempt    1, 2, ...
    received   when it was handed in, with its zone; None if nothing tells
    path       the folder or file (the first, if there are several)
    parts      (name in the submission, path) of all of them; the name "" means a folder's own content
    late       whether the LMS marked it as late (it does not tell by how much); None if nothing tells
    left_out   (path, why) of what could not be collected, as the end of a sentence
    notes      sentences for the student; `attention`: for the instructor
    """

    student: str
    attempt: int
    received: datetime | None
    path: Path
    parts: tuple[tuple[str, Path], ...] = ()
    late: bool | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()


class Found(list):
    """The entries by student and attempt. `notes`: what was passed over and why, for the instructor; `without`: the
    students whose folder holds other weeks only."""

    def __init__(self, entries: Iterable[Entry] = (), notes: Iterable[str] = (), without: Iterable[str] = ()) -> None:
        super().__init__(entries)
        self.notes, self.without = list(notes), list(without)


@dataclass(frozen=True)
class _Item:
    """One thing in the folder, before all of a student's are put together."""

    named: Named
    path: Path
    changed: float


def find_submissions(folder: str | Path, week: Week) -> Found:
    """All entries of a folder for this week, sorted by student and attempt. Reads names, and times where they are.

    LabError if the folder is missing, or is a course or a single submission instead of a folder of them."""
    folder = Path(folder)
    collected = _collected(folder, week)
    if collected is not None:
        return collected
    items: list[_Item] = []
    notes: list[str] = []
    without: list[str] = []
    for entry in _listing(folder, week):
        _look(entry, week, items, notes, without)
    entries = []
    by_student: dict[str, list[_Item]] = {}
    for item in items:
        by_student.setdefault(item.named.student, []).append(item)
    for student, theirs in _told_apart(by_student, notes).items():
        entries += _attempts(student, theirs)
    if without:
        notes.append(f"Other weeks, but nothing of {week.name}: {some(without, 20)}")
    notes += [sentence for entry in entries for sentence in entry.attention]
    return Found(sorted(entries, key=lambda e: (e.student, e.attempt)), notes, without)


def _collected(folder: Path, week: Week) -> Found | None:
    """The entries of a folder that `grade collect` made; None if it did not."""
    for root in (folder / week.name, folder):
        if (root / MARKER).is_file():
            entries = [
                Entry(
                    r.student,
                    r.attempt,
                    r.received,
                    r.path,
                    (("", r.path),),
                    r.late,
                    tuple(r.left_out.items()),
                    tuple(r.notes),
                    tuple(r.attention),
                )
                for r in read_receipts(root, week.name)
            ]
            return Found(sorted(entries, key=lambda e: (e.student, e.attempt)))
    return None


def _listing(folder: Path, week: Week) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as scan:
            found = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        raise LabError(f"there is no folder {folder}: check the name") from None
    except NotADirectoryError:
        raise LabError(
            f"{folder} is a file: `grade collect {week.name} --from {folder}` unpacks a download of an LMS; "
            f"otherwise name the folder that holds the submissions"
        ) from None
    except OSError as error:
        raise LabError(f"{folder} cannot be read ({error.strerror}): ask its owner") from None
    names = {entry.name for entry in found}
    if (week.package in names and {"labkit", "grading"} & names) or REGISTRY in names:
        raise LabError(f"{folder} is a course, not a folder of submissions")
    if own := _own(names, week):
        raise LabError(
            f"{folder} holds {own[0]} itself and looks like one submission: put it into a folder named "
            f"after the student, and name the folder above"
        )
    return found


def _look(entry: os.DirEntry, week: Week, items: list[_Item], notes: list[str], without: list[str]) -> None:
    """Tell what one thing in the folder is."""
    name = clean(entry.name)
    if name.startswith(".") or name in _NOISE:
        return
    status = entry.stat(follow_symlinks=False)
    is_folder, is_file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
    path, changed = Path(entry.path), status.st_mtime
    named = exchange_name(name, (week.name, week.package)) or lms_name(name)
    if named is None and is_exchange_name(name):
        return  # another assignment's
    if named is None and is_folder:
        inner = _inside(path, week)
        if inner is None:
            without.append(name)
            return
        path = inner
        named = Named("", name, received=_timestamp(path))
    elif named is None and is_file:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in (*ARCHIVES, *_CODE):
            notes.append(f"{shown(name)} is no folder, archive, notebook or module: passed over")
            return
        named = Named("", os.path.splitext(stem)[0] if stem.lower().endswith(".tar") else stem, name)
    elif named is None:
        named = Named("", name)  # a link or a pipe: an attempt that holds nothing, which `load` tells
    items.append(_Item(named, path, changed))


def _inside(folder: Path, week: Week) -> Path | None:
    """The submission in a student's folder; None if the folder holds other weeks only."""
    try:
        with os.scandir(folder) as scan:
            inside = [entry for entry in scan if not entry.name.startswith(".") and entry.name not in _NOISE]
    except OSError:
        return folder  # `load` tells why it cannot be read
    names = {entry.name for entry in inside}
    if week.name in names and not _own(names, week):
        return folder / week.name
    others = [entry for entry in inside if entry.is_dir(follow_symlinks=False) and other_week(entry.name, week)]
    return None if inside and len(others) == len(inside) else folder


def _own(names: set[str], week: Week) -> list[str]:
    """Which of these names are the week's folder and its modules."""
    modules = {f"{module.split('.')[0]}.py" for task in week.tasks for module in task.modules}
    return sorted((modules | {week.package}) & names)


def _timestamp(folder: Path) -> datetime | None:
    """The time in nbgrader's timestamp.txt. A student may have made the file: no link is followed, little is read."""
    try:
        file = os.open(folder / TIMESTAMP, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return parse_time(opened.read(200).decode("utf-8", "replace"))


def _told_apart(by_student: dict[str, list[_Item]], notes: list[str]) -> dict[str, list[_Item]]:
    """Moodle writes full names, and a number that differs for two people of one name: then it is part of the id."""
    result: dict[str, list[_Item]] = {}
    for student, items in by_student.items():
        numbers = sorted({item.named.number for item in items if item.named.system == "Moodle"})
        if len(numbers) > 1:
            notes.append(
                f"Moodle has {len(numbers)} participants called {shown(student)}: they are told apart as "
                f"{', '.join(f'{shown(student)}_{n}' for n in numbers)}"
            )
        for item in items:
            apart = len(numbers) > 1 and item.named.system == "Moodle"
            result.setdefault(f"{student}_{item.named.number}" if apart else student, []).append(item)
    return result


def _attempts(student: str, items: list[_Item]) -> list[Entry]:
    batches = _batches(items)
    if all(batch[0].named.received for batch in batches):
        batches.sort(key=lambda batch: (batch[0].named.received, batch[0].path.name))
        certain = True
    else:
        certain = len(batches) == 1
        batches.sort(key=lambda batch: (batch[0].named.order, batch[0].changed, batch[0].path.name))
    entries = []
    for number, batch in enumerate(batches, 1):
        named = batch[0].named
        parts = tuple((item.named.file, item.path) for item in batch)
        entry = Entry(student, number, named.received, batch[0].path, parts, named.late)
        if named.late:
            entry = replace(entry, notes=(f"{named.system} marks this attempt as late.",))
        entries.append(replace(entry, attention=_claims(entry)))
    if not certain:
        names = ", ".join(shown(batch[0].path.name) for batch in batches)
        entries[0] = replace(
            entries[0],
            attention=(
                *entries[0].attention,
                (
                    f"{shown(student)} is there {len(batches)} times, and nothing tells for certain which came first: "
                    f"they count as attempts 1 to {len(batches)} in this order: {names}"
                ),
            ),
        )
    return entries


def _batches(items: list[_Item]) -> list[list[_Item]]:
    """What was handed in together: all files of one Moodle participant; of Canvas' until a name or the late mark says
    that another hand-in begins; everything else by itself."""
    batches: list[list[_Item]] = []
    seen: set[str] = set()
    for item in sorted(items, key=lambda i: (i.named.system, i.named.order, i.path.name)):
        last = batches[-1][0].named if batches else None
        named = item.named
        together = (
            last is not None
            and last.system == named.system
            and (
                named.system == "Moodle"
                or (named.system == "Canvas" and last.late == named.late and named.file not in seen)
            )
        )
        if together:
            batches[-1].append(item)
        else:
            batches.append([item])
            seen = set()
        seen.add(named.file)
    return batches


def _claims(entry: Entry) -> tuple[str, ...]:
    """In nbgrader's exchange a student names the folder; its owner is who really put it there."""
    if entry.received is None or not is_exchange_name(clean(entry.path.name)):
        return ()
    try:
        owner, claimed = os.lstat(entry.path).st_uid, pwd.getpwnam(entry.student).pw_uid
    except (KeyError, OSError, ValueError):
        return ()  # no such account on this machine: nothing to compare
    if owner in (claimed, os.getuid()):
        return ()
    return (
        f"{shown(entry.path.name)} says that it is {shown(entry.student)}'s, but it belongs to another account of "
        f"this machine (number {owner}): ask both",
    )
