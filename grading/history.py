"""What became of a mark that was made again: before, after, and why. Nothing changes silently."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grading.mark import Mark, in_words
from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT, PASSED

NOT_THERE = "not there"  # a case's verdict, before or after


@dataclass(frozen=True)
class Task:
    """A task whose points or verdicts are others now. `cases`: behaviour, verdict before, verdict after."""

    id: str
    before: float | None
    after: float | None
    cases: tuple[tuple[str, str, str], ...] = ()


@dataclass
class Change:
    """One submission that was graded again.

    when, because   the time, and what the instructor gave as the reason; "" if nothing was said
    found           reasons that the marks themselves tell: what was handed in, tests, software, or the seed is another
    requested       the tasks that alone were judged again; [] for all
    tasks           those that came out otherwise; [] if none did
    """

    submission: int
    when: str
    found: list[str]
    because: str = ""
    requested: list[str] = field(default_factory=list)
    points: tuple[float, float] = (0, 0)
    tasks: list[Task] = field(default_factory=list)

    @property
    def why(self) -> str:
        return "; ".join([*([self.because] if self.because else []), *self.found])


def compare(old: Mark, new: Mark, because: str = "", requested: Sequence[str] = ()) -> Change:
    """What is other in the new mark of one submission, and what explains it."""
    reasons = {
        "the grader had failed": not old.complete,
        "what was handed in is read otherwise": old.content != new.content,
        "the week's tests or files changed": old.tests != new.tests,
        "the grader or its software changed": old.environment != new.environment,
        "another seed": old.seed != new.seed,
    }
    found = [words for words, differs in reasons.items() if differs]
    before = {task["id"]: task for task in old.tasks}
    tasks = []
    for task in new.tasks:
        was = before.pop(task["id"], {"points": None, "cases": []})
        cases = _cases(was, task)
        if cases or was["points"] != task["points"]:
            tasks.append(Task(task["id"], was["points"], task["points"], tuple(cases)))
    tasks += [Task(id, task["points"], None) for id, task in before.items()]
    points = (old.points, new.points)
    return Change(new.submission, new.finished, found, because, list(requested), points, tasks)


def _cases(was: dict[str, Any], task: dict[str, Any]) -> list[tuple[str, str, str]]:
    old, new = ({case["test"]: case for case in of["cases"]} for of in (was, task))
    found = []
    for test, case in (old | new).items():
        before, after = (cases[test]["verdict"] if test in cases else NOT_THERE for cases in (old, new))
        if before != after:
            found.append((case["behaviour"], before, after))
    return found


def merged(old: Mark, new: Mark) -> Mark:
    """The old mark with the tasks that the new one holds: in place of its own, or, if it had none (a stretch task),
    behind them. Its key is the old one's only if nothing it stands for has changed: else no later run takes it for a
    whole mark of today's tests."""
    fresh = {task["id"]: task for task in new.tasks}
    tasks = [fresh.get(task["id"], task) for task in old.tasks]
    tasks += [task for task in new.tasks if task["id"] not in {task["id"] for task in old.tasks}]
    auto = [task for task in tasks if task["kind"] == "auto"]
    other = [sentence for sentence in old.attention if not sentence.startswith(tuple(f"{id} " for id in fresh))]
    return replace(
        old,
        tasks=tasks,
        points=number(sum(task["points"] or 0 for task in auto)),
        complete=not any(case["verdict"] == FAULT for task in tasks for case in task["cases"]),
        attention=[*other, *(one for one in new.attention if one not in other)],
        key=new.key if new.key == old.key else f"in part {new.key}",
        tests=new.tests,
        environment=new.environment,
        seed=new.seed,
        finished=new.finished,
    )


def of_task(changes: Iterable[Change], task: str | None) -> list[Change]:
    """Each time that this task was judged again, changed by that or not, and what became of it; None: any task."""
    if task is None:
        return list(changes)
    theirs = [change for change in changes if task in change.requested or not change.requested]
    return [replace(change, tasks=[one for one in change.tasks if one.id == task]) for change in theirs]


def sentences(change: Change, short: bool = False, name: str = "") -> Iterator[str]:
    """A change for people: one line, then a line for each case; `short`: for all cases of which the same became. name:
    whose submission it is."""
    whose, why = name or f"submission {change.submission}", change.why or "graded again"
    if not change.tasks:
        of = f"{', '.join(change.requested)} judged again: " if change.requested else ""
        yield f"{whose}: {of}nothing changed ({why})"
    for task in change.tasks:
        if task.before is None and all(before == NOT_THERE for _, before, _ in task.cases):
            passed = sum(after == PASSED for _, _, after in task.cases)
            yield f"{whose}: {task.id} judged for the first time: {passed} of {len(task.cases)} cases pass"
            continue
        if task.after is None and task.before == 0 and not task.cases:  # a stretch task, which a whole run leaves out
            yield f"{whose}: {task.id} is judged no more until `--task {task.id}`"
            continue
        yield f"{whose}: {task.id} from {in_words(task.before)} to {in_words(task.after)} ({why})"
        alike: dict[tuple[str, str], list[str]] = {}
        for behaviour, before, after in task.cases:
            alike.setdefault((before, after), []).append(behaviour)
        for (before, after), cases in alike.items():
            for behaviour in cases[:1] if short else cases:
                more = f", and {len(cases) - 1} more" if short and len(cases) > 1 else ""
                yield f"    {behaviour}{more}: {before}, now {after}"
