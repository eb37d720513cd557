"""Names that strangers chose: which paths are harmless, which are not worth reading, and what the names of handed-in
files tell: nbgrader's exchange, the bulk downloads of Canvas and Moodle.

    nbgrader   STUDENT+ASSIGNMENT+TIMESTAMP[+RANDOM]/      the exchange's inbound/ folder (exchange/default/submit.py)
    Canvas     NAME[_LATE]_USER_ATTACHMENT_FILE            lib/content_zipper.rb; anonymous: [LATE_]anon_ID_...
    Moodle     NAME_NUMBER_assignsubmission_PLUGIN_[FILE]  mod/assign: a folder for each student, or one file each; of
                                                           all without a group, "Default group", no number

Names are a student's to choose, in part: they are read and shown, and never used as a path.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from labkit.checks.tasks import Week

MAX_DEPTH = 12
MAX_PATH = 1000  # bytes
_PART = re.compile(r"week[\s_-]*0*(\d+)|capstone")
_DRIVE = re.compile(r"[A-Za-z]:")
# What systems and tools leave about and nobody made, some of it under hidden names.
LEFT_ABOUT = frozenset({"__MACOSX", "__pycache__", "node_modules", ".DS_Store", ".ipynb_checkpoints", ".git", ".nfs"})
_NOISE = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "Thumbs.db", "desktop.ini"})
# nbgrader's own, beside the student's files: the time is told elsewhere, and the secret must not be shown to anyone.
EXCHANGE_FILES = frozenset({"timestamp.txt", "submission_secret.txt"})
_EXCHANGE = re.compile(r"(?P<student>.+)\+(?P<assignment>[^+]+)\+(?P<stamp>\d{4}-\d\d-\d\d.*?)(?:\+[\w=-]{12})?")
_WHO = r"(?P<student>(?:(?!LATE_)\w+?_)?)(?P<late>LATE_)?(?P<user>\d+|anon_[^\W_]+)"
_CANVAS = re.compile(_WHO + r"_(?P<attachment>\d+)_(?P<file>.+)")
_CANVAS_TEXT = re.compile(_WHO + r"__?(?P<file>(?:text|link)\.html)")
_MOODLE = re.compile(r"(?P<student>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+(?:_(?P<file>.*))?", re.DOTALL)
_MOODLE_REST = re.compile(r"(?P<student>.+?)_assignsubmission_[a-z]+(?:_(?P<file>.+))?", re.DOTALL)
_MOODLES = re.compile(r"(?=_\d+_assignsubmission_)")  # with a lookahead: two of them may share a letter
_AGAIN = re.compile(r"-\d{1,2}(?=\.[^.]+$)")  # what Canvas puts into the name of a file that is handed in again
_CUT = re.compile(r"""[\x00-\x1f\x7f&<>"`|':\\/]|\.\.+""")


@dataclass(frozen=True)
class Named:
    """What a name tells. `file` is the student's own name for the file ("" for a folder of files); `number` tells two
    people of one name apart; `order` is the attachment's number, which rises with time."""

    system: str
    student: str
    file: str = ""
    number: str = ""
    order: int = 0
    late: bool | None = None
    received: datetime | None = None

    @property
    def participant(self) -> str:
        """Moodle's name and number, "Max Meier_500": see namesakes.py. "" of other systems."""
        return f"{self.student}_{self.number}" if self.system == "Moodle" and self.number else ""


def exchange_name(name: str, assignments: tuple[str, ...]) -> Named | None:
    """A folder of nbgrader's exchange, if it is one of these assignments."""
    found = _EXCHANGE.fullmatch(name)
    if not found or found["assignment"] not in assignments:
        return None
    return Named("nbgrader", found["student"], received=parse_time(found["stamp"]))


def is_exchange_name(name: str) -> bool:
    """Whether it is nbgrader's, of whatever assignment."""
    return _EXCHANGE.fullmatch(name) is not None


def ambiguous(name: str) -> bool:
    """Whether Moodle's mark stands in it twice. Before the first one is a name, behind it a file, and a student may
    choose both: so nobody can tell whose it is."""
    return len(_MOODLES.findall(name)) > 1


def lms_name(name: str) -> Named | None:
    """A file or folder of a bulk download of Moodle or Canvas, or None; None too for what is `ambiguous`."""
    if ambiguous(name):
        return None
    found = _MOODLE.fullmatch(name)
    if found:
        return Named("Moodle", found["student"].strip(), found["file"] or "", found["number"])
    found = _CANVAS.fullmatch(name) or _CANVAS_TEXT.fullmatch(name)
    if not found:
        rest = _MOODLE_REST.fullmatch(name)
        return Named("Moodle", rest["student"].strip(), rest["file"] or "") if rest else None
    student = found["student"].rstrip("_")
    order = int(found["attachment"][:18]) if "attachment" in found.groupdict() else 0
    return Named(
        "Canvas",
        f"{student}_{found['user']}" if student else found["user"],
        _AGAIN.sub("", found["file"]),
        found["user"],
        order,
        bool(found["late"]),
    )


def parse_time(text: str) -> datetime | None:
    """A time as nbgrader writes it ("2026-11-20 17:30:00.123456 UTC") or in ISO 8601; None for anything else.

    Without a zone it is UTC, as nbgrader reads it."""
    text = text.strip()
    day, _, rest = text.partition(" ")
    clock, _, zone = rest.partition(" ")
    try:
        found = datetime.fromisoformat(f"{day} {clock}" if zone else text)
        if zone and found.tzinfo is None:
            found = found.replace(tzinfo=_zone(zone))
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        found.astimezone(UTC)
        return found
    except (ValueError, OSError, OverflowError, KeyError):
        return None


def _zone(name: str) -> tzinfo:
    if re.fullmatch(r"[+-]\d{4}", name):
        size = timedelta(hours=int(name[1:3]), minutes=int(name[3:]))
        return timezone(-size if name[0] == "-" else size)
    return ZoneInfo(name)  # KeyError or ValueError for what is none


def in_moodles_files(name: str) -> str:
    """What Moodle leaves of a name in a file's: "Kate OBrien" of "Kate O'Brien" (clean_filename, PARAM_FILE)."""
    return _CUT.sub("", clean(name).replace("_", " ")).strip()


def same_letters(name: str, other: str) -> bool:
    """Whether two names are one but for signs and blanks, which platforms drop, and for the order of "Doe, Jane"."""
    return letters(name) in forms(other)


def forms(name: str) -> tuple[str, ...]:
    """The letters of a name as it stands and the other way round: "Jane Doe" of "Doe, Jane"."""
    last, comma, first = name.partition(",")
    return (letters(name), letters(first + last)) if comma else (letters(name),)


def letters(name: str) -> str:
    """The letters, marks and digits of a name, composed and in small letters."""
    text = unicodedata.normalize("NFC", clean(name).casefold())
    return "".join(c for c in text if unicodedata.category(c)[0] in "LMN")


def clean(name: str) -> str:
    """A name off a disk or out of an archive as text: composed (NFC), and bytes that are not UTF-8 written as \\xe9."""
    text = name.encode("utf-8", "surrogateescape" if _escaped(name) else "surrogatepass")
    return unicodedata.normalize("NFC", text.decode("utf-8", "backslashreplace"))


def _escaped(name: str) -> bool:
    """Whether all lone surrogates in it stand for single bytes, as in names off a disk."""
    return all("\udc80" <= c <= "\udcff" for c in name if "\ud800" <= c <= "\udfff")


def shown(name: str, limit: int = 120) -> str:
    """A foreign name for a sentence: no control or direction character acts, and it is not endless."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in clean(name))
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 3 :]}"


def printable(text: str) -> str:
    """Any text for a terminal: lines stay lines, and no other control or direction character acts."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in text)


def some(names: Sequence[str], most: int = 5) -> str:
    """A few foreign names for a sentence, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def harmless(name: str) -> str | None:
    """None if "a/b.py" stays inside the folder it is unpacked to, on any system; else why not, as a sentence's end."""
    parts = name.split("/")
    if name.startswith("/") or _DRIVE.match(name) or ".." in parts:
        return "leads out of the folder it is in"
    if "\0" in name or any(part in ("", ".") for part in parts):
        return "has a name that is no file's"
    if len(os.fsencode(name)) > MAX_PATH or any(len(os.fsencode(part)) > 255 for part in parts):
        return "has a name that is too long"
    if len(parts) > MAX_DEPTH:
        return f"lies more than {MAX_DEPTH} folders deep"
    return None


def is_notebook(name: str) -> bool:
    """Whether a path is called as a notebook is, or as browsers call one that they save: lab.ipynb.json."""
    return name.lower().endswith((".ipynb", ".ipynb.json", ".ipynb.txt"))


def noise(name: str) -> bool:
    """Whether a path is what systems and tools leave about: caches, hidden files, editors' copies."""
    return any(
        part in _NOISE or part.endswith("~") or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def other_week(folder: str, week: Week) -> bool:
    """Whether a folder (or an inner archive) is called after another part of the course: "week14_mine" is, for week 13;
    "week13", "week13_final" and "my work" are not."""
    found, own = _PART.match(folder.lower()), _PART.match(week.package)
    return found is not None and (own is None or found[1] != own[1])


def count(many: float, one: str, more: str = "") -> str:
    """ "1 student", "3 students"."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"
