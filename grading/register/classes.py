"""A class: its folder, its store, its rules, the course's weeks. Every command begins with `open_class`."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from grading.files import put
from grading.register import schema
from grading.register.people import Imported, import_roster, key_of, propose, resolve
from grading.register.rules import FILE, TEMPLATE, OfAll, Rules, load_written
from grading.register.schema import Class
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

ROSTER = "roster.csv"


@contextmanager
def open_class(folder: str | Path = ".", weeks: Sequence[Week] | None = None) -> Iterator[Class]:
    """Open the class in a folder. LabError where there is none, and where course.toml speaks of somebody who is not
    exactly one person of the roster: then no command does anything."""
    folder = Path(folder)
    db = schema.connect(folder)
    try:
        cls = Class(folder, db, list(weeks or find_weeks()), Rules())
        cls.rules = read_rules(cls, folder / FILE)
        yield cls
    finally:
        db.close()


def init_class(folder: str | Path, roster: str | Path, zone: str, weeks: Sequence[Week] | None = None) -> Imported:
    """Make a class's folder from a roster, or take a newer roster into one that is there: who is new, and who left.

    zone   an IANA name, "Europe/Berlin": platforms write times without their offset. Kept in course.toml"""
    folder, roster = Path(folder), Path(roster)
    if (folder / schema.FILE).is_file():
        db = schema.connect(folder)
        made_here = False
    else:
        _zone(zone)
        db, made_here = schema.create(folder), True
    try:
        made = import_roster(Class(folder, db, list(weeks or find_weeks()), Rules()), roster)
    except BaseException:
        db.close()
        if made_here:
            for path in folder.glob(f"{schema.FILE}*"):
                path.unlink()
        raise
    db.close()
    if made_here and not (folder / FILE).exists():
        put(folder / FILE, TEMPLATE.format(zone=zone).encode())
    if roster.resolve() != (folder / ROSTER).resolve():
        shutil.copyfile(roster, folder / ROSTER)  # what is published goes into its columns
    return made


def read_rules(cls: Class, path: Path) -> Rules:
    """A class's rules; those of a course without course.toml: the last attempt counts, and there is no deadline.

    LabError for what is not valid, for weeks, tasks and keys that there are not, with the nearest, and for names that
    are not exactly one person of the roster, with the line that is right."""
    if not path.exists():
        return Rules()
    written = load_written(path, cls.weeks)
    faults: list[str] = []

    def one(name: str, line: str) -> int | None:
        """The person; else what is right goes into `faults`. line: how it is to be written, with {} for the name."""
        try:
            return resolve(cls, name).id
        except LabError as error:
            close = propose(cls, name)
            right = line.format(json.dumps(key_of(cls, close) if close else "E-MAIL OR ID", ensure_ascii=False))
            faults.append(f"{path}: {error}; write {right}")
            return None

    extensions: dict[int, dict[str, datetime]] = {}
    for name, own in written.extensions.items():
        if (who := one(name, "[extensions.{}]")) is not None:
            theirs = extensions.setdefault(who, {})
            for week, due in own.items():  # of two of one person the later holds
                theirs[week] = max(due, theirs.get(week, due))
    excused: dict[str, set[int]] = {}
    for week, names in written.excused.items():
        kept = {name: json.dumps(name, ensure_ascii=False).replace("{", "{{").replace("}", "}}") for name in names}
        found = (one(n, f"[excused] {week} = [{', '.join((kept | {n: '{}'}).values())}]") for n in names)
        excused[week] = {who for who in found if who is not None}
    if faults:
        raise LabError("\n".join(faults))
    of_all = {name: getattr(written, name) for name in OfAll.model_fields}
    return Rules(**of_all, extensions=extensions, excused=excused)


def _zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        what = f"{name!r} is no time zone" if name else "a new class needs its time zone, --zone"
        raise LabError(f"{what}: name it as Europe/Berlin or America/New_York are named") from None
