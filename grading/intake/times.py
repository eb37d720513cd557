"""When something was handed in, by what a student cannot write.

A folder's name in nbgrader's exchange and the timestamp.txt inside are the student's own: claims. What the student
cannot set is when the kernel last changed a file's entry (its ctime): any writing, renaming or touching moves it to
now. Where students themselves write, into an exchange that is open to everybody, it tells whether a claim can be true.
In a copy of an exchange it tells of the copying, and nothing checks the claim.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grading.intake.names import parse_time

TIMESTAMP = "timestamp.txt"  # nbgrader puts it into a submission's folder
SLACK = timedelta(minutes=5)  # from nbgrader's look at the clock to the end of its copying
MOST = 20_000  # names of one hand-in that are looked at, as many as are read
CHECKED, CLAIMED, PUT = "checked", "claimed", "put there"  # how far a time is known: see `settled`


def open_to_all(folder: Path) -> bool:
    """Whether every account of this machine may write into it, as into an exchange's inbound folder."""
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def claimed(folder: Path) -> datetime | None:
    """The time in nbgrader's timestamp.txt. A student may have made the file: no link is followed, little is read."""
    try:
        file = os.open(folder / TIMESTAMP, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return parse_time(opened.read(200).decode("utf-8", "replace"))


def changed(path: Path) -> datetime | None:
    """When a file, or anything in a folder, was last changed by whatever means; None if that cannot be read. Now, if
    there is more than anybody looks at: what was changed last may be in the rest."""
    try:
        latest, looked = os.lstat(path).st_ctime, 0
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                latest, looked = max(latest, os.lstat(os.path.join(folder, name)).st_ctime), looked + 1
                if looked > MOST:
                    return datetime.now(UTC)
        return datetime.fromtimestamp(latest, UTC)
    except (OSError, ValueError, OverflowError):
        return None


def settled(claim: datetime | None, put: datetime | None) -> tuple[datetime | None, str]:
    """(the time that counts, how far it is known), from what a student says and from when it was put there (None where
    that tells nothing).

    CHECKED   the claim fits
    PUT       it does not, or there is none: the files' own time
    CLAIMED   nothing checks it
    """
    if put is None:
        return claim, CLAIMED if claim else ""
    if claim is None or claim + SLACK < put:
        return put, PUT
    return claim, CHECKED
