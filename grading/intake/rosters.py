"""Files that name a class: who is in it and, of Moodle's worksheet, what its platform says of each one's submission.

Canvas' exported gradebook    Student (or LastName, FirstName), ID, SIS User ID, SIS Login ID
Moodle's grading worksheet    Identifier ("Participant 501"), Full name, Email address, Username, ID number, Group,
                              Status, Last modified (submission), Extension granted until; or the same in German
any other list                columns of ids, names, e-mails and roles in any order, under any of the names in `_COLUMNS`:
                              Gradescope's and Brightspace's tables, what `nbgrader db student import` takes; or ids, one
                              a line
"""

import csv
import io
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path

from grading.intake.arrival import Key
from grading.intake.names import clean, shown
from labkit.errors import LabError

CANVAS, MOODLE, LIST = "Canvas", "Moodle", "list"
TEST_STUDENT = "Student, Test"  # Canvas' own, of a course in which "Student View" was used once
# What columns are called, in English and German, in small letters without blanks and signs.
_COLUMNS = {
    "identifier": ("identifier", "id"),  # Moodle's number, or an id
    "id": (
        "student", "sid", "username", "anmeldename", "uid", "studentid", "login", "loginid", "netid", "idnumber",
        "idnummer", "orgdefinedid", "githubusername", "uin",
    ),
    "name": ("name", "studentname", "fullname", "vollständigername"),
    "first": ("firstname", "first", "vorname"),
    "last": ("lastname", "last", "nachname"),
    "email": ("email", "emailaddress", "emailadresse", "useremail"),
    "role": ("role", "roles"),
    "group": ("group", "gruppe"),
    "status": ("status",),
    "submitted": ("lastmodifiedsubmission", "zuletztgeändertabgabe"),
    "due": ("extensiongranteduntil", "verlängerungzugelassenbis"),
}  # fmt: skip
_CALLED = {name: what for what, names in _COLUMNS.items() for name in names}
_PARTICIPANT = re.compile(r"(?:Participant|Teilnehm)\D*(\d+)")
_STAFF = ("ta", "instructor", "reader", "staff", "teacher")  # Gradescope's and others' roles beside Student
# Of a status, "Submitted for grading - Extension granted until: Friday, 20 November 2026, 6:00 PM", the part with a year:
# translations have had several words before it, and no other part has a time.
_EXTENDED = re.compile(r" - (?:(?! - )[^:])*:\s*((?:(?! - ).)*\b\d{4}\b(?:(?! - ).)*)")
_MONTHS = {
    name: number
    for names in (
        "january february march april may june july august september october november december",
        "januar februar märz april mai juni juli august september oktober november dezember",
    )
    for number, name in enumerate(names.split(), 1)
}
_DATE = re.compile(r"(?:(\d{1,2})\.?\s+([^\W\d]+)|([^\W\d]+)\s+(\d{1,2})),?\s+(\d{4})\D+?(\d{1,2}):(\d\d)\s*([ap]m)?")


@dataclass
class Line:
    """One person of a file.

    keys       the exact ones; Moodle's number is not among them, since it holds for one assignment: see `participant`
    group      Moodle's, of this assignment
    submitted  when the platform has it that they handed in; `due`: what it extended their deadline to
    row        the cells by column, as they stand in the file
    """

    name: str = ""
    email: str = ""
    keys: list[Key] = field(default_factory=list)
    participant: str = ""
    group: str = ""
    submitted: datetime | None = None
    due: datetime | None = None
    row: dict[str, str] = field(default_factory=dict)


@dataclass
class Roster:
    """A class as a file has it: whose file it is, its lines, `problems`: what in it was not understood, and `staff`: whose
    role in it is to teach.

    columns, delimiter   as they stand in the file;   possible: Canvas' points by column"""

    path: Path
    system: str
    lines: list[Line] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    staff: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    delimiter: str = ","
    possible: dict[str, str] = field(default_factory=dict)


def read_roster(path: Path, zone: tzinfo | None = None) -> Roster:
    """A class from its file. LabError if it is none.

    zone   of Moodle's times, which are written without one; None reads none"""
    whole, delimiter = _table(path)
    rows = [[_plain(cell) for cell in row] for row in whole]
    called = [_column(head) for head in rows[0]]
    roster = Roster(path, LIST)
    if "ID" in rows[0] and {"Student", "LastName", "Last name"} & set(rows[0]):
        roster.system = CANVAS
    elif len(called) == 1:
        if not called[0]:
            _no_heading(path, [row[0] for row in rows])
            rows, whole = [["student"], *rows], [["student"], *whole]
        called = ["id"]
    elif not {"id", "identifier", "email"} & set(called) and not {"first", "last"} <= set(called):
        raise LabError(
            f"{path} is no roster: its first line must name the columns Student and ID (Canvas' gradebook), "
            "Identifier, Full name and Email address (Moodle's grading worksheet), SID (Gradescope's roster), OrgDefinedId "
            "or Username (Brightspace's grades), or student (ids of your own), or name and email, where a name with a comma "
            "stands in quotes. "
            "Is it Moodle's in another language? Set your language in Moodle to English, and download it again"
        )
    roster.columns, roster.delimiter = rows[0], delimiter
    for row, own in zip(rows[1:], whole[1:]):
        cells = dict(zip(rows[0], row))
        if roster.system == CANVAS:
            roster.possible |= cells if "Points Possible" in "".join(row[:2]) and not cells["ID"] else {}
            line = _canvas(cells)
        else:
            line = _listed(list(zip(called, row)), zone, roster.problems)
            if any(what == "role" and cell.casefold() in _STAFF for what, cell in zip(called, row)):
                roster.staff.append(line.name)
                continue
        line.row = dict(zip(rows[0], own))
        if line.name or line.keys or line.participant:
            roster.lines.append(line)
    if not roster.lines:
        raise LabError(f"{path} names nobody: ids of your own stand in a column that is called student")
    if any(line.participant for line in roster.lines):
        roster.system = MOODLE
    return roster


def _column(head: str) -> str:
    """What stands in a column that is called so; "" if that says nothing."""
    return _CALLED.get(re.sub(r"[\W_]", "", head.casefold()), "")


def _plain(cell: str) -> str:
    return unicodedata.normalize("NFC", clean(cell)).strip()


def _table(path: Path) -> tuple[list[list[str]], str]:
    """(the rows of a CSV file, all of them as long as the first, without empty ones; what is between the cells)."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        lines = [line for line in text.splitlines() if line.strip()] or [""]
        delimiter = max(",;\t", key=lines[0].count)
        names = all(re.fullmatch(r'[^,;\t"@]+, [^,;\t"@]+', line) for line in lines)
        if delimiter not in lines[0] or (names and not _column(lines[0].partition(",")[0])):
            delimiter = "\x1f"  # one column: a comma is part of "Müller, Anna"
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except FileNotFoundError:
        raise LabError(f"there is no roster {path}: check the name") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not in UTF-8: in Excel, Save As, CSV UTF-8") from None
    except (OSError, ValueError, csv.Error) as error:
        raise LabError(f"{path} cannot be read as CSV ({type(error).__name__}: {error})") from None
    rows = [row for row in rows if any(map(_plain, row))]
    if not rows:
        raise LabError(f"{path} is empty: it must name the students of the class")
    return [[*row, *[""] * (len(rows[0]) - len(row))] for row in rows], delimiter


def _line(name: str, email: str, *keys: tuple[str, str]) -> Line:
    found = [Key(platform, value) for platform, value in (*keys, ("email", email)) if value]
    return Line(name or email or next((key.value for key in found), ""), email, list(dict.fromkeys(found)))


def _canvas(cells: dict[str, str]) -> Line:
    """One student; an empty line for Canvas' own, of points possible and of nobody."""
    parts = [
        cells.get(last) or cells.get(first, "")
        for last, first in (("LastName", "Last name"), ("FirstName", "First name"))
    ]
    name = cells.get("Student", "") or ", ".join(filter(None, parts))
    if not cells["ID"] or "Points Possible" in name or name == TEST_STUDENT:
        return Line()
    login = cells.get("SIS Login ID", "")
    ids = (("id", login), ("id", cells.get("SIS User ID", "")))
    return _line(name, login if "@" in login else "", ("canvas", cells["ID"]), *ids)


def _listed(cells: list[tuple[str, str]], zone: tzinfo | None, problems: list[str]) -> Line:
    """One of Moodle's worksheet or of a list. An id that stands alone may be a whole name: then downloads that write names
    know it, too."""
    first = {what: cell for what, cell in reversed(cells) if cell}
    number = _PARTICIPANT.fullmatch(first.get("identifier", ""))
    of_ids = ("id",) if number else ("id", "identifier")
    ids = [cell.removeprefix("#") for what, cell in cells if what in of_ids and cell]  # Brightspace's "#"
    parts = (first.get(part, "_") for part in ("first", "last"))
    name = first.get("name") or " ".join(part for part in parts if part != "_")  # Brightspace wants two names
    email = first.get("email") or next((id for id in ids if "@" in id), "")
    line = _line(name, email, *(("id", id) for id in ids), *([] if name else [("name", id) for id in ids[:1]]))
    line.participant, line.group = number[1] if number else "", first.get("group", "")
    if zone is not None:
        extended = _EXTENDED.search(first.get("status", ""))
        due = first.get("due", "") or (extended[1] if extended else "")
        line.submitted = _time(first.get("submitted", ""), zone, line.name, problems)
        line.due = _time(due, zone, line.name, problems)
    return line


def _no_heading(path: Path, cells: list[str]) -> None:
    """LabError where the first line of a list may be a heading: it alone has no "@", or no digit."""
    head, *rest = cells
    for sign in "@", r"\d":
        if len(rest) > 1 and not re.search(sign, head) and all(re.search(sign, cell) for cell in rest):
            raise LabError(
                f"{path}: is {shown(head)!r} a heading, or somebody's id? If it is a heading, write 'student' in its place; "
                "if not, write a line 'student' above it"
            )


def _time(text: str, zone: tzinfo, whose: str, problems: list[str]) -> datetime | None:
    """A time of a cell; None for an empty one, and for what is no time, which is a problem to report."""
    if text in ("", "-"):
        return None
    found = moodle_time(text, zone)
    if found is None:
        problems.append(
            f"of {shown(whose)} the time {shown(text, 60)!r} is not understood: set your language in Moodle to "
            "English, and download the worksheet again"
        )
    return found


def moodle_time(text: str, zone: tzinfo) -> datetime | None:
    """A time as Moodle writes it in English or German: "Friday, 20 November 2026, 6:00 PM", "Friday, November 20, 2026,
    6:00 PM" (American), "Freitag, 20. November 2026, 18:00". None for anything else."""
    found = _DATE.search(text.casefold())
    if not found:
        return None
    day, month, us_month, us_day, year, hour, minute, half = found.groups()
    number = _MONTHS.get(month or us_month, 0)
    hours = int(hour) % 12 + 12 * (half == "pm") if half else int(hour)
    try:
        return datetime(int(year), number, int(day or us_day), hours, int(minute), tzinfo=zone)
    except ValueError:
        return None
