"""course.toml, what an instructor writes by hand: deadlines, what lateness costs, extensions, excuses.

Every table may be left out (docs/instructors.md has an example). Each name in it is exactly one person of the roster when
the class is opened; else nothing is done, and the refusal has the line that is right.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, model_validator

from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import Config, load_toml, nearest, require

FILE = "course.toml"
EXAMPLE = "week13 = 2026-11-20T23:59:00+01:00"
TEMPLATE = """zone = "{zone}"

# [deadlines]
# week13 = 2026-11-20T23:59:00+01:00
#
# [late]
# grace_minutes = 10
# per_day = 0.1                   # of the points, for each 24 hours begun
# closes_after_days = 14
#
# [extensions."anna@example.org"]
# week13 = 2026-11-27T23:59:00+01:00
#
# [excused]
# week13 = ["ben@example.org"]
"""


class Attempts(Config):
    policy: Literal["best", "last"] = "last"


class Late(Config):
    """How much lateness costs; fractions of the points."""

    grace_minutes: float = Field(default=0, ge=0)  # so much later still counts as in time
    per_day: float = Field(default=0, ge=0, le=1)  # for each 24 hours begun after the deadline
    most: float = Field(default=1, ge=0, le=1)  # never more than this
    closes_after_days: float | None = Field(default=None, gt=0)  # what comes later than that counts nothing


class OfAll(Config):
    """The rules in which nobody is named.

    zone         "Europe/Berlin": of the times that have no offset from UTC, here and in what a platform writes
    full_points  week -> tasks of which everybody who handed in has all points: cancelled, or wrong
    comments     word -> sentence: #word in formgrader's comment stands for it"""

    zone: str = ""
    attempts: Attempts = Attempts()
    late: Late = Late()
    deadlines: dict[str, datetime] = Field(default={})
    full_points: dict[str, list[str]] = Field(default={})
    comments: dict[str, str] = Field(default={})


class Written(OfAll):
    """course.toml as it is written (see the module's text)."""

    extensions: dict[str, dict[str, datetime]] = Field(default={})
    excused: dict[str, list[str]] = Field(default={})

    @model_validator(mode="after")
    def _whole(self) -> "Written":
        for times in (self.deadlines, *self.extensions.values()):
            for week, time in times.items():
                zoned = time.tzinfo is not None or self.zone in available_timezones()
                require(zoned, f"the time {time} of {week} needs its offset from UTC, or a `zone` above")
                times[week] = time if time.tzinfo else time.replace(tzinfo=ZoneInfo(self.zone))
        for student, weeks in self.extensions.items():
            for week, time in weeks.items():
                where = f"the extension of {student!r} for {week}"
                require(week in self.deadlines, f"{where} extends nothing: [deadlines] has no {week}")
                require(time >= self.deadlines[week], f"{where} is before the deadline")
        return self


class Rules(OfAll):
    """A class's rules, with persons' numbers in place of names.

    extensions   person -> week -> deadline;   excused: week -> persons"""

    extensions: dict[int, dict[str, datetime]] = Field(default={})
    excused: dict[str, set[int]] = Field(default={})

    @property
    def grace(self) -> timedelta:
        return timedelta(minutes=self.late.grace_minutes)


def load_written(path: Path, weeks: Iterable[Week]) -> Written:
    """course.toml as it is written. LabError for what is not valid, and for weeks, tasks and keys that there are not,
    with the nearest."""
    try:
        written = load_toml(path, Written)
    except LabError as error:
        raise LabError(f"{error}{_hint(path, str(error))}") from None
    _known_weeks(path, written, weeks)
    return written


def _known_weeks(path: Path, rules: Written, weeks: Iterable[Week]) -> None:
    tasks = {week.name: [task.id for task in week.tasks if task.kind != "stretch"] for week in weeks}
    tables: dict[str, Iterable[str]] = {
        "deadlines": rules.deadlines,
        "full_points": rules.full_points,
        "excused": rules.excused,
        **{f"extensions.{student}": own for student, own in rules.extensions.items()},
    }
    for table, entries in tables.items():
        for week in entries:
            if week not in tasks:
                raise LabError(f"{path}: in [{table}], there is no week {week!r}{nearest(week, tasks)}")
    for week, ids in rules.full_points.items():
        for id in ids:
            if id not in tasks[week]:
                near = nearest(id, tasks[week])
                raise LabError(f"{path}: in [full_points], {week} has no task {id!r} with points{near}")


def _hint(path: Path, said: str) -> str:
    """What to write instead, where TOML's or pydantic's own words do not tell."""
    line = ""
    if "is not valid TOML" in said and (number := re.search(r"at line (\d+)", said)):
        line = path.read_text(encoding="utf-8").splitlines()[int(number[1]) - 1].strip()
    bare = re.fullmatch(r"""\[extensions\.([^\]"']+)\].*""", line)
    if bare and not re.fullmatch(r"[\w-]+", bare[1], re.A):
        return f'; a name with more than A-Z a-z 0-9 - _, a space say, needs quotes: [extensions."{bare[1].strip()}"]'
    if "valid datetime" in said or re.match(r"\S+\s*=\s*\d{4}-\d\d?-\d\d?", line):
        return f"; a time is written with its offset from UTC: {EXAMPLE}"
    return ""
