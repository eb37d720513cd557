"""The class in one week, as the commands see it: where each student stands, who is missing, what to look at.

Each function imports what it needs when it runs, so that `grade --help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grading.intake.policy import Rules
    from grading.intake.roster import Roster


def class_of(week: str, marks: Path, gradebook: Path | None, course: Path | None) -> tuple:
    """(the week, where each student stands in it)."""
    from grading.gradebook.course import course_folder
    from grading.gradebook.items import expanded, items
    from grading.here import not_the_class
    from grading.intake.policy import find_rules
    from grading.reports.standing import standings
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(marks)
    found = find_week(week)
    rules = find_rules(course, find_weeks())
    here = standings(found, marks, course_folder(gradebook), rules)
    rubrics = {
        task.id: items(found, task) for task in found.tasks if task.kind == "written" and any(s.by_hand for s in here)
    }
    for given in (given for s in here for given in s.by_hand.values()):
        given.comments = [expanded(comment, rubrics.get(given.task, ()), rules.comments) for comment in given.comments]
    return found, here


def missing(
    week, here: list, submissions: Path, course: Path | None, roster: Path | None, bare: list[str] | None = None
) -> tuple:
    """(the course's rules, which know who is who in this week, the roster or None, who of it handed nothing in, who is
    excused and has no mark). `bare`: whose hand-in has no mark yet. Those of `here` who are excused are so then."""
    from datetime import UTC, datetime

    from grading.intake.excused import Excused
    from grading.intake.namesakes import of_week
    from grading.intake.policy import find_rules
    from grading.intake.roster import absent, of_rules
    from labkit.checks.tasks import find_weeks

    rules = of_week(find_rules(course, find_weeks()), submissions, week)
    who = of_rules(rules, roster)
    students = [*(s.student for s in here), *(bare or ())]
    gone = absent(week.name, students, who, rules, datetime.now(UTC)) if who is not None else []
    excused = Excused(week.name, rules, who)
    for one in here:
        if one.student in excused:
            one.excuse()
    away = [student for student in (*(bare or ()), *(one.student for one in gone)) if student in excused]
    away += excused.elsewhere([*students, *away])
    return rules, who, [one for one in gone if one.student not in away], sorted(away)


def waiting(week, submissions: Path, marks: Path):
    """What was handed in and has no mark yet (grading.intake.pending)."""
    from grading import marks as marking
    from grading.intake.pending import entries_of, pending

    known = marking.all_marks(marks, week.name) if (marks / week.name).is_dir() else ()
    return pending(week, entries_of(submissions, week), known)


def again(here: list) -> list[str]:
    """Sentences on points by hand that a person should look at: given before what they are for changed, or more than
    there are."""
    from grading.reports.canvas import names

    old = [f"{one.student}, {', '.join(one.before)}" for one in here if one.before]
    theirs = [one.student for one in here if one.again and not one.before]
    return [
        *([f"points by hand are of an earlier hand-in, `grade load` first: {names(old)}"] if old else []),
        *([f"graded by hand before the answer changed, look again: {names(theirs)}"] if theirs else []),
        *(f"more points by hand than there are: {one.student}, {', '.join(one.above)}" for one in here if one.above),
    ]


def to_mend(students: list[str], marks: Path, submissions: Path, week, who: Roster | None, rules: Rules) -> list[str]:
    """Sentences on what makes points other than they look: extensions, excuses, names and withdrawals."""
    from grading.intake.excused import Excused
    from grading.intake.roster import under_two_names, without_effect
    from grading.intake.withdraw import only_withdrawn

    return [
        *without_effect(students, week, who, rules),
        *Excused(week.name, rules, who).slips(students, marks, submissions),
        *under_two_names(students, week, who, rules),
        *only_withdrawn(submissions, week, students, who, rules),
    ]
