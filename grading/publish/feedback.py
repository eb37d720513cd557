"""One page a student: points, why not all of them, what people wrote, what to do next.

Only this student's mark, submission and hand grades go into it. The diagnosis is the only thing that tells of hidden
data; the class's seed stays out.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from grading.publish import page
from grading.publish.mistakes import grouped, untouched
from grading.publish.overview import mark_of
from grading.register.standing import Standing, possible
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.checks.verdict import FAULT, NOT_ATTEMPTED, PASSED

PRINTED_CHARS, PRINTED_LINES = 1200, 16  # of what a failed case printed


def feedback(week: Week, standing: Standing, comments: Mapping[str, str], *, printed: bool = True) -> str:
    """The page as HTML.

    comments   task -> what a person wrote, as the student reads it
    printed    whether to show what the student's code printed at a failed case"""
    mark = mark_of(standing)
    tasks = [
        _task(task, standing, week, printed, comments.get(task["id"], "")) for task in mark.tasks if not untouched(task)
    ]
    return page.render(
        "feedback.html.j2",
        week=week,
        standing=standing,
        mark=mark,
        tasks=tasks,
        attempt=attempt_of(standing),
        received=_when(standing.counted.received if standing.counted else None),
        possible=possible(mark.tasks),
        automatic=possible(mark.tasks, "auto"),
        written=possible(mark.tasks, "written"),
        next=what_next(week, standing),
    )


def attempt_of(standing: Standing) -> str:
    """ "attempt 2 of 3"; of one alone "attempt 1"."""
    assert standing.counted is not None
    numbers = standing.counted.attempts
    place = numbers.index(standing.counted.submission.id) + 1
    return f"attempt {place}" + (f" of {len(numbers)}" if len(numbers) > 1 else "")


def what_next(week: Week, standing: Standing) -> list[str]:
    """What to do, first where most points are open: sentences, with code between backticks. Nothing for who is excused."""
    if standing.excused:
        return []
    out = []
    if not standing.settled:
        out.append(
            "Nothing for the moment about what the grader could not judge: a human will look, and you lose "
            "nothing by it."
        )
    short = [task for task in standing.tasks if (standing.points(task) or 0) < task["possible"]]
    overruled = [task for task in short if standing.overruled(task)]
    open_tasks = [t for t in short if t["kind"] == "auto" and t not in overruled and not standing.doubtful(t)]
    written = [task for task in short if task["kind"] == "written" and standing.points(task) is not None]
    lost = [*written, *overruled]
    for task in sorted([*open_tasks, *lost], key=lambda task: (standing.points(task) or 0) - task["possible"]):
        missing = f"{number(task['possible'] - (standing.points(task) or 0))} of {number(task['possible'])} points"
        groups = grouped(task["cases"])
        if standing.unanswered(task):
            out.append(f"Task {task['id']}, {task['title']}: nothing was handed in, and {missing} are open.")
        elif task in lost:
            given = standing.by_hand.get(task["id"])
            out.append(
                f"Task {task['id']}, {task['title']}: a person gave {page.of(standing.points(task), task['possible'])}"
                + ("; read the comment below." if given is not None and given.comment else ".")
            )
        elif all(case["verdict"] == NOT_ATTEMPTED for case in task["cases"]) and task["cases"]:
            out.append(f"Task {task['id']}, {task['title']}, is still blank: {missing}.")
        elif len(groups) == 1 and len(groups[0][0]["cause"]) == 1 and len(groups[0][0]["cause"][0]) < 160:
            out.append(
                f"Task {task['id']}, {task['title']}: {missing} are open, and one mistake explains all of them: "
                f"{page.here(groups[0][0]['cause'][0]).rstrip('.')}."
            )
        else:
            out.append(
                f"Task {task['id']}, {task['title']}: {missing} are open; read "
                f"{'the diagnosis' if len(groups) < 2 else f'the {len(groups)} diagnoses'} below."
            )
    if open_tasks:
        names = " ".join(task["id"] for task in open_tasks)  # in the week's order: the later stand on the earlier
        out.append(
            f"`lab check {names}` runs the same checks on your machine, each time with new data. Fix one task, "
            "check it, then the next."
        )
    elif standing.settled and not overruled:
        tried = {task["id"] for task in standing.tasks if not untouched(task)}
        stretch = [task.id for task in week.tasks if task.kind == "stretch" and task.id not in tried]
        out.append(
            "Every automatic point is yours. "
            + (
                f"If you liked it: the stretch tasks {page.join(stretch)} give no points and are worth it; `lab check "
                f"{stretch[0]}` checks the first."
                if stretch
                else "There is nothing to fix."
            )
        )
    if standing.ungraded:
        out.append(
            f"Task {page.join(standing.ungraded)} is graded by a person, who has not done it yet: these points follow."
        )
    if standing.looked_at_again:
        out.append(
            f"Task {page.join(standing.looked_at_again)}: a person looks again at the points given by hand, which may "
            "change."
        )
    return out


def _task(task: dict[str, Any], standing: Standing, week: Week, printed: bool, comment: str) -> dict[str, Any]:
    """What the page shows of one task."""
    cases = task["cases"]
    verdicts = {case["verdict"] for case in cases}
    points = standing.points(task)
    earned = task["points"] if points is None and task["kind"] == "auto" else points
    return {
        **task,
        "earned": earned,
        "at_least": points is None and task["kind"] == "auto",
        "share": 100 * (earned or 0) / task["possible"] if task["possible"] else 0,
        "word": _word(task, verdicts, points, standing.unanswered(task)),
        "overruled": standing.overruled(task),
        "mark": task["points"],
        "stands_on": week.task(task["id"]).stands_on if task["id"] in week else (),
        "passed": [case["behaviour"] for case in cases if case["verdict"] == PASSED],
        "blanks": list(dict.fromkeys(case["text"] for case in cases if case["verdict"] == NOT_ATTEMPTED)),
        "faults": [case["behaviour"] for case in cases if case["verdict"] == FAULT],
        "diagnoses": [_diagnosis(group, printed, _worth(group, task)) for group in grouped(cases)],
        "comment": comment,
    }


def _when(time: datetime | None) -> str:
    """ "2026-11-20 18:00 (UTC+01:00)"; "" for no time."""
    return time.strftime("%Y-%m-%d %H:%M") + (f" ({time.tzname()})" if time.tzinfo else "") if time else ""


def _word(task: dict[str, Any], verdicts: set[str], points: float | None, unanswered: bool) -> str:
    if task["kind"] == "written":
        return "not graded yet" if points is None else "nothing handed in" if unanswered else "by hand"
    if FAULT in verdicts:
        return "a human will look"
    if len(verdicts) > 1:
        return "partly" if PASSED in verdicts else "failed"
    return verdicts.pop() if verdicts else "not run"


def _worth(group: list[dict[str, Any]], task: dict[str, Any]) -> int | float:
    """Points that these cases hold. Each case's are rounded, so their share of all is taken: three of 1.33 are 4."""
    every = sum(case["possible"] for case in task["cases"])
    return number(task["possible"] * sum(case["possible"] for case in group) / every) if every else 0


def _diagnosis(group: list[dict[str, Any]], printed: bool, worth: float) -> dict[str, Any]:
    """One mistake, with the behaviours that it breaks."""
    said = next((case["printed"] for case in group if case["printed"].strip()), "") if printed else ""
    return {
        "verdict": group[0]["verdict"],
        "behaviours": [page.visible(case["behaviour"], 300, 2) for case in group],
        "points": worth,
        "text": page.visible(page.here(group[0]["text"])),
        "printed": page.visible(page.here(said), PRINTED_CHARS, PRINTED_LINES).rstrip(),
    }
