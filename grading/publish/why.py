"""`grade why`: what the record has of one student in one week, for the answer to a question."""

from rich.console import Console
from rich.text import Text

from grading import history
from grading.mark import in_words
from grading.publish import page
from grading.publish.mistakes import untouched
from grading.register.counting import handed_in
from grading.register.marks import changes, hand_history, marks_of
from grading.register.people import resolve
from grading.register.schema import Class
from grading.register.standing import Standing, standings
from grading.register.submissions import Attempt, attempt
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.checks.verdict import PASSED
from labkit.errors import LabError
from labkit.strict import nearest


def show(cls: Class, week: Week, student: str, task: str | None, console: Console) -> None:
    """Print it. LabError for somebody who is not of the class, and a task that the week does not have."""
    if task is not None and task not in week:
        owner = next((other.name for other in cls.weeks if task in other), "")
        why = f": it is of {owner}" if owner else nearest(task, [one.id for one in week.tasks])
        raise LabError(f"{week.name} has no task {task}{why}")
    who = resolve(cls, student)
    found = next((one for one in standings(cls, week) if one.person.id == who.id), None)
    if found is None:
        raise LabError(f"{who.name} left the class on {who.left_at}: a roster that has them brings them back")
    for line in lines(cls, week, found, task):
        console.print(Text(line), soft_wrap=True)


def lines(cls: Class, week: Week, standing: Standing, task: str | None = None) -> list[str]:
    """What there is. Each diagnosis stands once, below all that it is of: a missing file breaks forty cases."""
    name = page.one_line(standing.person.called, 80)
    counted = standing.counted
    if counted is None:
        return [f"{name}, {week.name}: {standing.state}", *([standing.rule] if standing.rule else [])]
    total = "no total yet" if standing.total is None else f"total {number(standing.total)}"
    found = [f"{name}, {week.name}: submission {counted.submission.id} counts, {total}, {standing.state}"]
    found += [standing.rule] if standing.rule else []
    found += [_attempt(cls, attempt(cls, number)) for number in counted.attempts]
    if standing.mark is None:
        return found
    shown_at: dict[str, str] = {}  # diagnosis -> the task at which it stands
    for one in standing.mark.tasks:
        if (task is None and not untouched(one)) or one["id"] == task:
            found += ["", *_task(standing, one, shown_at)]
    if task is not None and not any(one["id"] == task for one in standing.mark.tasks):
        found += ["", f"{task}: not judged of this submission; `grade run {week.name} --task {task}` does it"]
    given = [one for one in hand_history(cls, standing.mark.submission) if task in (None, one.task)]
    if len(given) > 1:
        found += ["", "Points by hand, in their order:"]
        found += [f"    {one.at} {one.marker}: {one.task} {in_words(one.points)}" for one in given]
    again = [
        line
        for number in counted.attempts
        for change in history.of_task(changes(cls, number), task)
        for line in (change.when, *(f"    {words}" for words in history.sentences(change)))
    ]
    return [*found, "", *(["Graded again:", *again] if again else ["It was graded once."])]


def _attempt(cls: Class, one: Attempt) -> str:
    marks, received = marks_of(cls, one.id), handed_in(cls.rules, one)
    submitted = f"submission {one.id}" + (f", handed in {received.isoformat(' ', 'minutes')}" if received else "")
    if not marks:
        return f"{submitted}: not graded yet"
    mark = marks[-1].mark
    return (
        f"{submitted}: {number(mark.points)} of {number(mark.possible)} automatic points, files {mark.content[:12]}, "
        f"graded {mark.finished}, seed {mark.seed}"
    )


def _task(standing: Standing, one: dict, shown_at: dict[str, str]) -> list[str]:
    passed = sum(case["verdict"] == PASSED for case in one["cases"])
    points = (
        f"{passed} of {len(one['cases'])} cases pass, no points"
        if one["kind"] == "stretch"
        else page.of(standing.points(one), one["possible"])
    )
    found = [f"{one['id']} {one['title']}: {points}"]
    given = standing.by_hand.get(one["id"])
    if given is not None and (given.points is not None or given.extra):
        extra = f"{number(given.extra)} extra" if given.extra else ""
        typed = "" if given.points is None else in_words(given.points)
        found.append(f"    by hand: {' and '.join(filter(None, (typed, extra)))}")
    if given is not None and given.comment:
        found.append(f"    a person wrote: {page.visible(given.comment)}")
    if standing.mark is not None and one["id"] in standing.mark.unanswered:
        found.append("    nothing was submitted")
    diagnoses: dict[tuple[str, str], list[str]] = {}
    for case in one["cases"]:
        if case["verdict"] != PASSED:
            diagnoses.setdefault((case["verdict"], case["text"]), []).append(case["behaviour"])
    for (verdict, text), behaviours in diagnoses.items():
        found += [f"    {verdict}: {page.one_line(behaviour)}" for behaviour in behaviours]
        if (before := shown_at.setdefault(text, one["id"])) != one["id"]:
            found.append(f"        as at {before}")
        else:
            found += [f"        {line}" for line in page.visible(page.here(text)).split("\n")]
    return found
