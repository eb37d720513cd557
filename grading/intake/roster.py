"""Who is in the class, from a file of the learning platform or a list of ids, and who of them handed nothing in.

    Canvas' exported gradebook      columns Student, ID, SIS User ID, SIS Login ID, Section
    Moodle's grading worksheet      columns Identifier ("Participant 4711"), Full name, Email address, ...
    a list                          a column "student" with ids, or one id a line

A line is a student whom we know if one of its names is theirs: the id, or what [ids] in course.toml says that a
platform calls them. Canvas' bulk download names people NAME_ID, so the ID at an id's end counts as well.
"""

from __future__ import annotations

import csv
import difflib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from grading.intake.names import clean, in_moodles_files, shown, some
from grading.intake.policy import Rules
from labkit.checks.tasks import Week
from labkit.errors import LabError

CANVAS, MOODLE, LIST = "Canvas", "Moodle", "list"
CANVAS_NAMES = ("ID", "SIS User ID", "SIS Login ID", "Student")  # in the order in which they are compared
MOODLE_NAMES = ("Identifier", "Email address", "Full name")
TEST_STUDENT = "Student, Test"  # Canvas' own, nobody's: of a course in which "Student View" was used once
NAMED = ("Student", "Full name")  # columns of people's names: Canvas', Moodle's
NOT_THERE = "not in the roster"  # why nobody is found
A_GROUP = "a group of the roster"
UNNAMED = "Participant"  # what Moodle calls everybody under blind marking


@dataclass
class Line:
    """One student of the roster: the cells of the file by column, and the names by which we may know them."""

    cells: dict[str, str]
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """What people call them, of Moodle's as its downloads write it; "" where the roster does not tell."""
        return next((_cell(self, column) for column in NAMED if column in self.cells), "")


@dataclass
class Roster:
    """A class as a file tells it: which system's it is, its columns in order, its lines. `possible`: Canvas' points
    possible by column."""

    path: Path
    system: str
    columns: list[str]
    lines: list[Line] = field(default_factory=list)
    possible: dict[str, str] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[str, set[str]]:
        """Moodle's numbers by full name; of other systems none. Not before all lines are there."""
        numbers: dict[str, set[str]] = {}
        for line in self.lines if self.system == MOODLE else ():
            numbers.setdefault(line.name, set()).add(line.cells["Identifier"].strip().rpartition(" ")[2])
        return numbers


@dataclass(frozen=True)
class Absent:
    """One who handed nothing in. `due`: their deadline; None if there is none, which never passes. `over`: it has.
    `name`: what the roster calls them, if not so."""

    student: str
    due: datetime | None
    over: bool
    name: str = ""

    def __str__(self) -> str:
        return f"{self.student} ({self.name})" if self.name not in ("", self.student) else self.student


def read(path: Path) -> Roster:
    """A roster from its file. LabError if it is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        head = text.partition("\n")[0]
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=_sign(head), strict=True))
    except FileNotFoundError:
        raise LabError(
            f"there is no roster {path}: put it there, or name another one with --roster or by [roster] in course.toml"
        ) from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not in UTF-8: in Excel, Save As, CSV UTF-8") from None
    except (OSError, ValueError, csv.Error) as error:
        raise LabError(f"{path} cannot be read as CSV ({type(error).__name__}: {error})") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise LabError(f"{path} is empty: it must name the students of the class")
    columns = [name.strip() for name in rows[0]]
    if "Student" in columns and "ID" in columns:
        system, names = CANVAS, list(CANVAS_NAMES)
    elif "Identifier" in columns and ("Full name" in columns or "Grade" in columns):  # no names under blind marking
        system, names = MOODLE, list(MOODLE_NAMES)
    elif "student" in columns:
        system, names = LIST, ["student"]
    elif len(columns) == 1:
        system, names, rows = LIST, ["student"], [["student"], *rows]
        columns = ["student"]
    else:
        raise LabError(
            f"{path} is no roster: its first line must name the columns Student and ID (Canvas), Identifier and "
            "Full name (Moodle's grading worksheet), or student"
        )
    roster = Roster(path, system, columns)
    for row in rows[1:]:
        cells = dict(zip(columns, [*row, *[""] * (len(columns) - len(row))]))
        if system == CANVAS and (not cells["ID"].strip() or "Points Possible" in cells["Student"]):
            roster.possible |= cells if "Points Possible" in cells["Student"] else {}
            continue
        if system == CANVAS and cells["Student"].strip() == TEST_STUDENT:
            continue
        own = tuple(name for column in names if (name := cells.get(column, "").strip()))
        if own:
            line = Line(cells, own)
            line.names = tuple(dict.fromkeys([*own, *([line.name] if system == MOODLE and line.name else [])]))
            roster.lines.append(line)
    return roster


def _cell(line: Line, column: str) -> str:
    """What stands there; a full name or a group of Moodle's as its downloads write it, which lack some signs."""
    text = line.cells.get(column, "").strip()
    return in_moodles_files(text) if column in ("Full name", "Group") else text


def _sign(head: str) -> str:
    return max(",;\t", key=head.count)


def find(student: str, roster: Roster, rules: Rules) -> tuple[Line | None, str]:
    """The line that is this student, or why none is: not there, or several are called so."""
    several = False
    for found in _candidates(student, roster, rules):
        if len(found) == 1:
            return found[0], ""
        several = several or len(found) > 1
    if any(members(name, roster) for name in rules.called(student)):
        return None, A_GROUP
    return None, "several of the roster are called so" if several else NOT_THERE


def _candidates(student: str, roster: Roster, rules: Rules) -> Iterator[list[Line]]:
    """The lines that may be this student, by one comparison after the other, the surest first."""
    theirs = list(rules.participants(student).values())
    names = list(dict.fromkeys([*rules.called(student), *theirs, *map(rules.id_of, theirs)]))
    if roster.system == MOODLE:
        for name in names:
            yield _with(name, roster, *MOODLE_NAMES[:2])
            yield _numbered(name, roster, rules)
        for name in names:
            lines = _with(name, roster, "Full name")
            own = (student, in_moodles_files(student))
            yield [line for line in lines if not all(rules.is_another(participant_of(line), one) for one in own)]
        return
    for name in names:
        if roster.system == CANVAS:
            yield _with(name, roster, *CANVAS_NAMES[:3])
            number = re.fullmatch(r".*_(\d+)", name, re.S)
            yield _with(number[1] if number else "", roster, "ID")
        yield _with(name, roster, "Student" if roster.system == CANVAS else "student")
    if roster.system == CANVAS:
        for name in names:
            yield [
                line
                for line in roster.lines
                if _turned(line) == name.strip() != "" and not _is_anothers(line, student, rules)
            ]


def _turned(line: Line) -> str:
    """The name of a line of Canvas' the other way round, as Moodle has it: "Anna Müller" of "Müller, Anna"."""
    last, comma, first = line.name.partition(", ")
    return f"{first.strip()} {last.strip()}" if comma else ""


def _is_anothers(line: Line, student: str, rules: Rules) -> bool:
    """Whether [ids] says that this line of Canvas' is another student than this one."""
    number = re.compile(rf".*_{re.escape(line.cells['ID'].strip())}", re.S)
    return any(number.fullmatch(name) and rules.id_of(name) != rules.id_of(student) for name in rules.ids)


def _with(wanted: str, roster: Roster, *columns: str) -> list[Line]:
    """The lines in which one of these columns holds it."""
    return [
        line for line in roster.lines if any(_cell(line, column) == _wanted(wanted, column) != "" for column in columns)
    ]


def _wanted(name: str, column: str) -> str:
    return in_moodles_files(name) if column == "Full name" else name.strip()


def _numbered(participant: str, roster: Roster, rules: Rules) -> list[Line]:
    """The lines of a number of Moodle's, "Max Meier_500". In another assignment's worksheet it may be somebody else's:
    then the name tells, "Group A-Max Meier" too, which is how Moodle named what a group hands in. A name that the
    worksheet does not have says nothing: the number decides, if another name and its number show that the worksheet is
    this assignment's, or if marking is blind. It may be a group's number, too."""
    name, _, number = participant.rpartition("_")
    lines = _with(f"Participant {number}", roster, "Identifier")
    if not lines or (name and lines[0].name == name):  # no two assignments have the same number
        return lines
    called = [line for line in roster.lines if line.name and (name == line.name or _in_group(name, line))]
    if len(called) == 1:
        return [line for line in lines if line in called]
    if called:
        lines = [line for line in lines if line in called]
    elif members(name, roster) or not (name == UNNAMED or not any(roster.numbers) or _confirmed(roster, rules)):
        return []
    return [] if _of_another_assignment(roster, rules) else lines


def _in_group(name: str, line: Line) -> bool:
    """Whether Moodle calls this line's student so in what a group handed in. Its worksheet has the group, or not."""
    group = _cell(line, "Group")
    return name == f"{group}-{line.name}" if group else name.endswith(f"-{line.name}")


def _confirmed(roster: Roster, rules: Rules) -> bool:
    """Whether somebody has the same number in the worksheet and in the downloads of the week that is known."""
    apart = (one.rpartition("_") for one in rules.everybody())
    return any(number in roster.numbers.get(name, ()) for name, _, number in apart)


def _of_another_assignment(roster: Roster, rules: Rules) -> bool:
    """Whether somebody has another number in the worksheet than in the downloads of the week that is known."""
    for participant in rules.everybody():
        name, _, number = participant.rpartition("_")
        theirs = roster.numbers.get(name)
        if theirs and number not in theirs:
            return True
    return False


def participant_of(line: Line) -> str:
    """How Moodle's download calls the one of this line, "Max Meier_500"; "Participant_500" where it has no names."""
    return f"{line.name or UNNAMED}_{line.cells['Identifier'].strip().rpartition(' ')[2]}"


def _folders(line: Line) -> tuple[str, str]:
    """How the folder of this line's group may be called: "Mo & Di" is "Mo  Di", or "Mo amp; Di" (format_string)."""
    group = line.cells.get("Group", "")
    return in_moodles_files(group), in_moodles_files(html.escape(group, quote=False))


def members(group: str, roster: Roster) -> list[Line]:
    """The lines of Moodle's worksheet whose group's folder is called so, which is what a file's name leaves of the
    group's. Nobody, if that is somebody's name."""
    if roster.system != MOODLE or group in roster.numbers:
        return []
    found = [line for line in roster.lines if group and group in _folders(line)]
    several = len({line.cells["Group"].strip() for line in found}) > 1  # Team 1 and Team_1: nobody can tell
    return [] if several else found


def id_of(line: Line, roster: Roster, rules: Rules) -> str:
    """Our id of somebody from whom nothing is here: what [ids] says, else what `grade collect` would call them. Of
    several of one name in Moodle it is name and number."""
    called = [participant_of(one) for one in _with(line.name, roster, "Full name")]  # nobody, but in Moodle's
    own = [participant_of(line)] if len(called) > 1 else []
    for name in (*own, *line.names):
        if rules.id_of(name) != name and (rules.id_of(name) in own or rules.id_of(name) not in called):
            return rules.id_of(name)
    if own:
        return own[0]
    if roster.system == CANVAS:
        number = line.cells["ID"].strip()
        for name in rules.ids:
            if re.fullmatch(rf".*_{re.escape(number)}", name):
                return rules.id_of(name)
        return line.cells.get("SIS Login ID", "").strip() or line.cells["Student"].strip() or number
    if roster.system == MOODLE:
        return line.name or participant_of(line)
    return line.names[0]


def absent(week: str, students: Iterable[str], roster: Roster, rules: Rules, now: datetime) -> list[Absent]:
    """Who of the roster is not among these students, by id. An extension moves the deadline, whichever of the roster's
    names it uses."""
    extended: dict[int, datetime] = {}
    for name in _extended(week, rules):
        if (line := find(name, roster, rules)[0]) is not None:  # of two of one student the later holds
            extended[id(line)] = max(rules.extensions[name][week], extended.get(id(line), rules.extensions[name][week]))
    here = {id(line) for student in students if (line := find(student, roster, rules)[0]) is not None}
    gone = []
    for line in roster.lines:
        if id(line) not in here:
            student = id_of(line, roster, rules)
            due = max(filter(None, (rules.due(student, week), extended.get(id(line)))), default=None)
            gone.append(Absent(student, due, due is not None and due < now, line.name))
    return sorted(gone, key=lambda one: one.student)


def _extended(week: str, rules: Rules) -> list[str]:
    """The names for which [extensions] has this week."""
    return [name for name, own in rules.extensions.items() if week in own]


def still_to_come(week: str, students: Iterable[str], roster: Roster, rules: Rules, now: datetime) -> list[str]:
    """Names in [extensions] for which the roster has nobody, or several, who have not handed in under this name and
    may still do so in time."""
    unused = extended_unknown(week, students, roster, rules)
    return [name for name in unused if rules.extensions[name][week] > now]


def extended_unknown(week: str, students: Iterable[str], roster: Roster, rules: Rules) -> list[str]:
    """Names in [extensions] for which the roster has nobody, or several, and under which nobody handed in."""
    here = set(students)
    unused = [name for name in _extended(week, rules) if not set(map(clean, rules.called(name))) & here]
    return [name for name in unused if find(name, roster, rules)[1]]


def of_rules(rules: Rules, given: Path | None = None) -> Roster | None:
    """The roster that is meant: the one given, else course.toml's, else none."""
    path = given or (Path(rules.roster.file) if rules.roster.file else None)
    return read(path) if path is not None else None


def unknown_ids(roster: Roster | None, rules: Rules, left: Callable[[], Iterable[str]] = tuple) -> list[str]:
    """Sentences on ids of [ids] and [extensions] in course.toml that are nobody's in the roster: a slip, for instance.
    left: of whom something is here: whom the roster calls nothing like that has left. Asked only if somebody is not
    found."""
    if roster is None:
        return []
    known = [name for line in roster.lines for name in line.names]
    told = []
    lines: dict[str, list[str]] = {}
    for line in roster.lines:
        lines.setdefault(id_of(line, roster, rules), []).append(line.name or line.names[0])
    for id, names in lines.items():
        if len(names) > 1 and id in rules.ids.values():
            told.append(f"[ids] in course.toml calls {some(names)} of {roster.path.name} all {shown(id, 60)}: a slip?")
    for where, spoken in (("[ids]", rules.ids.values()), ("[extensions]", rules.extensions)):
        strange = [id for id in dict.fromkeys(spoken) if find(id, roster, rules)[1] == NOT_THERE]
        if strange and where == "[ids]":
            gone = set(map(rules.id_of, left()))
            strange = [id for id in strange if id not in gone or difflib.get_close_matches(id, known, 1)]
        if len(strange) > 3:  # a worksheet of a part of the class
            told.append(f"{where} in course.toml speaks of {some(strange)}, who are not in {roster.path.name}")
            continue
        for id in strange:
            close = close_to(id, known)
            told.append(
                f"{where} in course.toml speaks of {shown(id, 60)}, who is not in {roster.path.name}"
                + (f": did you mean {shown(close[0], 60)}?" if close else "")
            )
    return told


def close_to(name: str, known: list[str]) -> list[str]:
    """The known name that is most like this one, if one is; "Doe, Jane" is also read as "Jane Doe"."""
    last, comma, first = name.partition(",")
    turned = f"{first.strip()} {last.strip()}" if comma else name
    return difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(turned, known, 1)


UNDER_TWO_NAMES = "one student of the roster under two names, so the points of neither"


def twice(students: Iterable[str], roster: Roster | None, rules: Rules) -> list[list[str]]:
    """Ids that stand for one student of the roster, together: handed in under several names."""
    if roster is None:
        return []
    by_line: dict[int, list[str]] = {}
    for student in sorted(set(students)):
        if (line := find(student, roster, rules)[0]) is not None:
            by_line.setdefault(id(line), []).append(student)
    return [those for those in by_line.values() if len(those) > 1]


def under_two_names(students: Iterable[str], week: Week, roster: Roster | None, rules: Rules) -> list[str]:
    """A sentence for each student of the roster who is here under several names."""
    return [
        f"{some(those)} are one student of {roster.path.name}: `grade withdraw {week.name} ID` takes back what is not "
        "to count"
        for those in twice(students, roster, rules)
        if roster is not None
    ]


def without_effect(students: Iterable[str], week: Week, roster: Roster | None, rules: Rules) -> list[str]:
    """Sentences on extensions of this week that use a name of the roster for somebody who handed in under another: they
    change nothing."""
    return [
        f"course.toml extends the deadline of {shown(name, 60)}, who is {shown(one, 60)} here: the extension has no "
        f"effect until it names {shown(one, 60)}"
        for name, one in _by_another_name(students, week, roster, rules).items()
    ]


def _by_another_name(students: Iterable[str], week: Week, roster: Roster | None, rules: Rules) -> dict[str, str]:
    """{a name in [extensions] under which nothing is here: the id under which that student of the roster handed in}."""
    here = set(students)
    unused = [name for name in _extended(week.name, rules) if not set(map(clean, rules.called(name))) & here]
    if roster is None or not unused:
        return {}
    ids = {id(line): one for one in sorted(here) if (line := find(one, roster, rules)[0]) is not None}
    lines = {name: find(name, roster, rules)[0] for name in unused}
    return {name: ids[id(line)] for name, line in lines.items() if line is not None and id(line) in ids}


def extends_nobody(students: Iterable[str], week: Week, rules: Rules, roster: Roster | None = None) -> list[str]:
    """Sentences on extensions of this week that reach none of those who handed in, which may be a slip in an id."""
    here = sorted(set(students))
    told = without_effect(here, week, roster, rules)
    named = _by_another_name(here, week, roster, rules)
    for student, own in rules.extensions.items():
        if week.name in own and student not in named and not set(map(clean, rules.called(student))) & set(here):
            close = difflib.get_close_matches(student, here, 1)
            told.append(
                f"course.toml extends the deadline of {shown(student)}, from whom nothing is here"
                + (f"; did you mean {shown(close[0])}?" if close else "")
            )
    return told


def outside(students: Iterable[str], roster: Roster | None, rules: Rules) -> list[str]:
    """Sentences on those who handed in and are not in the roster, if there is one."""
    if roster is None:
        return []
    again = f"`grade withdraw` takes it back, and `grade collect` with --roster {roster.path} gives it to each member"
    ids = "[ids] in course.toml says who it is"
    moodles = f"{ids}; of a group of Moodle's the worksheet does, as --roster of `grade collect`"
    told = []
    for student, why in strangers(sorted(set(students)), roster, rules):
        then = again if why == A_GROUP else moodles if rules.participants(student) else ids
        told.append(f"{shown(student, 60)} handed in and is {why}: {then}")
    return told


def strangers(students: Sequence[str], roster: Roster, rules: Rules) -> list[tuple[str, str]]:
    """(student, why) of those who handed in and are not in the roster."""
    return [(student, why) for student in students if (why := find(student, roster, rules)[1])]
