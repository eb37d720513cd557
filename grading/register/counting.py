"""Which attempt of a person counts in a week, and what lateness costs.

"last" takes the attempt that was handed in last, "best" the one with most automatic points after what lateness costs,
without those of [full_points]; of equals the later one counts, for its written answers. An attempt without a submission
time is in time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from grading.intake.arrival import PLATFORM
from grading.mark import Mark
from grading.register.deadlines import due
from grading.register.marks import newest_marks
from grading.register.rules import Rules
from grading.register.schema import Class
from grading.register.submissions import BY_HAND, Attempt, attempts

JUST_AFTER = timedelta(seconds=1)  # the least that a platform's late mark can mean
NO_TIME = "The platform does not tell by how much, so this counts as handed in right after the deadline."


class Lateness(NamedTuple):
    """Whether an attempt came after its person's deadline and the grace; the factor that is left of all its points
    (0 to 1); a sentence for the student, "" if it is in time."""

    late: bool
    factor: float
    sentence: str


@dataclass(frozen=True)
class Counted:
    """The attempt of one person that counts.

    mark       of its files as they count now; None: not graded yet
    received   when it was handed in; None: unknown
    attempts   numbers of all that are not withdrawn, in the order of their times
    waits      another attempt may count in its place, once it is graded
    sentence   what the student should know of it"""

    submission: Attempt
    mark: Mark | None
    received: datetime | None
    attempts: tuple[int, ...]
    factor: float
    late: bool
    waits: bool
    sentence: str


def counting(cls: Class, week: str) -> dict[int, Counted]:
    """person -> the attempt that counts, for everybody who has one that is not withdrawn."""
    of: dict[int, list[Attempt]] = {}
    for one in attempts(cls, week):
        for member in one.members:
            of.setdefault(member, []).append(one)
    marks = current_marks(cls, week)
    return {person: final(cls, theirs, due(cls, person, week), marks) for person, theirs in of.items()}


def current_marks(cls: Class, week: str) -> dict[int, Mark]:
    """submission -> its newest mark, if that is of the files as they count now: a rename makes others of them."""
    marks = newest_marks(cls, week)
    return {
        one.id: marks[one.id]
        for one in attempts(cls, week, withdrawn=True)
        if one.id in marks and marks[one.id].renamed == dict(one.renamed)
    }


def handed_in(rules: Rules, one: Attempt) -> datetime | None:
    """When an attempt was handed in. What the platform or an instructor says of this very attempt holds. The time of a
    whole download weighs less than the platform's late mark: what is not marked was in time, and what is marked was at
    least a little late."""
    deadline = rules.deadlines.get(one.assignment)
    if deadline is None or one.late is None or one.timed in (PLATFORM, BY_HAND):
        return one.received
    if one.late:
        just_after = deadline + rules.grace + JUST_AFTER
        return max(one.received, just_after) if one.received else just_after
    return min(one.received, deadline) if one.received else None


def final(cls: Class, theirs: Sequence[Attempt], until: datetime | None, marks: Mapping[int, Mark]) -> Counted:
    """Which of one person's attempts counts, and how much of it. An attempt of which lateness leaves nothing takes the
    place of no other. until: the person's deadline."""
    rules = cls.rules
    times = {one.id: handed_in(rules, one) for one in theirs}
    known = all(times.values())
    in_order = sorted(theirs, key=lambda one: (times[one.id] if known else 0, one.id))
    costs = [lateness(rules, times[one.id], until) for one in in_order]
    marked = [marks.get(one.id) for one in in_order]
    if rules.attempts.policy == "last":
        chosen = max(range(len(in_order)), key=lambda n: (costs[n].factor > 0, n))
    else:
        worth = [-1 if mark is None else _compared(mark, rules) * cost.factor for mark, cost in zip(marked, costs)]
        chosen = max(range(len(in_order)), key=lambda n: (worth[n], costs[n].factor, n))
    one, cost, said = in_order[chosen], costs[chosen], []
    if len(in_order) > 1:
        said.append(f"Attempt {chosen + 1} of {len(in_order)} counts, {_how(rules, costs, chosen)}.")
    if cost.sentence:
        said.append(cost.sentence)
    if one.late and not one.timed:
        said.append(NO_TIME)
    unsure = [str(n) for n, mark in enumerate(marked, 1) if mark is not None and not mark.complete]
    best = rules.attempts.policy == "best" and len(in_order) > 1
    if unsure and best:
        said.append(f"Attempt {', '.join(unsure)} could not be graded to its end, so this may change.")
    return Counted(
        one,
        marked[chosen],
        times[one.id],
        tuple(one.id for one in in_order),
        cost.factor,
        cost.late,
        best and any(mark is None and cost.factor > 0 for mark, cost in zip(marked, costs)),
        " ".join(said),
    )


def _how(rules: Rules, costs: Sequence[Lateness], chosen: int) -> str:
    if rules.attempts.policy == "best":
        return "with most automatic points" + (
            " after what lateness costs" if any(cost.factor < 1 for cost in costs) else ""
        )
    return "the last" if chosen == len(costs) - 1 else "the last that lateness leaves points"


def _compared(mark: Mark, rules: Rules) -> float:
    """The automatic points that tell one attempt from another."""
    full = rules.full_points.get(mark.assignment, ())
    return mark.points - sum(task["points"] for task in mark.tasks if task["kind"] == "auto" and task["id"] in full)


def lateness(rules: Rules, received: datetime | None, until: datetime | None) -> Lateness:
    """What lateness costs of an attempt's points; until: the person's deadline."""
    late = rules.late
    if until is None or received is None or received <= until + rules.grace:
        return Lateness(False, 1.0, "")
    days = math.ceil((received - until) / timedelta(days=1))
    begun = f"{days} day{'s' if days > 1 else ''}"
    if late.closes_after_days is not None and received > until + timedelta(days=late.closes_after_days):
        after = f"after {late.closes_after_days:g} days nothing counts any more"
        return Lateness(True, 0.0, f"Handed in {begun} late: {after}.")
    lost = min(late.most, late.per_day * days)
    taken = f"{100 * lost:.4g} % of the points are taken off"
    return Lateness(True, round(1 - lost, 6), f"Handed in {begun} late (each 24 hours begun count): {taken}.")
