"""class.db, the one store of a class: its tables, how it is opened and brought up to date, and what is around it.

Times are ISO 8601 with their offset; lists are JSON. Archives are files beside it: submitted/WEEK/NUMBER.zip.
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from grading.register.rules import Rules
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest

FILE, SUBMITTED = "class.db", "submitted"
BUSY = 60.0  # seconds for which a writer waits for another one
UPGRADES: tuple[str, ...] = (
    """
    CREATE TABLE person (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,             -- as the roster writes it
        email TEXT NOT NULL DEFAULT '',
        left_at TEXT                    -- when a roster came in which they are no more
    ) STRICT;
    CREATE TABLE alias (                -- an exact key of a person
        platform TEXT NOT NULL CHECK (platform IN ('canvas', 'moodle', 'nbgrader', 'id', 'email', 'name')),
        assignment TEXT NOT NULL DEFAULT '',    -- Moodle's participant numbers hold for one only
        value TEXT NOT NULL,
        person INTEGER NOT NULL REFERENCES person ON DELETE CASCADE,
        origin TEXT NOT NULL CHECK (origin IN ('roster', 'who', 'learned')),    -- learned beside another key
        PRIMARY KEY (platform, assignment, value)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE extension (            -- what a platform granted, beside what course.toml says
        person INTEGER NOT NULL REFERENCES person ON DELETE CASCADE,
        assignment TEXT NOT NULL,
        due TEXT NOT NULL,
        PRIMARY KEY (person, assignment)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE submission (           -- one attempt; its number is never used again
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        assignment TEXT NOT NULL,
        digest TEXT NOT NULL,           -- sha256 of the archive
        received TEXT,
        timed TEXT NOT NULL CHECK (timed IN ('', 'platform', 'given', 'by hand')),      -- who says so
        late INTEGER CHECK (late IN (0, 1)),                                            -- the platform's own mark
        how TEXT NOT NULL,
        source TEXT NOT NULL,
        label TEXT NOT NULL,
        keys TEXT NOT NULL,
        grouped TEXT NOT NULL DEFAULT '',
        notes TEXT NOT NULL DEFAULT '[]',
        attention TEXT NOT NULL DEFAULT '[]',
        collected TEXT NOT NULL,
        withdrawn_at TEXT
    ) STRICT;
    CREATE INDEX of_assignment ON submission (assignment, digest);
    CREATE TABLE member (               -- whose it is: one, or a group's n. person is NULL while nobody knows
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE,
        seat INTEGER NOT NULL,
        label TEXT NOT NULL,
        keys TEXT NOT NULL,
        person INTEGER REFERENCES person ON DELETE CASCADE,
        PRIMARY KEY (submission, seat)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX of_person ON member (person);
    CREATE TABLE rename (
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE,
        old TEXT NOT NULL,
        new TEXT NOT NULL,
        PRIMARY KEY (submission, old)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE mark (                 -- rows are only added: the newest holds, the others are its history
        id INTEGER PRIMARY KEY,
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE,
        key TEXT NOT NULL,
        json TEXT NOT NULL,
        because TEXT NOT NULL DEFAULT '',
        tasks TEXT NOT NULL DEFAULT '[]',       -- those that were judged again; all, if none is named
        finished TEXT NOT NULL
    ) STRICT;
    CREATE INDEX of_submission ON mark (submission, id);
    CREATE TABLE hand_mark (            -- rows are only added: the newest of a task holds
        id INTEGER PRIMARY KEY,
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE,
        task TEXT NOT NULL,
        marker TEXT NOT NULL,
        points REAL,
        extra REAL NOT NULL DEFAULT 0,
        comment TEXT NOT NULL DEFAULT '',
        content TEXT NOT NULL DEFAULT '',       -- the digest of the files that the marker saw
        automatic REAL,                         -- the task's automatic points of then
        at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX of_hand ON hand_mark (submission, task, id);
    CREATE TABLE published (
        assignment TEXT NOT NULL,
        person INTEGER NOT NULL REFERENCES person ON DELETE CASCADE,
        total REAL,
        at TEXT NOT NULL,
        PRIMARY KEY (assignment, person, at)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE collected (            -- downloads that were read to their end, by their sha256
        assignment TEXT NOT NULL,
        download TEXT NOT NULL,
        at TEXT NOT NULL,
        PRIMARY KEY (assignment, download)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE seed (                 -- the class's, of an assignment's random data
        assignment TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    "ALTER TABLE member ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0 CHECK (left_out IN (0, 1))",  # by an instructor
    """
    CREATE TABLE author (               -- the exact keys of a submission, by the platform: a person's, or the group's own
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE,
        platform TEXT NOT NULL,
        assignment TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (platform, assignment, value, submission)
    ) STRICT, WITHOUT ROWID;
    INSERT OR IGNORE INTO author
        SELECT submission.id, json_extract(value, '$[0]'), json_extract(value, '$[2]'), json_extract(value, '$[1]')
        FROM submission, json_each(submission.keys) WHERE json_extract(value, '$[0]') != 'name';
    ALTER TABLE submission DROP COLUMN keys;
    CREATE INDEX of_submission_author ON author (submission);
    CREATE INDEX of_label ON submission (label);
    """,
    """
    CREATE TABLE publishing (           -- how an assignment is published, from the last time on
        assignment TEXT PRIMARY KEY,
        zeros INTEGER NOT NULL CHECK (zeros IN (0, 1)),         -- for who handed nothing in
        title TEXT                                              -- of Canvas' column, if one was named
    ) STRICT, WITHOUT ROWID;
    """,
)


def connect(folder: Path) -> sqlite3.Connection:
    """Open the store in `folder`, and bring it up to date. LabError where there is none, or one that cannot be read."""
    path = folder / FILE
    if not path.is_file():
        here = folder.absolute()
        above = next((str(one) for one in here.parents if (one / FILE).is_file()), "DIR")
        raise LabError(
            f"{here} is no class's folder, since it has no {FILE}: name one with --class {above}, or make one with "
            "`grade init DIR --roster FILE --zone Europe/Berlin`"
        )
    return _opened(path)


def create(folder: Path) -> sqlite3.Connection:
    """Make the store in `folder`. LabError where one is there."""
    path = folder / FILE
    if path.exists():
        raise LabError(f"{folder} is a class's folder already")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # names and points are for its owner
    return _opened(path)


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY, isolation_level=None)  # transactions are begun and ended by `writing`
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # a mark that is there stays, also when the power goes
        if db.execute("PRAGMA user_version").fetchone()[0] != len(UPGRADES):
            _upgrade(db, path)
        return db
    except sqlite3.OperationalError as error:
        db.close()
        raise _explained(error) or error from None
    except sqlite3.DatabaseError as error:
        db.close()
        raise LabError(f"{path} cannot be read ({error}): restore it from a copy") from None
    except LabError:
        db.close()
        raise


def _upgrade(db: sqlite3.Connection, path: Path) -> None:
    with writing(db):
        version = db.execute("PRAGMA user_version").fetchone()[0]  # once more: another process may have been first
        if version > len(UPGRADES):
            raise LabError(f"{path} was written by a newer course (version {version}): bring this course up to date")
        for script in UPGRADES[version:]:
            for statement in re.sub("--.*", "", script).split(";"):  # executescript would commit
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(UPGRADES)}")


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction: all of it holds, or nothing, also after a kill. Inside another one it is part of that."""
    if db.in_transaction:
        yield
        return
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.OperationalError):  # SQLite itself has rolled back where the disk is full
                db.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        raise _explained(error) or error from None


def _explained(error: sqlite3.OperationalError) -> LabError | None:
    """What the machine is to blame for, as a sentence; None for a fault of this program."""
    why = {
        "SQLITE_BUSY": "another command of this class writes: wait for its end, and type it again",
        "SQLITE_FULL": "the disk is full: make room, and type it again; nothing that was said to be done is lost",
        "SQLITE_READONLY": "it cannot be written: may you write into its folder?",
        "SQLITE_CANTOPEN": "it cannot be opened: may you write into its folder?",
        "SQLITE_IOERR": "the disk reports an error: look at the machine's log",
    }
    name = next((name for name in why if error.sqlite_errorname.startswith(name)), "")
    return LabError(f"{FILE}: {why[name]}") if name else None


@dataclass
class Class:
    """An opened class (grading.register.classes). `db`: read with SQL; what writes does so in `with cls.writing()`."""

    folder: Path
    db: sqlite3.Connection
    weeks: list[Week]
    rules: Rules

    def week(self, name: str) -> Week:
        """The week of this name. LabError for none, with the nearest."""
        found = next((week for week in self.weeks if week.name == name), None)
        if found is None:
            raise LabError(f"there is no week {name!r}{nearest(name, [week.name for week in self.weeks])}")
        return found

    def writing(self) -> AbstractContextManager[None]:
        """One transaction, and one writer at a time: all of it holds, or nothing, also after a kill."""
        return writing(self.db)

    def archive(self, week: Week, number: int) -> Path:
        """Where a submission's archive lies."""
        return self.folder / SUBMITTED / week.name / f"{number}.zip"

    @property
    def zone(self) -> ZoneInfo | None:
        """The class's time zone; None if course.toml names none."""
        return ZoneInfo(self.rules.zone) if self.rules.zone else None
