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
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grading.intake import times
from grading.intake.names import (
    Named,
    ambiguous,
    clean,
    exchange_name,
    is_exchange_name,
    lms_name,
    other_week,
    shown,
    some,
)
from grading.intake.receipts import MARKED, MARKER, read_receipts
from grading.intake.renames import read_names
from labkit.checks.tasks import REGISTRY, Week
from labkit.errors import LabError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
_CODE = (".py", ".ipynb")
_HIDDEN = (".DS_Store", ".ipynb_checkpoints", ".git", ".directory", ".nfs")  # not worth a word
_NOISE = ("__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini", "lost+found")


@dataclass(frozen=True)
class Entry:
    """One attempt of one student.

    student    the student's id: any text, in composed form (NFC)
    attempt    1, 2, ...
    received   when it was handed in, with its zone; None if nothing tells
    timed      how far that is known: see times.settled. Of what was collected before: receipts.MARKED where the
               platform told no more than that it was late, else ""
    path       the folder or file (the first, if there are several)
    parts      (name in the submission, path) of all of them; the name "" means a folder's own content
    late       whether the LMS marked it as late (it does not tell by how much); None if nothing tells
    left_out   (path, why) of what could not be collected, as the end of a sentence
    notes      sentences for the student; `attention`: for the instructor
    renamed    (path, name under which it counts): see renames.py
    participant  Moodle's name and number of the student, "" of other systems: see namesakes.py
    group      Moodle's name and number of the group that handed it in; "" of one's own: see groups.py
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
    timed: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    participant: str = ""
    group: str = ""


class Found(list):
    """The entries by student and attempt. `notes`: what was passed over and why, for the instructor; `without`: the
    students whose folder holds other weeks only."""

    def __init__(self, entries: Iterable[Entry] = (), notes: Iterable[str] = (), without: Iterable[str] = ()) -> None:
        super().__init__(entries)
        self.notes, self.without = list(notes), list(without)


@dataclass(frozen=True)
class _Item:
    """One thing in the folder, before all of a student's are put together. `raw` is its name on the disk; `put`: when
    it was put there, where that tells something."""

    named: Named
    path: Path
    changed: float
    raw: str
    put: datetime | None = None


def find_submissions(folder: str | Path, week: Week, kept: bool = True) -> Found:
    """All entries of a folder for this week, sorted by student and attempt. Reads names, and times where they are.

    kept   it may be one in which `grade collect` keeps attempts: then its receipts tell. Not for a folder that students
           write into

    LabError if the folder is missing, or is a course or a single submission instead of a folder of them."""
    folder = Path(folder)
    notes: list[str] = []
    if (root := _collected(folder, week, kept, notes)) is not None:
        return _of_receipts(root, week)
    items: list[_Item] = []
    without: list[str] = []
    listing = _listing(folder, week)
    live = times.open_to_all(folder)
    for entry in listing:
        _look(entry, week, items, notes, without, live)
    notes += _look_alikes(items)
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


def _collected(folder: Path, week: Week, kept: bool, notes: list[str]) -> Path | None:
    """The folder that `grade collect` made, if this is it or holds it. A file alone makes none: whoever may write into
    a folder could lay one there, and would be all that is read."""
    for root in (folder / week.name, folder):
        marker = root / MARKER
        if marker.is_file():
            if kept and not marker.is_symlink() and not any(map(_students_write, (root, folder))):
                return root
            notes.append(
                f"{shown(str(marker.relative_to(folder)))} is not believed: receipts are read only where "
                f"`grade collect` keeps attempts, and where others cannot write"
            )
    return None


def _students_write(folder: Path) -> bool:
    """Whether students put things there themselves: it is open to all, or an exchange's, or the copy of one."""
    return (
        times.open_to_all(folder)
        or folder.name == "inbound"
        or any(is_exchange_name(clean(name)) for name in os.listdir(folder))
    )


def _of_receipts(root: Path, week: Week) -> Found:
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
            timed=MARKED if r.timed == MARKED else "",
            renamed=tuple(read_names(r.path).items()),
            participant=r.participant,
            group=r.group,
        )
        for r in read_receipts(root, week.name)
    ]
    return Found(sorted(entries, key=lambda e: (e.student, e.attempt)))


def _listing(folder: Path, week: Week) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as scan:
            found = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        kind = "file" if folder.suffix.lower() in ARCHIVES else "folder"
        raise LabError(f"there is no {kind} {folder}: check the name") from None
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
        if beside := _students(found, week):
            raise LabError(
                f"{folder} holds {own[0]} itself, beside folders or archives of students ({some(beside)}): take it "
                f"out, or put it into its student's folder"
            )
        raise LabError(
            f"{folder} holds {own[0]} itself and looks like one submission: put it into a folder named "
            f"after the student, and name the folder above"
        )
    return found


def _look(entry: os.DirEntry, week: Week, items: list[_Item], notes: list[str], without: list[str], live: bool) -> None:
    """Tell what one thing in the folder is."""
    name = clean(entry.name)
    if name in (*_NOISE, MARKER):
        return
    if name.startswith("."):
        if name not in _HIDDEN and not name.startswith("._"):
            notes.append(f"{shown(name)} has a hidden name: passed over")
        return
    if ambiguous(name):
        notes.append(
            f"{shown(name)} is passed over: Moodle's mark stands in it twice, so that it may be one student's hand-in "
            f"or another's. Find out who chose such a name, and collect it from a folder with the right one"
        )
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
        named = Named("", name, received=times.claimed(path))
    elif named is None and is_file:
        stem = os.path.splitext(name)[0]
        if not name.lower().endswith((*ARCHIVES, *_CODE)):
            notes.append(f"{shown(name)} is no folder, archive, notebook or module: passed over")
            return
        named = Named("", os.path.splitext(stem)[0] if stem.lower().endswith(".tar") else stem, name)
    elif named is None:
        named = Named("", name)  # a link or a pipe: an attempt that holds nothing, which `load` tells
    items.append(_Item(named, path, changed, entry.name, times.changed(path) if live else None))


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


def _students(found: list[os.DirEntry], week: Week) -> list[str]:
    """What lies in a folder and is neither a file nor a folder of the week: whole hand-ins, it seems."""
    of_the_week = {week.name, week.package, *(path.name for path in week.folder.iterdir())}
    return [
        entry.name
        for entry in found
        if entry.name not in of_the_week
        and not entry.name.startswith((".", "_"))
        and entry.name not in _NOISE
        and not other_week(entry.name, week)
        and entry.name not in ("labkit", "runs", "solutions")
        and (entry.is_dir(follow_symlinks=False) or entry.name.lower().endswith(ARCHIVES))
    ]


def _own(names: set[str], week: Week) -> list[str]:
    """Which of these names are the week's folder and its modules."""
    modules = {f"{module.split('.')[0]}.py" for task in week.tasks for module in task.modules}
    return sorted((modules | {week.package}) & names)


def _look_alikes(items: list[_Item]) -> list[str]:
    """Names that differ by the form of their letters only: of one student, two spellings of one name; or two students
    whom no table tells apart."""
    told, alike = [], dict[str, set[str]]()
    raw: dict[str, set[bool]] = {}
    for item in items:
        student = item.named.student
        alike.setdefault(unicodedata.normalize("NFKC", student).casefold(), set()).add(student)
        raw.setdefault(student, set()).add(item.raw == clean(item.raw))
    for student, forms in raw.items():
        if len(forms) > 1:
            told.append(
                f"{shown(student)} is there in two forms of the same letters (composed and not): taken for one student"
            )
    for students in alike.values():
        if len(students) > 1:
            names = " and ".join(f"{shown(s)} ({_letters(s)})" for s in sorted(students))
            told.append(f"{names} differ by the form of their letters only: taken for {len(students)} students")
    return told


def _letters(name: str) -> str:
    """A name in letters that cannot be mistaken."""
    return name.encode("ascii", "backslashreplace").decode()[:120]


def _told_apart(by_student: dict[str, list[_Item]], notes: list[str]) -> dict[str, list[_Item]]:
    """Moodle writes full names, and a number that differs for two people of one name: then it is part of the id."""
    result: dict[str, list[_Item]] = {}
    for student, items in by_student.items():
        participants = sorted({item.named.participant for item in items if item.named.participant})
        if len(participants) > 1:
            notes.append(apart(student, participants))
        for item in items:
            called = item.named.participant if len(participants) > 1 else ""
            result.setdefault(called or student, []).append(item)
    return result


def apart(name: str, participants: Sequence[str]) -> str:
    """The sentence on several of one name in one source."""
    return (
        f"Moodle has {len(participants)} participants called {shown(name)}: they are told apart as "
        f"{', '.join(map(shown, participants))}"
    )


def _attempts(student: str, items: list[_Item]) -> list[Entry]:
    batches = _batches(items)
    when = {id(batch): times.settled(batch[0].named.received, batch[0].put) for batch in batches}
    if all(when[id(batch)][0] for batch in batches):
        batches.sort(key=lambda batch: (when[id(batch)][0], batch[0].path.name))
        certain = True
    else:
        certain = len(batches) == 1
        batches.sort(key=lambda batch: (batch[0].named.order, batch[0].changed, batch[0].path.name))
    entries = []
    for number, batch in enumerate(batches, 1):
        named = batch[0].named
        parts = tuple((item.named.file, item.path) for item in batch)
        received, timed = when[id(batch)]
        entry = Entry(
            student, number, received, batch[0].path, parts, named.late, timed=timed, participant=named.participant
        )
        if named.late:
            entry = replace(entry, notes=(f"{named.system} marks this attempt as late.",))
        entries.append(replace(entry, attention=(*_claims(entry), *_backdated(entry, named.received))))
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


def _backdated(entry: Entry, claim: datetime | None) -> tuple[str, ...]:
    if entry.timed != times.PUT or claim is None or entry.received is None:
        return ()
    return (
        f"{shown(entry.path.name)} says {claim.isoformat(' ', 'minutes')}, but it was last written "
        f"{entry.received.isoformat(' ', 'minutes')}, which counts: a student writes the one and not the other (if the "
        f"exchange was moved or its permissions changed since, --received TIME tells by when it was there)",
    )


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
