"""Where a student stands in a week: the attempt that counts, points by task, what was given by hand, the late rule.

The student's page, the class's page and the exported table all read this, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading import marks
from grading.intake.excused import excused_of
from grading.intake.policy import DEFAULTS, EXCUSED, Rules, final
from grading.reports.by_hand import ByHand, all_by_hand
from grading.reports.together import share
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.checks.verdict import FAULT
from labkit.errors import LabError

NOT_COUNTED = "Excused from this week: its points do not count."
FULL = "Everybody who handed in has all points of this task."


@dataclass
class Standing:
    """One student in one week.

    mark        of the attempt that counts; attempts: the numbers of all of them
    factor      what the late rule leaves, 1.0 if in time; rule: the sentence that says why
    by_hand     task id -> points and comments that people gave
    excused     the week does not count for the student; the points stay on record
    """

    mark: marks.Mark
    attempts: list[int]
    factor: float = 1.0
    rule: str = ""
    by_hand: dict[str, ByHand] = field(default_factory=dict)
    excused: bool = False

    @property
    def student(self) -> str:
        return self.mark.student

    def points(self, task: dict[str, Any]) -> float | None:
        """Points of a task: what a person gave, else the mark's, and extra points. None: a person still has to. A
        written task to which nothing was handed in has none, unless a person gives some."""
        given = self.by_hand.get(task["id"]) or ByHand(task["id"])
        if given.points is not None:
            return number(given.points + given.extra)
        if task["id"] in self.mark.unanswered:
            return number(given.extra)
        if task["kind"] == "written" or self.doubtful(task):
            return None
        return number(task["points"] + given.extra)

    def doubtful(self, task: dict[str, Any]) -> bool:
        """The grader itself failed at this task, and nobody has decided since. Not a zero."""
        given = self.by_hand.get(task["id"])
        if self.mark.complete or task["kind"] != "auto" or (given is not None and given.points is not None):
            return False
        anywhere = any(case["verdict"] == FAULT for case in self.mark.cases)
        return any(case["verdict"] == FAULT for case in task["cases"]) if anywhere else True

    def unanswered(self, task: dict[str, Any]) -> bool:
        """Nothing was handed in to this written task, and nobody gave points all the same."""
        given = self.by_hand.get(task["id"])
        return task["id"] in self.mark.unanswered and (given is None or given.points is None)

    def overruled(self, task: dict[str, Any]) -> bool:
        """A person gave an automatic task its points, or extra ones."""
        given = self.by_hand.get(task["id"])
        return task["kind"] == "auto" and given is not None and (given.points is not None or given.extra != 0)

    @property
    def in_place(self) -> list[str]:
        """What people decided in place of the checks, "13.6: 18, the checks give 8.75", extra points included."""
        return [
            f"{t['id']}: {number(self.points(t) or 0)}, the checks give {number(t['points'])}"
            for t in self.mark.tasks
            if self.overruled(t) and self.points(t) != number(t["points"])
        ]

    @property
    def settled(self) -> bool:
        """The automatic part is decided, by the grader or by a person after it failed, or counts nothing."""
        return self.factor == 0 or not any(self.doubtful(task) for task in self.mark.tasks)

    @property
    def ungraded(self) -> list[str]:
        """Ids of written tasks that nobody has graded yet; of an attempt that came too late to count, nobody has to."""
        if self.factor == 0:
            return []
        return [t["id"] for t in self.mark.tasks if t["kind"] == "written" and self.points(t) is None]

    @property
    def again(self) -> list[str]:
        """Ids of tasks whose answer changed after a person graded it."""
        return [task for task, given in self.by_hand.items() if given.again]

    @property
    def before(self) -> list[str]:
        """Ids of tasks whose points by hand were given before what counts now came into the gradebook: another attempt,
        another file of it, or other automatic points."""
        worth = {task["id"]: task["points"] for task in self.mark.tasks if task["kind"] == "auto"}
        return [
            id
            for id, given in self.by_hand.items()
            if (given.points is not None or given.extra)
            and (
                not given.is_of(self.mark)
                or (given.automatic is not None and id in worth and given.automatic != worth[id])
            )
        ]

    @property
    def looked_at_again(self) -> list[str]:
        """Ids of tasks with points by hand that a person has to look at; of an attempt that counts nothing, none."""
        return [id for id in self.by_hand if id in (*self.again, *self.before)] if self.factor > 0 else []

    @property
    def above(self) -> list[str]:
        """What people gave beyond a task's points, "20 of 15 in 13.7": a slip, mostly. Extra points are meant."""
        given = {id: one.points for id, one in self.by_hand.items() if one.points is not None}
        worth = {task["id"]: task["possible"] for task in self.mark.tasks}
        return [
            f"{number(points)} of {number(worth[id])} in {id}"
            for id, points in given.items()
            if points > worth.get(id, points)
        ]

    @property
    def automatic(self) -> float:
        """Points of the automatic tasks; those in doubt count what is sure, so it is "at least" then."""
        return _sum(t["points"] if (p := self.points(t)) is None else p for t in self.mark.tasks if t["kind"] == "auto")

    @property
    def given(self) -> float:
        """Points of the written tasks, as far as they are graded."""
        return _sum(self.points(t) or 0 for t in self.mark.tasks if t["kind"] == "written")

    @property
    def total(self) -> float | None:
        """Everything, after the late rule. None as long as a person still has to decide something, or to look again."""
        if self.looked_at_again or not self.settled or self.ungraded:
            return None
        return number(self.factor * (self.automatic + self.given))

    @property
    def state(self) -> str:
        """One phrase for a table."""
        if self.excused:
            return EXCUSED
        if not self.settled:
            return "a human must look"
        if self.ungraded:
            return "to be graded by hand"
        if self.factor == 0:
            return "complete"
        if self.above:
            return f"more points by hand than there are: {', '.join(self.above)}"
        if self.before:
            return "by hand: of before `grade load`"
        return "to be looked at again by hand" if self.again else "complete"

    def excuse(self) -> None:
        """The week does not count for the student, who reads so."""
        if not self.excused:
            self.excused, self.rule = True, " ".join(filter(None, (self.rule, NOT_COUNTED)))

    @property
    def unsandboxed(self) -> bool:
        return self.mark.isolation == marks.UNSANDBOXED


def possible(tasks: list[dict[str, Any]], *kinds: str) -> float:
    """Points that tasks of these kinds (all kinds, if none is named) are worth."""
    return _sum(task["possible"] for task in tasks if not kinds or task["kind"] in kinds)


def standings(week: Week, folder: Path, course: Path, rules: Rules = DEFAULTS) -> list[Standing]:
    """All students of a week, by id. LabError if there are no marks.

    folder      of the marks;   course: nbgrader's course directory, or any folder if there is none
    rules       which attempt counts, and what lateness costs"""
    students: dict[str, list[marks.Mark]] = {}
    for mark in marks.all_marks(folder, week.name):
        students.setdefault(mark.student, []).append(mark)
    if not students:
        raise LabError(f"there are no marks of {week.name} in {folder}: run `grade run {week.name}` first")
    given, excused = all_by_hand(course, week), excused_of(week.name, rules)
    out = []
    for student, attempts in sorted(students.items()):
        mark, factor, sentence = final(attempts, rules)
        by_hand = given.get(student, {}) | _full(mark, given.get(student, {}), rules)
        out.append(Standing(mark, [one.attempt for one in attempts], factor, sentence, by_hand))
        if student in excused:
            out[-1].excuse()
    share(out)
    return out


def _full(mark: marks.Mark, given: dict[str, ByHand], rules: Rules) -> dict[str, ByHand]:
    """What [full_points] gives, as if a person gave it; what one gave is left out but for extra points and comments."""
    out = {}
    for task in mark.tasks:
        if task["id"] in rules.full_points.get(mark.assignment, ()):
            own = given.get(task["id"]) or ByHand(task["id"])
            comments = [*own.comments, FULL]
            out[task["id"]] = ByHand(task["id"], task["possible"], own.extra, comments=comments)
    return out


def _sum(values: Iterable[float]) -> int | float:
    return number(sum(values))
