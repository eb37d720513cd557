"""When something was handed in: what a stamp says, and what a student cannot write.

A folder's name in nbgrader's exchange and the timestamp.txt inside are the student's own: claims. What the student
cannot set is when the kernel last changed a file's entry (its ctime): any writing, renaming or touching moves it to
now. Where students themselves write, into an exchange that is open to everybody, it tells whether a claim can be true.
In a copy of an exchange it tells of the copying, and nothing checks the claim.
"""

import os
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

SLACK = timedelta(minutes=5)  # from nbgrader's look at the clock to the end of its copying
MOST = 20_000  # names of one submission that are looked at, as many as are read
# Hours from UTC of the abbreviations that mean one offset everywhere. CST, IST, BST and AST do not: they are read where
# the class's own zone has them.
ZONES = {
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "SAST": 2,
    "EST": -5, "EDT": -4, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "AKDT": -8, "HST": -10,
    "JST": 9, "KST": 9, "AWST": 8, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13,
}  # fmt: skip
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?")


def read_stamp(text: str, zone: tzinfo | None = None) -> tuple[datetime | None, str]:
    """A time as nbgrader writes it ("2026-11-20 17:30:00.123456 CEST") or in ISO 8601, and if it has none why, as the
    end of a sentence. Without a zone it is UTC, as nbgrader reads it.

    zone   the class's, whose own abbreviations go before all others"""
    text = text.strip()
    day, _, rest = text.partition(" ")
    clock, _, called = rest.partition(" ")
    try:
        found = datetime.fromisoformat(f"{day} {clock}" if called else text)
        if called and found.tzinfo is None:
            found = found.replace(tzinfo=_zone(called, found, zone))
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        found.astimezone(UTC)
        return found, ""
    except KeyError:
        return None, f"has the time zone {called[:40]!r}, which is not known"
    except (ValueError, OSError, OverflowError):
        return None, "has no time that can be read"


def _zone(called: str, at: datetime, own: tzinfo | None) -> tzinfo:
    """The zone that a stamp names. KeyError for one that is not known, or may be several."""
    for fold in (0, 1) if own is not None else ():
        local = at.replace(tzinfo=own, fold=fold)
        if local.tzname() == called and (offset := local.utcoffset()) is not None:
            return timezone(offset)
    if found := _OFFSET.fullmatch(called):
        size = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        return timezone(-size if found[1] == "-" else size)
    if "/" in called:
        return ZoneInfo(called)  # KeyError or ValueError for what is none
    return timezone(timedelta(hours=ZONES[called]))


def changed(path: Path) -> datetime:
    """When a file, or anything in a folder, was last changed by whatever means. Now, if part of it cannot be read or
    it is more than anybody looks at: what was changed last may be there."""

    def stop(error: OSError) -> None:
        raise error

    try:
        latest, looked = os.lstat(path).st_ctime, 0
        for folder, folders, files in os.walk(path, onerror=stop):
            for name in (*folders, *files):
                latest, looked = max(latest, os.lstat(os.path.join(folder, name)).st_ctime), looked + 1
                if looked > MOST:
                    return datetime.now(UTC)
        return datetime.fromtimestamp(latest, UTC)
    except (OSError, ValueError, OverflowError):
        return datetime.now(UTC)
