"""`grade withdraw`: attempts that were collected by mistake, or that a student takes back, count no more.

    submitted/week14/anna/withdrawn/2.zip      with its receipt; `--undo` brings it back
    marks/week14/anna/withdrawn/2.json         its mark

Nothing is deleted, no number is given to another attempt, and a source that holds the same once more brings nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grading.files import locked
from grading.intake.names import shown, some
from grading.intake.policy import Rules
from grading.intake.receipts import MARKER, WITHDRAWN, Receipt, read_receipts, read_withdrawn
from grading.intake.roster import Roster, find
from grading.marks import LOCK, path_of, quoted
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest


@dataclass(frozen=True)
class Move:
    """One attempt, from its folder into another one, or back."""

    receipt: Receipt
    marked: bool  # it had a mark, which went with it


def withdraw(
    submissions: Path,
    marks: Path,
    week: Week,
    rules: Rules,
    *,
    student: str | None = None,
    attempt: int | None = None,
    every: bool = False,
    source: Path | None = None,
    undo: bool = False,
) -> list[Move]:
    """Take attempts back, or with `undo` bring them back; which ones.

    student, attempt   that student's last, this one, or `every` one; source   all that came from there. To undo,
    neither: all

    LabError where nothing was collected, for a student, an attempt or a source of which nothing is there, and while the
    week is graded: a judge would find an empty hand-in."""
    root = submissions / week.name
    if not (root / MARKER).is_file():
        raise LabError(f"{root} was not made by `grade collect`: there is no attempt to take back")
    with locked(root, f"a `grade collect` into {root} is running: wait for its end"), _no_run(marks / week.name):
        here = sorted(read_withdrawn(root) if undo else read_receipts(root, week.name), key=lambda one: one.student)
        chosen = _chosen(here, rules, student, attempt, every, source, undo)
        return [_moved(one, root, marks, week, undo) for one in chosen]


@contextmanager
def _no_run(own: Path) -> Iterator[None]:
    """No `grade run` of the week whose marks these are, meanwhile."""
    if not own.is_dir():
        yield
        return
    with locked(own / LOCK, f"a `grade run` is writing to {own}: wait for its end"):
        yield


def _chosen(
    here: Sequence[Receipt],
    rules: Rules,
    student: str | None,
    attempt: int | None,
    every: bool,
    source: Path | None,
    undo: bool,
) -> list[Receipt]:
    what = "withdrawn attempt" if undo else "attempt"
    if source is not None:
        found = [one for one in here if Path(one.source).resolve() == source.resolve()]
        if not found:
            known = sorted({one.source for one in here})
            raise LabError(f"no {what} came from {source}" + (f": from {', '.join(known[:5])}" if known else ""))
        return found
    if student is None and undo and here:
        return list(here)
    if undo and not here:
        raise LabError("nothing is withdrawn here")
    if student is None:
        raise LabError("whose attempt? Name the student, or by --from the source from which all are to be taken back")
    name = rules.among(student, [one.student for one in here])
    theirs = sorted((one for one in here if one.student == name), key=lambda one: one.attempt)
    last = theirs if every else theirs[-1:]
    found = [one for one in theirs if one.attempt == attempt] if attempt is not None else last
    if not found and theirs:
        raise LabError(f"there is no {what} {attempt} of {shown(student)}: {', '.join(str(o.attempt) for o in theirs)}")
    if not found:
        raise LabError(f"there is no {what} of {student!r}{nearest(student, sorted({one.student for one in here}))}")
    return found


def left(submissions: Path, week: Week, moved: Iterable[Move], undo: bool = False) -> list[str]:
    """Sentences on students of whom something was taken back and another attempt is still there: it counts now; with
    `undo`, of whom something was brought back and another one is still withdrawn."""
    gone, root = {one.receipt.student for one in moved}, submissions / week.name
    there: dict[str, list[int]] = {}
    for one in read_withdrawn(root) if undo else read_receipts(root, week.name):
        there.setdefault(one.student, []).append(one.attempt)

    def told(student: str) -> str:
        numbers = ", ".join(map(str, sorted(there[student])))
        command = f"grade withdraw {week.name} {shlex.quote(student)}"
        if undo:
            return (
                f"attempt {numbers} of {shown(student)} stays withdrawn: `{command} --undo --all` brings back every one"
            )
        return f"{shown(student)} still has attempt {numbers}: `{command} --all` takes back every one"

    return [told(student) for student in sorted(gone & set(there))]


def _moved(one: Receipt, root: Path, marks: Path, week: Week, undo: bool) -> Move:
    """Move the receipt first when it goes, and last when it comes: an attempt is there when its receipt is."""
    own = one.path.parent.parent if undo else one.path.parent
    kinds = (".json", ".names.json", ".zip")
    for kind in reversed(kinds) if undo else kinds:
        _move(own, f"{one.attempt}{kind}", undo)
    mark = path_of(marks, week.name, one.student, one.attempt)
    assert mark.parent.name == quoted(one.student)
    return Move(one, _move(mark.parent, mark.name, undo))


def _move(folder: Path, name: str, undo: bool) -> bool:
    there, aside = folder / name, folder / WITHDRAWN / name
    old, new = (aside, there) if undo else (there, aside)
    if not old.exists():
        return False
    new.parent.mkdir(exist_ok=True)
    old.replace(new)
    return True


def only_withdrawn(
    submissions: Path, week: Week, students: Iterable[str], roster: Roster | None, rules: Rules
) -> list[str]:
    """A sentence on students of the roster of whom everything was taken back: they are as if nothing had come."""
    if roster is None:
        return []
    gone = sorted({one.student for one in read_withdrawn(submissions / week.name)})
    lines = {id(find(one, roster, rules)[0]) for one in students}
    found = {one: find(one, roster, rules)[0] for one in gone}
    theirs = [one for one, line in found.items() if line is not None and id(line) not in lines]
    if not theirs:
        return []
    return [
        f"everything of {some(theirs)} was withdrawn: {week.name} is missing then, and a zero by --zeros; `grade "
        f"withdraw {week.name} ID --undo` brings an attempt back"
    ]
