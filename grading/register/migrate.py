"""`grade init --migrate OLD`: a class's folder of the former program into a new one. OLD is only read.

OLD/course.toml                     rules; [ids]: what a platform calls somebody; [roster]: the roster's file
OLD/submitted/WEEK/STUDENT/N.zip    attempts, each with a receipt N.json, and N.names.json where a file is renamed;
                                    in STUDENT/withdrawn/ those that were withdrawn
OLD/marks/WEEK/STUDENT/N.json       marks;   .seed.json: the class's seed
OLD/gradebook/gradebook.db          nbgrader's: points by hand, of the attempt that formgrader shows
"""

import json
import re
import sqlite3
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from grading.files import put
from grading.intake.arrival import GIVEN, PLATFORM, Arrival, Key
from grading.intake.names import some
from grading.mark import VERSION, Mark
from grading.register import schema
from grading.register.classes import init_class, open_class
from grading.register.marks import HandMark, add_hand_mark, add_mark
from grading.register.people import Person, key_of, learn, resolve
from grading.register.rules import FILE
from grading.register.schema import Class
from grading.register.submissions import Attempt, attempt, keep, rename, withdraw
from labkit.checks.tasks import Week
from labkit.errors import LabError

MARKED = "marked late"  # a receipt's word for a platform's late mark without a time
NOTE = re.compile(r'"labkit": (\{[^{}]*\})')  # which attempt formgrader shows
BEFORE = "before"  # content that is not there any more: a person has to look again


@dataclass
class _Old:
    """One attempt of the former program, with everybody who has it: a group's was kept once for each member."""

    receipt: dict[str, Any]
    path: Path
    withdrawn: bool
    students: list[str] = field(default_factory=list)
    marks: dict[str, Path] = field(default_factory=dict)


def migrate(old: Path, folder: Path, roster: Path | None, zone: str) -> Iterator[str]:
    """Make a class in `folder` of what is in `old`; sentences on what was taken over, and on what is to be looked at.

    roster   the class's; None: the one that course.toml names
    LabError for what is no such folder, and for names in course.toml that no person has"""
    if not any((old / name).is_dir() for name in ("submitted", "marks")):
        raise LabError(f"{old} holds neither submitted/ nor marks/: name a class's folder of the former program")
    if (folder / schema.FILE).exists():
        raise LabError(f"{folder} is a class's folder already: name a new one")
    rules = tomllib.loads((old / FILE).read_text(encoding="utf-8")) if (old / FILE).is_file() else {}
    named = rules.pop("roster", {}).get("file", "")
    if roster is None and not named:
        raise LabError(f"who was in the class? grade init {folder} --migrate {old} --roster FILE --zone {zone}")
    ids: dict[str, str] = rules.pop("ids", {})
    try:
        yield from _taken(old, folder, roster or old / named, zone, rules, ids)
    except BaseException:
        for path in [*folder.glob(f"{schema.FILE}*"), folder / FILE]:  # else the next try would find half a class
            path.unlink(missing_ok=True)
        raise


def _taken(
    old: Path, folder: Path, roster: Path, zone: str, rules: dict[str, Any], ids: dict[str, str]
) -> Iterator[str]:
    init_class(folder, roster, zone)
    (folder / FILE).unlink()  # the template, until names can be resolved
    with open_class(folder) as cls, cls.writing():
        people = {name: found for name in ids if (found := _person(cls, name, ids)) is not None}
        text = _rules(cls, rules, zone, ids)
        unknown: dict[str, None] = {}
        for week in cls.weeks:
            kept = marked = given = 0
            numbers: dict[tuple[str, int], Attempt] = {}
            for one in _attempts(old, week):
                number = _keep(cls, week, one, ids, people)
                kept += 1
                here = attempt(cls, number)
                unknown |= dict.fromkeys(here.labels)
                numbers |= {(student, one.receipt["attempt"]): here for student in one.students}
                marked += _mark(cls, week, number, one)
            given = _by_hand(cls, week, old, numbers)
            if (seed := old / "marks" / week.name / ".seed.json").is_file():
                value = int(json.loads(seed.read_text())["seed"])
                cls.db.execute("INSERT INTO seed (assignment, value) VALUES (?, ?)", (week.name, value))
            if kept:
                yield f"{week.name}: {kept} submissions, {marked} marks, {given} points or comments by hand"
    put(folder / FILE, text.encode())
    with open_class(folder):
        pass  # the new course.toml opens
    if unknown:
        yield f'whose these are is not known: {some(list(unknown))}; grade who "NAME" = KEY says it'
    yield "marks of before the last one stay in OLD/marks, *.history.jsonl"


# -- who --------------------------------------------------------------------------------------------------------------
def _id(name: str, ids: Mapping[str, str]) -> str:
    """Where [ids] leads from a name."""
    seen = set[str]()
    while name in ids and name not in seen:
        seen.add(name)
        name = ids[name]
    return name


def _called(name: str, ids: Mapping[str, str]) -> list[str]:
    id = _id(name, ids)
    return list(dict.fromkeys([name, id, *(one for one in ids if _id(one, ids) == id)]))


def _person(cls: Class, name: str, ids: Mapping[str, str]) -> Person | None:
    """Who of the roster has this name of the former program, by any that [ids] has for it; Canvas' NAME_ID too."""
    found: dict[int, Person] = {}
    for one in _called(name, ids):
        for text in (one, *re.findall(r"_(\d+)$", one)):
            try:
                person = resolve(cls, text)
                found[person.id] = person
                break
            except LabError:
                continue
    return next(iter(found.values())) if len(found) == 1 else None


def _rules(cls: Class, rules: dict[str, Any], zone: str, ids: Mapping[str, str]) -> str:
    """course.toml with the keys of persons in place of the former program's names. LabError for those of nobody."""
    lost: list[str] = []

    def key(name: str) -> str:
        person = _person(cls, name, ids)
        if person is None:
            lost.append(name)
        return key_of(cls, person) if person else name

    extensions: dict[str, dict[str, Any]] = {}
    for name, own in rules.pop("extensions", {}).items():
        theirs = extensions.setdefault(key(name), {})
        theirs |= {week: max(due, theirs.get(week, due)) for week, due in own.items()}
    excused = {week: [key(name) for name in names] for week, names in rules.pop("excused", {}).items()}
    if lost:
        raise LabError(f"course.toml speaks of {some(lost)}, who are not in the roster: correct it there first")
    lines = [f"zone = {_toml(zone)}"]
    for table, entries in {**rules, "excused": excused}.items():
        if entries:
            lines += ["", f"[{table}]", *(f"{_toml(name)} = {_toml(value)}" for name, value in entries.items())]
    for name, entries in extensions.items():
        lines += ["", f"[extensions.{_toml(name)}]", *(f"{week} = {_toml(due)}" for week, due in entries.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value, ensure_ascii=False)


# -- submissions and marks --------------------------------------------------------------------------------------------
def _receipts(old: Path, week: str) -> Iterator[tuple[dict[str, Any], Path, bool]]:
    """(receipt, its file, whether it was withdrawn) of all attempts of a week."""
    for pattern, withdrawn in (("*/[0-9]*.json", False), ("*/withdrawn/[0-9]*.json", True)):
        for path in sorted((old / "submitted").glob(f"{week}/{pattern}")):
            if path.stem.isdigit():
                yield json.loads(path.read_text(encoding="utf-8")), path, withdrawn


def _attempts(old: Path, week: Week) -> list[_Old]:
    """All attempts in the order in which they were collected; a group's copies are one."""
    found: dict[tuple, _Old] = {}
    every = sorted(_receipts(old, week.name), key=lambda one: (one[0].get("collected", ""), one[0]["attempt"]))
    for receipt, path, withdrawn in every:
        student, group = receipt["student"], receipt.get("group", "")
        of = (group, receipt["digest"], receipt["received"], receipt.get("collected", "")[:16]) if group else (path,)
        one = found.setdefault(of, _Old(receipt, path, withdrawn))
        one.students.append(student)
        own = "" if withdrawn else f"{receipt['attempt']}.json"
        mark = old / "marks" / week.name / path.relative_to(old / "submitted" / week.name).parts[0] / own
        if own and mark.is_file():
            one.marks[student] = mark
    return list(found.values())


def _keep(cls: Class, week: Week, one: _Old, ids: Mapping[str, str], people: Mapping[str, Person]) -> int:
    receipt, seats = one.receipt, []
    for student in one.students:
        called = [student, *filter(None, [receipt.get("called", "")])]
        keys = [Key("id", student), *(Key("name", name) for name in dict.fromkeys(called))]
        number = re.search(r"_(\d+)$", receipt.get("participant", ""))
        if number and not receipt.get("group"):
            keys.append(Key("moodle", number[1], week.name))
        if receipt.get("late") is not None and (own := re.search(r"_(\d+)$", called[-1])):
            keys.append(Key("canvas", own[1]))
        person = _person(cls, student, ids) or next((people[name] for name in called if name in people), None)
        if person is not None:
            learn(cls, person.id, keys, "who")
        seats.append((student, keys, person.id if person else None))
    received = datetime.fromisoformat(receipt["received"]) if receipt["received"] else None
    late, timed = receipt.get("late"), receipt.get("timed", "")
    if timed == MARKED:
        received = None  # counting.handed_in finds the same time
    arrival = Arrival(
        receipt.get("group") or one.students[0],
        seats[0][1] if not receipt.get("group") else [],
        one.path.with_suffix(".zip"),
        received if received is None or received.tzinfo else received.replace(tzinfo=UTC),
        "canvas" if late is not None else "moodle" if receipt.get("participant") else "folder",
        receipt.get("source", ""),
        late,
        receipt.get("group", ""),
        notes=receipt.get("notes", []),
        attention=receipt.get("attention", []),
        timed=GIVEN if timed == "given" else PLATFORM,
    )
    added = keep(cls, week, arrival, seats)
    names = one.path.with_suffix(".names.json")
    for before, after in (json.loads(names.read_text(encoding="utf-8")) if names.is_file() else {}).items():
        rename(cls, added, before, after)
    if one.withdrawn:
        withdraw(cls, [added])
    return added


def _mark(cls: Class, week: Week, number: int, one: _Old) -> bool:
    """Take over the mark of the first member who has one; whether there is one."""
    for path in one.marks.values():
        data = json.loads(path.read_text(encoding="utf-8"))
        data["content"] = data.pop("submission", "")
        names = {each.name for each in fields(Mark)}
        data = {name: value for name, value in data.items() if name in names}
        data |= {"submission": number, "version": VERSION, "renamed": dict(attempt(cls, number).renamed)}
        add_mark(cls, Mark(**data))
        return True
    return False


# -- points by hand ---------------------------------------------------------------------------------------------------
def _by_hand(cls: Class, week: Week, old: Path, numbers: Mapping[tuple[str, int], Attempt]) -> int:
    """Take over what people typed into formgrader; how much that is."""
    cells = {task.cell: task.id for task in week.tasks}
    done: dict[tuple[int, str], HandMark] = {}
    for course in sorted({path.parent for path in [*old.glob("gradebook.db"), *old.glob("*/gradebook.db")]}):
        for who, cell, given in _typed(course / "gradebook.db", week.name):
            student = unquote(who.replace("%", "%25").replace("=", "%"))
            attempt_, content = _shown(course, who, week)
            last = max((n for (name, n), kept in numbers.items() if name == student and not kept.withdrawn), default=0)
            kept = numbers.get((student, attempt_ or last))
            if kept is None or cell not in cells:
                continue
            changed = given["needs_manual_grade"] and given["manual_score"] is not None
            points, extra = given["manual_score"], given["extra_credit"] or 0.0
            done[kept.id, cells[cell]] = HandMark(  # of a group's members any one's are all the others'
                cells[cell],
                points,
                extra,
                (given["manual_comment"] or "").strip(),
                content=BEFORE if changed else content,
                automatic=given["auto_score"] if week.task(cells[cell]).kind == "auto" else None,
            )
    for (number, _), hand_mark in done.items():
        add_hand_mark(cls, week, number, hand_mark)
    return len(done)


def _typed(path: Path, week: str) -> Iterable[tuple[str, str, sqlite3.Row]]:
    """(nbgrader's student, cell, what a person gave)."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        rows = db.execute(
            "SELECT student_id, base_cell.name AS cell, manual_score, extra_credit, needs_manual_grade, auto_score, "
            "manual_comment FROM submitted_assignment "
            "JOIN assignment ON assignment.id = submitted_assignment.assignment_id "
            "JOIN submitted_notebook ON submitted_notebook.assignment_id = submitted_assignment.id "
            "JOIN grade ON grade.notebook_id = submitted_notebook.id JOIN base_cell ON base_cell.id = grade.cell_id "
            "LEFT JOIN comment ON comment.notebook_id = submitted_notebook.id AND comment.cell_id = grade.cell_id "
            "WHERE assignment.name = ? ORDER BY student_id, base_cell.name",
            (week,),
        ).fetchall()
    except sqlite3.DatabaseError as error:
        raise LabError(f"{path} cannot be read ({error}): run 'nbgrader db upgrade' there if it is older") from None
    finally:
        db.close()
    return [
        (row["student_id"], row["cell"], row)
        for row in rows
        if row["manual_score"] is not None or row["extra_credit"] or (row["manual_comment"] or "").strip()
    ]


def _shown(course: Path, who: str, week: Week) -> tuple[int, str]:
    """(the attempt that formgrader shows, the digest of its files); (0, "") if unknown."""
    try:
        with (course / "autograded" / who / week.name / week.notebook.name).open(encoding="utf-8") as file:
            note = json.loads(NOTE.search(file.read(4096))[1])  # type: ignore[index]  # None is caught
        return int(note["attempt"]), str(note.get("submission", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""
