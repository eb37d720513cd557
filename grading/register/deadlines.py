"""Until when somebody may hand in: everybody's deadline, a person's own, and when a week closes."""

from datetime import UTC, datetime, timedelta

from grading.register.people import Person, everybody
from grading.register.schema import Class
from labkit.errors import LabError


def due(cls: Class, person: int, week: str) -> datetime | None:
    """A person's deadline for a week: the latest of everybody's, course.toml's own for them, and the platform's."""
    times = [cls.rules.deadlines.get(week), cls.rules.extensions.get(person, {}).get(week)]
    row = cls.db.execute("SELECT due FROM extension WHERE (person, assignment) = (?, ?)", (person, week)).fetchone()
    times.append(datetime.fromisoformat(row["due"]) if row and times[0] is not None else None)
    return max((time for time in times if time is not None), default=None)


def extend(cls: Class, person: int, week: str, until: datetime | None) -> None:
    """Keep what a platform grants a person; its newest word holds. None: nothing, or nothing any more."""
    with cls.writing():
        cls.db.execute("DELETE FROM extension WHERE (person, assignment) = (?, ?)", (person, week))
        if until is not None:
            row = (person, week, until.isoformat())
            cls.db.execute("INSERT INTO extension (person, assignment, due) VALUES (?, ?, ?)", row)


def read_time(cls: Class, text: str) -> datetime:
    """A time that somebody types; without an offset it is in the class's zone. LabError for none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise LabError(f"{text!r} is no time: write it as 2026-11-20T18:00+01:00") from None
    if time.tzinfo is None:
        if cls.zone is None:
            raise LabError(f"{text} needs its offset from UTC, as in {text}+01:00")
        time = time.replace(tzinfo=cls.zone)
    return time


def is_excused(cls: Class, person: int, week: str) -> bool:
    """Whether the week does not count for a person."""
    return person in cls.rules.excused.get(week, ())


def closes(cls: Class, week: str) -> tuple[datetime, Person | None] | None:
    """(when the last submission that still counts may come, whose it is: None for everybody's); None without a
    deadline. Where late ones count for ever, that is the last deadline with its grace."""
    if week not in cls.rules.deadlines:
        return None
    last: tuple[datetime, Person | None] = cls.rules.deadlines[week], None
    for one in everybody(cls):
        own = due(cls, one.id, week)
        if own is not None and own > last[0] and not is_excused(cls, one.id, week):
            last = own, one
    return last[0] + cls.rules.grace + timedelta(days=cls.rules.late.closes_after_days or 0), last[1]


def refuse_while_open(cls: Class, week: str, what: str, shows: str = "hidden data") -> None:
    """LabError while somebody may still hand in: who has read `what` knows more than they may, and may be a friend."""
    if (closing := closes(cls, week)) is None or datetime.now(UTC) > closing[0]:
        return
    until, whose = closing
    days = cls.rules.late.closes_after_days
    raise LabError(
        f"{week} can be handed in until {until.isoformat(' ', 'minutes')} ("
        + (f"{whose.name} has an extension" if whose else "the deadline")
        + (f", and closes_after_days adds {days:g} days" if days else "")
        + f"), and {what} would show {shows}: wait, or say --anyway"
    )
