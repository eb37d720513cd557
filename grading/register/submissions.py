"""What was handed in: every attempt under a number of its own, with the archive in submitted/WEEK/NUMBER.zip.

An arrival is an attempt that is there already, or a new one. Nothing is ever overwritten or removed: an attempt that is
not to count is withdrawn, and can be brought back.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from grading.files import put
from grading.intake.arrival import PLATFORM, Arrival, Key
from grading.intake.names import clean
from grading.register.people import Person, exactly, keys_of, learn, owner, person
from grading.register.schema import Class
from labkit.checks.tasks import Week
from labkit.errors import LabError

BY_HAND = "by hand"  # who says when it was handed in, beside PLATFORM and GIVEN


@dataclass(frozen=True)
class Added:
    """What became of an arrival. id: the submission's number; members: whose it is, as far as is known; withdrawn: it
    is here already, and does not count."""

    id: int
    new: bool
    members: list[Person]
    withdrawn: bool = False


@dataclass(frozen=True)
class Attempt:
    """A submission as the store has it.

    received    who says so is `timed` (PLATFORM, GIVEN, BY_HAND); counting.handed_in is the time that holds
    members     persons; labels: what the platform called those who are nobody yet
    renamed     (path in the archive, path under which it counts)"""

    id: int
    assignment: str
    digest: str
    received: datetime | None
    timed: str
    late: bool | None
    how: str
    source: str
    label: str
    group: str
    notes: tuple[str, ...]
    attention: tuple[str, ...]
    withdrawn: datetime | None
    members: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def attempts(cls: Class, week: str, withdrawn: bool = False) -> list[Attempt]:
    """All attempts of a week by number; withdrawn: with those that do not count."""
    return _read(cls, "assignment = ?" + ("" if withdrawn else " AND withdrawn_at IS NULL"), (week,))


def attempt(cls: Class, number: int) -> Attempt:
    """The submission with this number. LabError for none."""
    found = _read(cls, "id = ?", (number,))
    if not found:
        raise LabError(f"there is no submission {number}: `grade status WEEK` lists them")
    return found[0]


def _read(cls: Class, where: str, values: Sequence[object]) -> list[Attempt]:
    rows = cls.db.execute(f"SELECT {COLUMNS} FROM submission WHERE {where} ORDER BY id", values).fetchall()
    of = f"submission IN (SELECT id FROM submission WHERE {where}) ORDER BY submission"
    members: dict[int, list] = {}
    for row in cls.db.execute(
        f"SELECT submission, person, label FROM member WHERE NOT left_out AND {of}, seat", values
    ):
        members.setdefault(row["submission"], []).append(row)
    renamed: dict[int, list[tuple[str, str]]] = {}
    for row in cls.db.execute(f"SELECT submission, old, new FROM rename WHERE {of}, old", values):
        renamed.setdefault(row["submission"], []).append((row["old"], row["new"]))
    found = []
    for row in rows:
        cells = [READ.get(name, lambda value: value)(value) for name, value in zip(row.keys(), row)]
        seats = members.get(row["id"], ())
        cells.append(tuple(dict.fromkeys(m["person"] for m in seats if m["person"] is not None)))
        cells.append(tuple(m["label"] for m in seats if m["person"] is None))
        cells.append(tuple(renamed.get(row["id"], ())))
        found.append(Attempt(*cells))
    return found


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


# The columns as Attempt has them, and how those are read that are no plain values.
COLUMNS = "id, assignment, digest, received, timed, late, how, source, label, grouped, notes, attention, withdrawn_at"
READ: dict[str, Callable] = {
    **dict.fromkeys(("received", "withdrawn_at"), _time),
    **dict.fromkeys(("notes", "attention"), lambda text: tuple(json.loads(text))),
    "late": lambda value: None if value is None else bool(value),
}


# -- what arrives -----------------------------------------------------------------------------------------------------
def add_submission(cls: Class, week: Week, arrival: Arrival) -> Added:
    """Keep an arrival, unless it is here already; then what the platform says of it now is taken over: whose it is,
    when it came, whether it is late. An unknown author's is kept, and belongs to nobody."""
    digest = _digest(arrival.files)
    with cls.writing():
        seats = _seats(cls, week.name, arrival)
        known = _known(cls, week.name, arrival, digest, seats)
        number = keep(cls, week, arrival, seats, digest) if known is None else known.id
        if known is not None:
            _update(cls, known, arrival)
            if arrival.members or known.labels:
                _sit(cls, number, seats)
                _say_who_is_gone(cls, known, arrival.source)
        for _, keys, found in seats:
            if found is not None:
                learn(cls, found, keys)
        # By the number of the newest file Canvas takes a page back: also a group's, which came by one member's number.
        for one in exactly(cls, arrival.keys) if len(seats) > 1 and not arrival.members else ():
            learn(cls, one, arrival.keys)
    kept = attempt(cls, number)
    return Added(number, known is None, [person(cls, id) for id in kept.members], kept.withdrawn is not None)


def end_collection(cls: Class, week: Week, download: str) -> None:
    """A download was read to its end: what is in it is known from now on, also if newer attempts come after it."""
    with cls.writing():
        cls.db.execute(
            "INSERT OR IGNORE INTO collected (assignment, download, at) VALUES (?, ?, ?)",
            (week.name, download, datetime.now(UTC).isoformat(timespec="seconds")),
        )


Seats = list[tuple[str, list[Key], int | None]]  # (label, keys, person or None) of each member


def _seats(cls: Class, week: str, arrival: Arrival) -> Seats:
    if not arrival.members:
        label, found = clean(arrival.label).strip(), owner(cls, arrival.keys)[0]
        return (
            [(label, arrival.keys, found)]
            if found
            else _said(cls, week, label, arrival.keys) or [(label, arrival.keys, None)]
        )
    seats: Seats = []
    for keys in arrival.members:
        label = next(
            (key.value for platform in ("name", "email", "id") for key in keys if key.platform == platform), ""
        )
        seats.append((clean(label or arrival.label).strip(), keys, owner(cls, keys)[0]))
    return seats


def _said(cls: Class, week: str, label: str, keys: Sequence[Key]) -> Seats:
    """The members of a group, as an instructor named them for what it submitted last under this name: in Canvas also if
    the number after the name is another member's now."""
    others = exactly(cls, [key for key in keys if key.platform == "canvas"])
    rows = cls.db.execute(
        "SELECT person FROM member WHERE NOT left_out AND person IS NOT NULL AND submission = ("
        "SELECT max(id) FROM submission AS said WHERE +assignment = ? AND grouped = '' "
        "AND EXISTS (SELECT 1 FROM member WHERE submission = said.id AND person IS NOT NULL) AND id IN ("
        "SELECT id FROM submission WHERE label = ? UNION SELECT submission FROM member "
        "JOIN submission AS other ON other.id = submission WHERE person IN (SELECT value FROM json_each(?)) "
        "AND how = 'canvas' AND rtrim(other.label, '0123456789') = rtrim(?, '0123456789'))) ORDER BY seat",
        (week, label, json.dumps(list(others)), label),
    ).fetchall()
    return [(label, [], row["person"]) for row in rows] if len(rows) > 1 else []


def _known(cls: Class, week: str, arrival: Arrival, digest: str, seats: Seats) -> Attempt | None:
    """Which attempt an arrival is, if it is one that is here. Content with the platform's own time is known if this
    time is, or if only people gave another. Content without is what its author handed in last, or was in this very
    download before; else somebody put earlier files back, which is an attempt again."""
    theirs = _of_author(cls, week, arrival, seats)
    same = [one for one in theirs if one.digest == digest]
    if (
        arrival.late
    ):  # what was in time and is late now was handed in once more, but for the file of Canvas' very number
        files = [key.value for key in arrival.keys if key.platform == "canvas" and key.assignment]
        query = "SELECT submission FROM author WHERE platform = 'canvas' AND value IN (SELECT value FROM json_each(?))"
        there = {row["submission"] for row in cls.db.execute(query, (json.dumps(files),))}
        same = [one for one in same if one.late is not False or one.id in there]
    if not same:
        return None
    if arrival.received is not None and arrival.timed == PLATFORM:
        received = arrival.received.astimezone(UTC)  # a zone's time in an hour that comes twice equals no other's
        exact = [one for one in same if one.received == received]
        found = exact or [one for one in same if one.timed != PLATFORM]
        return found[-1] if found else None
    last = [theirs[-1], *[one for one in theirs if one.how == arrival.how][-1:]]
    if unchanged := [one for one in same if one in last]:
        return unchanged[-1]
    read = "SELECT 1 FROM collected WHERE (assignment, download) = (?, ?)"
    return same[-1] if cls.db.execute(read, (week, arrival.download)).fetchone() else None


def _of_author(cls: Class, week: str, arrival: Arrival, seats: Seats) -> list[Attempt]:
    """All attempts, withdrawn ones too, of whoever handed this in: of one exact key with it; else under this label,
    where one side has no exact key, or of one of these persons, and as this one a group's or a single person's: what
    somebody hands in alone is not what their group did, though it be the same files. That it is a group's, a download
    says only beside its worksheet."""
    own = [key.row for key in arrival.keys if key.platform != "name"]
    people = [found for _, _, found in seats if found is not None]
    # By index alone, each part of the UNION by its own ("+" keeps SQLite from reading the whole week): a class of a
    # thousand is collected every day.
    return _read(
        cls,
        """+assignment = ? AND id IN (
            SELECT submission FROM author WHERE (platform, assignment, value) IN (
                SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
                FROM json_each(?))
            UNION SELECT id FROM submission AS other WHERE label = ?
                AND (? OR NOT EXISTS (SELECT 1 FROM author WHERE submission = other.id))
                AND (? OR NOT EXISTS (
                    SELECT 1 FROM member WHERE submission = other.id AND person IS NOT NULL AND NOT left_out))
            UNION SELECT submission FROM member JOIN submission AS other ON other.id = submission
                WHERE person IN (SELECT value FROM json_each(?)) AND NOT left_out AND grouped = ?)""",
        (week, json.dumps(own), clean(arrival.label).strip(), not own, not people, json.dumps(people), arrival.group),
    )


def keep(cls: Class, week: Week, arrival: Arrival, seats: Seats, digest: str = "") -> int:
    """Keep an arrival as a new submission, whatever is here already; its number."""
    row = {
        "assignment": week.name,
        "digest": digest or _digest(arrival.files),
        "received": arrival.received.isoformat() if arrival.received else None,
        "timed": arrival.timed if arrival.received else "",
        "late": None if arrival.late is None else int(arrival.late),
        "how": arrival.how,
        "source": clean(arrival.source),
        "label": clean(arrival.label).strip(),
        "grouped": arrival.group,
        "notes": json.dumps(arrival.notes),
        "attention": json.dumps(arrival.attention),
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    columns, values = ", ".join(row), ", ".join("?" * len(row))
    with cls.writing():
        added = cls.db.execute(f"INSERT INTO submission ({columns}) VALUES ({values})", tuple(row.values()))
        number = int(added.lastrowid or 0)
        exact = {(number, *key.row) for key in arrival.keys if key.platform != "name"}
        cls.db.executemany("INSERT INTO author (submission, platform, assignment, value) VALUES (?, ?, ?, ?)", exact)
        path = cls.archive(week, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(arrival.files) as file:  # in place before the row is: no row without an archive
            put(path, partial(shutil.copyfileobj, file), 0o600)
        _sit(cls, number, seats)
    return number


def _update(cls: Class, known: Attempt, arrival: Arrival) -> None:
    if arrival.received and known.timed != BY_HAND and (arrival.timed == PLATFORM or not known.timed):
        cls.db.execute(
            "UPDATE submission SET received = ?, timed = ? WHERE id = ?",
            (arrival.received.isoformat(), arrival.timed, known.id),
        )
    if arrival.group and not known.group:
        cls.db.execute("UPDATE submission SET grouped = ? WHERE id = ?", (arrival.group, known.id))
    if arrival.late is not None:
        cls.db.execute("UPDATE submission SET late = ? WHERE id = ?", (int(arrival.late), known.id))


def _sit(cls: Class, number: int, seats: Seats) -> None:
    """Write down whose a submission is. Who an instructor has named keeps the seat, and who was left out is so still."""
    named: dict[str, int | None] = {}
    before: dict[str, list[Key]] = {}
    out = set[int]()
    for row in cls.db.execute("SELECT label, keys, person, left_out FROM member WHERE submission = ?", (number,)):
        named[row["label"]], before[row["label"]] = row["person"], keys_of(row["keys"])
        out |= {row["person"]} if row["left_out"] else set()
    cls.db.execute("DELETE FROM member WHERE submission = ?", (number,))
    for seat, (label, keys, found) in enumerate(seats):
        rows = json.dumps([(k.platform, k.value, k.assignment) for k in dict.fromkeys([*keys, *before.get(label, ())])])
        whose = found or named.get(label)
        cls.db.execute(
            "INSERT INTO member (submission, seat, label, keys, person, left_out) VALUES (?, ?, ?, ?, ?, ?)",
            (number, seat, label, rows, whose, whose in out),
        )


def _say_who_is_gone(cls: Class, known: Attempt, source: str) -> None:
    """Of a group's newest worksheet the members hold; whose the submission is no more is said to the instructor."""
    now = attempt(cls, known.id).members
    until = {id: f"It was {person(cls, id).name}'s, too, until " for id in {*known.members, *now}}
    kept = [said for said in known.attention if not said.startswith(tuple(until[id] for id in now))]
    gone = [f"{until[id]}{clean(source)}: another group, or a slip?" for id in known.members if id not in now]
    every = json.dumps(list(dict.fromkeys([*kept, *gone])))
    cls.db.execute("UPDATE submission SET attention = ? WHERE id = ?", (every, known.id))


def _digest(files: bytes | Path) -> str:
    with _opened(files) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _opened(files: bytes | Path) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(files) if isinstance(files, bytes) else open(files, "rb")


# -- what an instructor decides ---------------------------------------------------------------------------------------
def withdraw(cls: Class, numbers: Iterable[int], undo: bool = False) -> list[Attempt]:
    """Let attempts count no more, or again; those that changed. Their marks and points stay theirs."""
    chosen = [attempt(cls, number) for number in numbers]
    changed = [one for one in chosen if (one.withdrawn is None) != undo]
    now = None if undo else datetime.now(UTC).isoformat(timespec="seconds")
    with cls.writing():
        for one in changed:
            cls.db.execute("UPDATE submission SET withdrawn_at = ? WHERE id = ?", (now, one.id))
    return changed


def leave_out(cls: Class, number: int, who: Person, undo: bool = False) -> None:
    """Let a group's submission count no more for one of its members, or again. LabError for who is none of several."""
    if not undo and attempt(cls, number).members == (who.id,):
        raise LabError(f"submission {number} is {who.name}'s alone: grade submission {number} withdraw")
    with cls.writing():
        changed = cls.db.execute(
            "UPDATE member SET left_out = ? WHERE (submission, person, left_out) = (?, ?, ?)",
            (not undo, number, who.id, undo),
        )
    if not changed.rowcount:
        here = f"counts for {who.name} already" if who.id in attempt(cls, number).members else f"is not {who.name}'s"
        raise LabError(f"submission {number} {here}; `grade who` names a group's members")


def retime(cls: Class, number: int, received: datetime | None) -> Attempt:
    """Say when an attempt was handed in; None: the platform's time holds no more, and it has none."""
    attempt(cls, number)
    with cls.writing():
        cls.db.execute(
            "UPDATE submission SET received = ?, timed = ? WHERE id = ?",
            (received.isoformat() if received else None, BY_HAND if received else "", number),
        )
    return attempt(cls, number)


def rename(cls: Class, number: int, old: str, new: str) -> Attempt:
    """Let a file of an attempt count under another name; new "": under its own again. Its mark holds no more."""
    attempt(cls, number)
    with cls.writing():
        cls.db.execute("DELETE FROM rename WHERE (submission, old) = (?, ?)", (number, old))
        if new:
            cls.db.execute("INSERT INTO rename (submission, old, new) VALUES (?, ?, ?)", (number, old, new))
    return attempt(cls, number)
