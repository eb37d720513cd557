"""Which attempt of a student counts, and what lateness costs: the rules of a course, in one small file.

    course.toml                             every table may be left out

    [attempts]
    policy = "best"                         # or "last", which also holds without this file

    [deadlines]
    week13 = 2026-11-20T23:59:00+01:00      # with the offset from UTC

    [late]                                  # without this table lateness costs nothing
    grace_minutes = 10                      # so much later still counts as in time
    per_day = 0.1                           # of the points, for each day begun after the deadline
    most = 0.5                              # never more than this
    closes_after_days = 14                  # what comes later than that counts nothing

    [extensions.anna]                       # a student's own deadline; quote an id that has more than A-Z a-z 0-9 - _
    week13 = 2026-11-27T23:59:00+01:00

    [roster]                                # who is in the class: then who handed nothing in is named
    file = "roster.csv"                     # Canvas' exported gradebook, Moodle's grading worksheet, or ids, one a line

    [ids]                                   # what an LMS calls a student -> the course's id (see `grade collect`)
    "doejane_4567" = "anna"

    [full_points]                           # of these tasks everybody who handed in has all points: cancelled, or wrong
    week13 = ["13.4"]

    [excused]                               # joined late, or was ill: the week is neither a zero nor possible points
    week13 = ["Jonas Joiner"]               # ids

    [comments]                              # sentences for markers: #units in formgrader's comment stands for this one
    units = "State the unit of every number."

The factor that lateness leaves holds for all points of the attempt that counts, also for those given by hand.
"best" compares automatic points after that factor, without those of [full_points]. Of equals the later one counts, for
its written answers.
"last" takes the one handed in last, however late. Where nothing tells when an attempt was handed in, it is in time.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from grading.intake.names import in_moodles_files
from grading.marks import Mark
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import Config, load_toml, nearest, require

FILE = "course.toml"
EXCUSED = "excused"  # the state of those whom [excused] names
EXAMPLE = "week13 = 2026-11-20T23:59:00+01:00"


class Attempts(Config):
    policy: Literal["best", "last"] = "last"


class Late(Config):
    """How much lateness costs; fractions of the points."""

    grace_minutes: float = Field(default=0, ge=0)
    per_day: float = Field(default=0, ge=0, le=1)
    most: float = Field(default=1, ge=0, le=1)
    closes_after_days: float | None = Field(default=None, gt=0)


class Roster(Config):
    file: str = ""  # beside course.toml, if it is no whole path


class Rules(Config):
    """The rules of a course (see the module's text). Times have their zone; students are in composed form (NFC)."""

    attempts: Attempts = Attempts()
    late: Late = Late()
    roster: Roster = Roster()
    deadlines: dict[str, datetime] = Field(default={})
    extensions: dict[str, dict[str, datetime]] = Field(default={})
    ids: dict[str, str] = Field(default={})
    full_points: dict[str, list[str]] = Field(default={})
    excused: dict[str, list[str]] = Field(default={})
    comments: dict[str, str] = Field(default={})
    _numbers: dict[str, dict[int, str]] = PrivateAttr(default={})  # student -> attempt -> participant: see `knowing`

    @model_validator(mode="after")
    def _whole(self) -> Rules:
        for week, time in self.deadlines.items():
            require(
                time.tzinfo is not None,
                f"the deadline of {week} needs its offset from UTC, as in {time.isoformat()}+01:00",
            )
        for student, weeks in self.extensions.items():
            for week, time in weeks.items():
                where = f"the extension of {student!r} for {week}"
                require(time.tzinfo is not None, f"{where} needs its offset from UTC, as in {time.isoformat()}+01:00")
                require(week in self.deadlines, f"{where} extends nothing: [deadlines] has no {week}")
                require(time >= self.deadlines[week], f"{where} is before the deadline")
        require(all(self.ids.values()), "a student's id in [ids] is empty")
        for name in self.ids:
            last = self.id_of(name)
            require(self.ids.get(last, last) == last, f"[ids] leads from {name!r} in a circle: whose id is it?")
        return self

    def due(self, student: str, week: str) -> datetime | None:
        """The deadline of one student for a week ("week13"); None if there is none."""
        extended = {_composed(name): weeks for name, weeks in self.extensions.items()}
        names = map(_composed, self.called(student))
        own = [extended[name][week] for name in names if week in extended.get(name, {})]
        return own[0] if own else self.deadlines.get(week)

    def closes(self, week: str) -> tuple[datetime, str] | None:
        """(when the last hand-in that still counts may come, whose it is: "" for everybody's); None without a deadline.
        Where late ones count for ever, that is the last deadline with its grace."""
        if week not in self.deadlines:
            return None
        last, whose = self.deadlines[week], ""
        for student, weeks in self.extensions.items():
            if weeks.get(week, last) > last and not self.is_excused(student, week):
                last, whose = weeks[week], student
        return last + timedelta(minutes=self.late.grace_minutes, days=self.late.closes_after_days or 0), whose

    def id_of(self, found: str) -> str:
        """The course's id of a student whom a download calls `found`. What [ids] leads to may stand in [ids] as well:
        another platform's name."""
        table = {_composed(name): _composed(id) for name, id in self.ids.items()}
        id, seen = _composed(found), set[str]()
        while id in table and id not in seen:
            seen.add(id)
            id = table[id]
        return id

    def is_excused(self, student: str, week: str) -> bool:
        """Whether [excused] names a student for a week, by any name that [ids] has. grading.intake.excused knows the
        roster's names as well."""
        return self.id_of(student) in map(self.id_of, self.excused.get(week, ()))

    def called(self, student: str) -> list[str]:
        """All names of a student, the given one first: the course's id, and what learning platforms call them."""
        id = self.id_of(student)
        return list(dict.fromkeys([student, id, *(name for name in self.ids if self.id_of(name) == id)]))

    def knowing(self, numbers: Mapping[str, Mapping[int, str]]) -> Rules:
        """The same rules within one week, whose attempts tell which participant of Moodle's each student is there."""
        known = self.model_copy()
        known._numbers = {student: dict(theirs) for student, theirs in numbers.items()}
        return known

    def participants(self, student: str) -> dict[int, str]:
        """Moodle's name and number of a student in the week that is known, by attempt."""
        return self._numbers.get(student, {})

    def everybody(self) -> list[str]:
        """All of Moodle's names with numbers in the week that is known."""
        return [participant for theirs in self._numbers.values() for participant in theirs.values()]

    def is_another(self, participant: str, student: str) -> bool:
        """Whether a participant is known to be another student than this one, in the week that is known."""
        owners = {self.id_of(who) for who, theirs in self._numbers.items() if participant in theirs.values()}
        return bool(owners) and self.id_of(student) not in owners

    def among(self, student: str, here: Iterable[str]) -> str:
        """Which of those who are here is meant: the one of this name, else the one whom [ids] calls so, else the one of
        this name with Moodle's number behind it, or with the signs that Moodle leaves of it; else `student`, who is not
        here. Who was collected before [ids] spoke of them keeps the first name. LabError for a name that several have.
        """
        known = list(here)
        if student in known:
            return student
        if named := [one for one in known if self.id_of(one) == self.id_of(student)]:
            return named[0]
        numbered = re.compile(re.escape(_composed(student)) + r"_\d+")
        alike = {one: [name for name in self.called(one) if numbered.fullmatch(_composed(name))] for one in known}
        alike = {one: names for one, names in alike.items() if names}
        if len(alike) > 1:
            them = ", ".join(one if one in names else f"{one} ({names[0]})" for one, names in sorted(alike.items()))
            raise LabError(f"{len(alike)} students here are called {student!r}: name one of {them}")
        plain = [one for one in known if in_moodles_files(one) == in_moodles_files(student)]
        return next(iter(alike or (plain if len(plain) == 1 else ())), student)


DEFAULTS = Rules()  # of a course without course.toml: the last attempt counts, and there is no deadline


class Final(NamedTuple):
    """The attempt that counts, the factor on all its points (0 to 1), and what the student should know of both."""

    mark: Mark
    factor: float
    sentence: str


def load_rules(path: str | Path, weeks: Iterable[Week]) -> Rules:
    """Read a course's rules. LabError for what is not valid; unknown keys and weeks are named with the nearest."""
    try:
        rules = load_toml(path, Rules)
    except LabError as error:
        raise LabError(f"{error}{_hint(path, str(error))}") from None
    weeks = list(weeks)
    names = [week.name for week in weeks]
    tables: dict[str, Iterable[str]] = {
        "deadlines": rules.deadlines,
        "full_points": rules.full_points,
        "excused": rules.excused,
    }
    tables |= {f"extensions.{student}": own for student, own in rules.extensions.items()}
    for table, entries in tables.items():
        for week in entries:
            if week not in names:
                raise LabError(f"{path}: in [{table}], there is no week {week!r}{nearest(week, names)}")
    tasks = {week.name: [task.id for task in week.tasks if task.kind != "stretch"] for week in weeks}
    for week, ids in rules.full_points.items():
        for id in ids:
            if id not in tasks[week]:
                raise LabError(
                    f"{path}: in [full_points], {week} has no task {id!r} with points{nearest(id, tasks[week])}"
                )
    if rules.roster.file:
        rules = rules.model_copy(update={"roster": Roster(file=str(Path(path).parent / rules.roster.file))})
    return rules


def _hint(path: str | Path, said: str) -> str:
    """What to write instead, where TOML's or pydantic's own words do not tell."""
    line = ""
    if "is not valid TOML" in said and (number := re.search(r"at line (\d+)", said)):
        line = Path(path).read_text(encoding="utf-8").splitlines()[int(number[1]) - 1].strip()
    if (bare := re.fullmatch(r"""\[extensions\.([^\]"'.]+)\].*""", line)) and not re.fullmatch(
        r"[\w-]+", bare[1], re.A
    ):
        return f'; a name with more than A-Z a-z 0-9 - _, a space say, needs quotes: [extensions."{bare[1].strip()}"]'
    if "valid datetime" in said or re.match(r"\S+\s*=\s*\d{4}-\d\d?-\d\d?", line):
        return f"; a time is written with its offset from UTC: {EXAMPLE}"
    return ""


def find_rules(path: str | Path | None, weeks: Iterable[Week]) -> Rules:
    """The rules in `path`, or in course.toml of the working directory; no file there: the last attempt, no deadline."""
    if path is None and not Path(FILE).exists():
        return DEFAULTS
    return load_rules(path or FILE, weeks)


def refuse_while_open(
    rules: Rules, week: str, what: str, anyway: bool, now: datetime | None = None, tells: str = "of hidden data"
) -> None:
    """LabError while somebody may still hand in: who has read `what` knows more than they may, and may be a friend."""
    if anyway or (closes := rules.closes(week)) is None:
        return
    until, whose = closes
    if (now or datetime.now(UTC)) <= until:
        days = rules.late.closes_after_days
        raise LabError(
            f"{week} can be handed in until {until.isoformat(' ', 'minutes')} ("
            + (f"{whose!r} has an extension" if whose else "the deadline")
            + (f", and closes_after_days adds {days:g} days" if days else "")
            + f"), and {what} would tell {tells}: wait, or say --anyway"
        )


def final(marks: Sequence[Mark], rules: Rules) -> Final:
    """Which of one student's marks of an assignment counts, and how much of it. An attempt of which lateness leaves
    nothing takes the place of no other."""
    if len({(mark.student, mark.assignment) for mark in marks}) != 1:
        raise ValueError("these are not the marks of one student for one assignment")
    in_order = _in_order(marks)
    costs = [lateness(mark, rules) for mark in in_order]
    if rules.attempts.policy == "last":
        chosen = max(range(len(in_order)), key=lambda n: (costs[n][0] > 0, n))
    else:
        worth = [_compared(mark, rules) for mark in in_order]
        chosen = max(range(len(in_order)), key=lambda n: (worth[n] * costs[n][0], costs[n][0], n))
    mark, (factor, told) = in_order[chosen], costs[chosen]
    said = [told] if told else []
    if len(in_order) > 1:
        after = " after what lateness costs" if any(cost < 1 for cost, _ in costs) else ""
        last = "the last" if chosen == len(in_order) - 1 else "the last that lateness leaves points"
        time = _time(mark.received)
        if time and last == "the last" and mark.attempt < max(one.attempt for one in in_order):
            last = f"handed in last, at {time.isoformat(' ', 'minutes')}"  # others were collected after it
        how = last if rules.attempts.policy == "last" else f"with most automatic points{after}"
        many = len(in_order)
        if mark.attempt > many:  # one before it was withdrawn
            said.insert(0, f"Attempt {mark.attempt} counts, {how} of {many}.")
        else:
            said.insert(0, f"Attempt {mark.attempt} of {many} counts, {how}.")
    unsure = [m.attempt for m in in_order if not m.complete]
    if unsure and rules.attempts.policy == "best" and len(in_order) > 1:
        said.append(f"Attempt {', '.join(map(str, unsure))} could not be graded to its end, so this may change.")
    return Final(mark, factor, " ".join(said))


def _compared(mark: Mark, rules: Rules) -> float:
    """The automatic points that tell one attempt from another."""
    full = rules.full_points.get(mark.assignment, ())
    return mark.points - sum(task["points"] for task in mark.tasks if task["kind"] == "auto" and task["id"] in full)


def lateness(mark: Mark, rules: Rules) -> tuple[float, str]:
    """(the factor that lateness leaves of a mark's points, a sentence for the student; "" if it is in time)."""
    due, received, late = rules.due(mark.student, mark.assignment), _time(mark.received), rules.late
    if due is None or received is None or received <= due + timedelta(minutes=late.grace_minutes):
        return 1.0, ""
    days = math.ceil((received - due) / timedelta(days=1))
    begun = f"{days} day{'s' if days > 1 else ''}"
    if late.closes_after_days is not None and received > due + timedelta(days=late.closes_after_days):
        return 0.0, f"Handed in {begun} late: after {late.closes_after_days:g} days nothing counts any more."
    lost = min(late.most, late.per_day * days)
    return round(1 - lost, 6), (
        f"Handed in {begun} late (each day begun counts): {100 * lost:.4g} % of the points are taken off."
    )


def _in_order(marks: Sequence[Mark]) -> list[Mark]:
    """By the time of handing in where all are known, else by number."""
    times = {mark.attempt: _time(mark.received) for mark in marks}
    if all(times.values()):
        return sorted(marks, key=lambda mark: (times[mark.attempt], mark.attempt))
    return sorted(marks, key=lambda mark: mark.attempt)


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time and time.tzinfo else None


def _composed(student: str) -> str:
    return unicodedata.normalize("NFC", student)
