"""Where everybody stands in a week: the attempt that counts, points by task, what was given by hand, the late rule.

Pages, tables, exports and the status all read this, so that they cannot differ.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from grading.mark import UNSANDBOXED, Mark
from grading.register.counting import Counted, counting
from grading.register.deadlines import due, is_excused
from grading.register.marks import HandMark, hand_marks
from grading.register.people import Person, everybody
from grading.register.schema import Class
from labkit.checks.outcome import number
from labkit.checks.tasks import Week

NOT_COUNTED = "Excused from this week: its points do not count."
FULL = "Everybody who handed in has all points of this task."
MISSING, NOT_YET, NOT_GRADED = "missing", "not handed in yet", "not graded yet"
EXCUSED, COMPLETE, FAULTY, BY_HAND = "excused", "complete", "a human must look", "to be graded by hand"
AGAIN, ABOVE = "points by hand to be looked at again", "more points by hand than there are"


@dataclass
class Standing:
    """One person in one week.

    counted     the attempt that counts; None: nothing was handed in
    due         the person's deadline; None if there is none. over: it has passed, with the grace
    by_hand     task id -> points and comment that people gave for this attempt
    excused     the week does not count for the person; the points stay on record
    """

    person: Person
    week: Week
    counted: Counted | None = None
    due: datetime | None = None
    over: bool = False
    by_hand: dict[str, HandMark] = field(default_factory=dict)
    excused: bool = False

    @property
    def mark(self) -> Mark | None:
        """Of the attempt that counts; None: nothing was handed in, or it is not graded as it is now."""
        return self.counted.mark if self.counted else None

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks of the mark, which know their points."""
        return self.mark.tasks if self.mark else []

    @property
    def factor(self) -> float:
        """What the late rule leaves of the points, 1.0 if in time."""
        return self.counted.factor if self.counted else 1.0

    @property
    def late(self) -> bool:
        """Whether what counts came after the person's deadline and the grace."""
        return self.counted is not None and self.counted.late

    @property
    def rule(self) -> str:
        """Why this attempt counts and what lateness costs, for the student."""
        return " ".join(filter(None, (self.counted.sentence if self.counted else "", NOT_COUNTED * self.excused)))

    def given_for(self, task: dict[str, Any]) -> HandMark:
        """What a person gave for a task."""
        return self.by_hand.get(task["id"]) or HandMark(task["id"], None)

    def points(self, task: dict[str, Any]) -> float | None:
        """Points of a task: what a person gave, else the mark's, and extra points. None: a person still has to. A
        written task to which nothing was handed in has none, unless a person gives some."""
        given = self.given_for(task)
        if given.points is not None:
            return number(given.points + given.extra)
        if self.mark and task["id"] in self.mark.unanswered:
            return number(given.extra)
        if task["kind"] == "written" or self.doubtful(task):
            return None
        return number(task["points"] + given.extra)

    def doubtful(self, task: dict[str, Any]) -> bool:
        """The grader itself failed at this task, and nobody has decided since. Not a zero."""
        return self.mark is not None and self.mark.doubtful(task) and self.given_for(task).points is None

    def unanswered(self, task: dict[str, Any]) -> bool:
        """Nothing was handed in to this written task, and nobody gave points all the same."""
        return self.mark is not None and task["id"] in self.mark.unanswered and self.given_for(task).points is None

    def overruled(self, task: dict[str, Any]) -> bool:
        """A person gave an automatic task its points, or extra ones."""
        given = self.given_for(task)
        return task["kind"] == "auto" and (given.points is not None or given.extra != 0)

    @property
    def in_place(self) -> list[str]:
        """What people decided in place of the checks, "13.6: 18, the checks give 8.75", extra points included."""
        return [
            f"{t['id']}: {number(self.points(t) or 0)}, the checks give {number(t['points'])}"
            for t in self.tasks
            if self.overruled(t) and self.points(t) != number(t["points"])
        ]

    @property
    def settled(self) -> bool:
        """The automatic part is decided, by the grader or by a person after it failed, or counts nothing."""
        return self.factor == 0 or not any(self.doubtful(task) for task in self.tasks)

    @property
    def ungraded(self) -> list[str]:
        """Ids of written tasks that nobody has graded yet; of an attempt that came too late to count, nobody has to."""
        return [t["id"] for t in self.tasks if t["kind"] == "written" and self.points(t) is None] * (self.factor > 0)

    @property
    def looked_at_again(self) -> list[str]:
        """Ids of tasks whose points by hand were given for other files of this attempt, or for other automatic points;
        of an attempt that counts nothing, none."""
        mark = self.mark
        if mark is None or self.factor == 0:
            return []

        def changed(id: str, given: HandMark) -> bool:
            files = given.content and mark.content and given.content != mark.content
            return bool(files) or given.automatic != mark.automatic(id)

        given = {id: one for id, one in self.by_hand.items() if one.points is not None or one.extra}
        return [id for id, one in given.items() if changed(id, one)]

    @property
    def above(self) -> bool:
        """A person typed more than a task's points: a slip. Extra points are meant."""
        return self.factor > 0 and any((self.given_for(task).points or 0) > task["possible"] for task in self.tasks)

    @property
    def automatic(self) -> float:
        """Points of the automatic tasks; those in doubt count what is sure, so it is "at least" then."""
        return _sum(t["points"] if (p := self.points(t)) is None else p for t in self.tasks if t["kind"] == "auto")

    @property
    def given(self) -> float:
        """Points of the written tasks, as far as they are graded."""
        return _sum(self.points(t) or 0 for t in self.tasks if t["kind"] == "written")

    @property
    def total(self) -> float | None:
        """Everything, after the late rule. None for who is excused, where nothing was handed in or graded, and as long
        as a person still has to decide something, or to look again."""
        if self.excused or self.counted is None or self.counted.waits or (self.factor > 0 and self.mark is None):
            return None
        if self.looked_at_again or self.above or not self.settled or self.ungraded:
            return None
        return number(self.factor * (self.automatic + self.given))

    @property
    def state(self) -> str:
        """One phrase for a table."""
        if self.excused:
            return EXCUSED
        if self.counted is None:
            return MISSING if self.over else NOT_YET
        if self.factor > 0 and (self.mark is None or self.counted.waits):
            return NOT_GRADED
        if not self.settled:
            return FAULTY
        if self.ungraded:
            return BY_HAND
        if self.factor == 0:
            return COMPLETE
        if self.above:
            return ABOVE
        return AGAIN if self.looked_at_again else COMPLETE

    @property
    def unsandboxed(self) -> bool:
        return self.mark is not None and self.mark.isolation == UNSANDBOXED


def possible(tasks: Iterable[dict[str, Any]], *kinds: str) -> float:
    """Points that tasks of these kinds (all kinds, if none is named) are worth."""
    return _sum(task["possible"] for task in tasks if not kinds or task["kind"] in kinds)


def standings(cls: Class, week: Week, now: datetime | None = None) -> list[Standing]:
    """Everybody of the roster, by name, who handed nothing in too."""
    now, counted, by_hand = now or datetime.now(UTC), counting(cls, week.name), hand_marks(cls, week.name)
    found = []
    for person in everybody(cls):
        own, until = counted.get(person.id), due(cls, person.id, week.name)
        given = by_hand.get(own.submission.id, {}) if own else {}
        over = until is not None and until + cls.rules.grace < now
        one = Standing(person, week, own, until, over, dict(given), is_excused(cls, person.id, week.name))
        one.by_hand |= _full(one, cls.rules.full_points.get(week.name, ()))
        found.append(one)
    return found


def _full(one: Standing, ids: Iterable[str]) -> dict[str, HandMark]:
    """What [full_points] gives, as if a person gave it; what one gave is left out but for extra points and comments."""
    full = {}
    for task in one.tasks:
        if task["id"] in ids:
            own = one.given_for(task)
            comment = "\n".join(filter(None, (own.comment, FULL)))
            checked = one.mark.automatic(task["id"]) if one.mark else None
            full[task["id"]] = replace(own, points=task["possible"], comment=comment, content="", automatic=checked)
    return full


def _sum(values: Iterable[float]) -> int | float:
    return number(sum(values))
