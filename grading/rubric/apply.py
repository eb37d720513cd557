"""`grade rubric`: items that markers wrote into formgrader's comments become its points."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from grading.gradebook.course import Course, gradebook_id
from grading.gradebook.items import Item, Marking, crowded, items, read, unknown_codes
from grading.intake.policy import Rules
from grading.reports.by_hand import all_by_hand
from grading.reports.page import count
from labkit.checks.outcome import number
from labkit.checks.tasks import Task, Week


@dataclass
class Applied:
    """What was done. `told`: sentences on what a person must mend; `means`: (item, mean points, how many)."""

    given: list[str] = field(default_factory=list)
    same: int = 0
    told: list[str] = field(default_factory=list)
    means: list[tuple[Task, Item, float, int]] = field(default_factory=list)


def markings(course: Course, week: Week, rules: Rules) -> dict[tuple[str, str], Marking]:
    """(student, task) -> what a marker wrote by items, of everybody who has such a comment."""
    by_hand = all_by_hand(course.root, week)
    found = {}
    for task in written(week):
        rubric = items(week, task)
        for student, tasks in by_hand.items():
            if task.id in tasks and (marking := read(tasks[task.id].comments, rubric, rules.comments)) is not None:
                found[student, task.id] = marking
    return found


def written(week: Week) -> list[Task]:
    return [task for task in week.tasks if task.kind == "written"]


def apply(course: Course, week: Week, rules: Rules, *, items_decide: bool = False) -> Applied:
    """Put the sums of items into formgrader's points. What is marked wrongly is told and left; so is a sum that differs
    from points that somebody typed, unless `items_decide`."""
    result = Applied()
    with course.one_writer():
        found = markings(course, week, rules)
        by_hand = all_by_hand(course.root, week)
        with course.gradebook() as book:
            for (student, id), marking in sorted(found.items()):
                typed = by_hand[student][id].points
                if marking.faults:
                    result.told.append(f"{student}, {id}: {'; '.join(marking.faults)}")
                elif typed == marking.total:
                    result.same += 1
                elif typed is not None and not items_decide:
                    result.told.append(
                        f"{student}, {id}: formgrader has {count(number(typed), 'point')} and the items add up to "
                        f"{number(marking.total)}: mend one of them, or --items-decide"
                    )
                else:
                    grade = book.find_grade(week.task(id).cell, week.notebook.stem, week.name, gradebook_id(student))
                    grade.manual_score, grade.needs_manual_grade = marking.total, False
                    was = "" if typed is None else f", {number(typed)} before"
                    result.given.append(f"{student}, {id}: {count(number(marking.total), 'point')}{was}")
            book.db.commit()
    for student, tasks in sorted(by_hand.items()):
        for id, given in sorted(tasks.items()):
            if (student, id) in found:
                continue
            faults = unknown_codes("\n".join(given.comments), rules.comments)
            if given.comments and given.points is None:
                none = ["no line of the comment begins with an item, as `1: 4` does"]
                faults.insert(0, f"no points, and {'; '.join(crowded(given.comments) or none)}")
            if faults:
                result.told.append(f"{student}, {id}: {'; '.join(faults)}")
    for task in written(week):
        whole = [marking for (_, id), marking in found.items() if id == task.id and not marking.faults]
        for item in items(week, task):
            if whole:
                mean = fmean(marking.points[item.number] for marking in whole)
                result.means.append((task, item, mean, len(whole)))
    return result
