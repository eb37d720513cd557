"""What a group handed in is marked once: the points that a person gave one member are the others' as well.

Formgrader has a copy for each member. Who has points or comments of their own keeps them; where members differ, that is
told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from grading.intake.groups import group_name
from grading.intake.names import some
from grading.intake.policy import Rules, final
from grading.marks import Mark, all_marks
from grading.reports.by_hand import ByHand
from labkit.checks.outcome import number
from labkit.checks.tasks import Week


class Member(Protocol):
    """A Standing (standing.py)."""

    mark: Mark
    by_hand: dict[str, ByHand]

    @property
    def student(self) -> str: ...

    @property
    def before(self) -> list[str]: ...

    def points(self, task: dict[str, Any]) -> float | None: ...


def share(standings: Sequence[Member]) -> None:
    """Give members whose answer no person marked what another member of the same hand-in has, if all who have points
    have the same."""
    for theirs in _together(standings):
        for id in [task["id"] for task in theirs[0].mark.tasks]:
            marked = [one.by_hand[id] for one in theirs if _is_of_this(one, id)]
            if len({(one.points, one.extra) for one in marked}) != 1:
                continue
            for one in theirs:
                own = one.by_hand.get(id)
                if own is None or (own.points is None and not own.comments and not own.extra):
                    one.by_hand[id] = replace(marked[0], of=None, automatic=own.automatic if own else None)


def _is_of_this(one: Member, id: str) -> bool:
    """Whether a person gave points for what counts now, and not for what the group handed in before."""
    given = one.by_hand.get(id)
    if given is None or given.points is None or given.of is None:
        return False
    return not given.again and id not in one.before


def unequal(standings: Sequence[Member]) -> list[str]:
    """Sentences on groups of whose members some have other points than others, for the same hand-in."""
    told = []
    for theirs in _together(standings):
        for task in theirs[0].mark.tasks:
            points = {one.student: one.points(task) for one in theirs}
            if len(set(points.values())) > 1:
                each = "; ".join(f"{name} {'none yet' if n is None else number(n)}" for name, n in points.items())
                agreed = len(set(points.values()) - {None}) == 1  # else the group has no points to have
                kept = [name for name, n in points.items() if n is None and _has_comment(theirs, name, task["id"])]
                because = f" (a comment of their own stands there: {some(kept)}; without it they have the group's)"
                told.append(
                    f"{group_name(theirs[0].mark.group)} has different points for one hand-in, {task['id']}: {each}"
                    + (because if kept and agreed else "")
                )
    return told


def _has_comment(members: Sequence[Member], student: str, task: str) -> bool:
    return any(one.student == student and task in one.by_hand and one.by_hand[task].comments for one in members)


def same_hand_in(marks: Path, week: Week, rules: Rules) -> dict[str, list[str]]:
    """student -> all who count by the same hand-in of one group, the student first. Who handed in alone is alone."""
    found: dict[tuple[str, str], list[str]] = {}
    for student, mark in counting(marks, week, rules).items():
        key = (mark.group, mark.submission) if mark.group else ("", student)
        found.setdefault(key, []).append(student)
    return {one: [one, *(other for other in those if other != one)] for those in found.values() for one in those}


def counting(marks: Path, week: Week, rules: Rules) -> dict[str, Mark]:
    """student -> the mark of the attempt that counts."""
    by_student = groupby(all_marks(marks, week.name), key=lambda mark: mark.student)
    return {student: final(list(theirs), rules).mark for student, theirs in by_student}


def _together(standings: Sequence[Member]) -> list[list[Member]]:
    """Those who count by the same hand-in of one group."""
    found: dict[tuple[str, str], list[Member]] = {}
    for one in standings:
        if one.mark.group:
            found.setdefault((one.mark.group, one.mark.submission), []).append(one)
    return [theirs for _, theirs in sorted(found.items()) if len(theirs) > 1]
