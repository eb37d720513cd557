"""`grade why`: what the record says of one student in one week, for the answer to a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grading import history
from grading.intake.excused import excused_of
from grading.intake.policy import Rules
from grading.intake.receipts import WITHDRAWN
from grading.marks import all_marks, unquoted
from grading.reports import page
from grading.reports.mistakes import untouched
from grading.reports.standing import Standing, standings
from labkit.checks.outcome import number
from labkit.checks.tasks import Week, find_weeks
from labkit.checks.verdict import PASSED
from labkit.errors import LabError
from labkit.strict import nearest


def show(
    week: Week, student: str, task: str | None, marks: Path, gradebook: Path, rules: Rules, console: Console
) -> None:
    """Print it. LabError for a student without a mark who is not excused, and a task that the week does not have."""
    here = standings(week, marks, gradebook, rules)
    who = rules.among(student, [standing.student for standing in here])
    found = [standing for standing in here if standing.student == who]
    excused = f"{page.one_line(who, 80)} is excused from {week.name} ([excused] in course.toml): no points and no zero"
    if who in excused_of(week.name, rules):
        console.print(Text(excused + ("" if found else "; nothing of theirs was graded")), soft_wrap=True)
        if not found:
            return
    if not found and rules.among(student, gone := _withdrawn(marks, week)) in gone:
        raise LabError(
            f"there is no mark of {student!r} in {week.name}: an attempt was withdrawn, `grade withdraw {week.name} "
            f"ID --undo` brings it back; `grade status {week.name}` tells whether another one is not graded yet"
        )
    if not found:
        raise LabError(
            f"there is no mark of {student!r} in {week.name}{nearest(student, [s.student for s in here][:30])}; "
            f"`grade status {week.name}` tells who handed nothing in, and whose hand-in is not graded yet"
        )
    if task is not None and task not in week:
        owner = next((other.name for other in find_weeks() if task in other), "")
        why = f": it is of {owner}" if owner else nearest(task, [one.id for one in week.tasks])
        raise LabError(f"{week.name} has no task {task}{why}")
    for line in told(week, found[0], task, marks):
        console.print(Text(line), soft_wrap=True)


def _withdrawn(marks: Path, week: Week) -> list[str]:
    """Of whom a mark was put aside."""
    return sorted({unquoted(path.parent.parent.name) for path in (marks / week.name).glob(f"*/{WITHDRAWN}/*.json")})


def told(week: Week, standing: Standing, task: str | None, marks: Path) -> list[str]:
    """The lines. Each diagnosis is told once, below all that it is of: a missing file breaks forty cases."""
    student = page.one_line(standing.student, 80)
    total = "no total yet" if standing.total is None else f"total {number(standing.total)}"
    lines = [f"{student}, {week.name}: attempt {standing.mark.attempt} counts, {total}, {standing.state}"]
    lines += [standing.rule] if standing.rule else []
    for mark in all_marks(marks, week.name):
        if mark.student == standing.student:
            received = f", handed in {mark.received}" if mark.received else ""
            lines.append(
                f"attempt {mark.attempt}: {number(mark.points)} of {number(mark.possible)} automatic points{received}, "
                f"submission {mark.submission[:12]}, graded {mark.finished}, seed {mark.seed}"
            )
    told_at: dict[str, str] = {}  # diagnosis -> the task at which it is told
    for one in standing.mark.tasks:
        stretch = one["kind"] == "stretch"
        if (task is None and untouched(one)) or (task is not None and one["id"] != task):
            continue
        passed = sum(case["verdict"] == PASSED for case in one["cases"])
        came = (
            f"{passed} of {len(one['cases'])} cases pass, no points"
            if stretch
            else (page.of(standing.points(one), one["possible"]))
        )
        lines += ["", f"{one['id']} {one['title']}: {came}"]
        given = standing.by_hand.get(one["id"])
        if given is not None and (given.points is not None or given.extra):
            points = "" if given.points is None else f"{number(given.points)}"
            extra = f"{number(given.extra)} extra" if given.extra else ""
            lines.append(f"    by hand: {' and '.join(filter(None, (points, extra)))}")
        lines += [f"    a person wrote: {page.visible(comment)}" for comment in (given.comments if given else ())]
        if one["id"] in standing.mark.unanswered:
            lines.append("    nothing was handed in")
        diagnoses: dict[tuple[str, str], list[str]] = {}
        for case in one["cases"]:
            if case["verdict"] != PASSED:
                diagnoses.setdefault((case["verdict"], case["text"]), []).append(case["behaviour"])
        for (verdict, text), broken in diagnoses.items():
            lines += [f"    {verdict}: {page.one_line(behaviour)}" for behaviour in broken]
            if (before := told_at.setdefault(text, one["id"])) != one["id"]:
                lines.append(f"        as at {before}")
            else:
                lines += [f"        {line}" for line in page.visible(page.here(text)).split("\n")]
    if task is not None and not any(one["id"] == task for one in standing.mark.tasks):
        lines += ["", f"{task}: not judged of this attempt; `grade run {week.name} --task {task}` does it"]
    changes = [
        sentence
        for change in _of_task(history.of(marks, week.name, standing.student), task)
        for sentence in (change.when, *(f"    {words}" for words in history.sentences(change)))
    ]
    return [*lines, "", *(["Graded anew:", *changes] if changes else ["It was never graded anew."])]


def _of_task(changes: Sequence[history.Change], task: str | None) -> list[history.Change]:
    """Each time that this task was judged anew, changed by that or not, and what became of it; None: any task."""
    if task is None:
        return list(changes)
    asked = [change for change in changes if task in change.asked or not change.asked]
    return [replace(change, tasks=[one for one in change.tasks if one.id == task]) for change in asked]
