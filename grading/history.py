"""What became of a mark that was made anew: before, after, and why, in a file beside it. Nothing changes silently.

marks/week13/anna/1.history.jsonl   a line for each time that attempt 1 was graded anew
marks/week13/anna/1.before.json     the old mark, while a new one is being made: a run that is killed between the
                                    mark and its line leaves it, and the next run writes the line
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grading import marks
from grading.files import put
from grading.marks import Mark
from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT, PASSED
from labkit.errors import LabError

BEFORE, HISTORY = ".before.json", ".history.jsonl"
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
    """One attempt that was graded anew.

    when, because   the time, and what the instructor gave as the reason; "" if nothing was said
    found           reasons that the marks themselves tell: what was handed in, tests, software, or the seed is another
    tasks           those that came out otherwise; [] if none did
    """

    student: str
    attempt: int
    when: str
    found: list[str]
    because: str = ""
    asked: list[str] = field(default_factory=list)
    points: tuple[float, float] = (0, 0)
    tasks: list[Task] = field(default_factory=list)

    @property
    def why(self) -> str:
        return "; ".join([*([self.because] if self.because else []), *self.found])


def begin(folder: Path, mark: Mark, because: str = "", asked: Sequence[str] = ()) -> None:
    """Keep a mark that is about to be replaced, with why. Its file stays what it is."""
    path = _beside(folder, mark, BEFORE)
    put(path, json.dumps({"mark": asdict(mark), "because": because, "asked": list(asked)}).encode(), 0o600)


def settle(folder: Path, assignment: str) -> list[Change]:
    """Write the lines of all attempts that were begun and have a new mark; whatever else was begun is forgotten."""
    found = []
    for path in sorted((folder / assignment).glob(f"*/*{BEFORE}")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            old = Mark(**data["mark"])
            new = marks.read(marks.path_of(folder, assignment, old.student, old.attempt))
        except (OSError, ValueError, KeyError, TypeError, LabError):
            path.unlink()  # cut short before anything was graded, or its mark is gone
            continue
        if new.finished != old.finished or new.key != old.key or _without_times(new) != _without_times(old):
            change = compare(old, new, data["because"], data["asked"])
            line = json.dumps(asdict(change), ensure_ascii=False) + "\n"
            with open(
                os.open(_beside(folder, old, HISTORY), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a"
            ) as file:
                file.write(line)
            found.append(change)
        path.unlink()
    return found


def compare(old: Mark, new: Mark, because: str = "", asked: Sequence[str] = ()) -> Change:
    """What is other in the new mark of one attempt, and what explains it."""
    found = [
        words
        for words, differs in (
            ("the grader had failed", not old.complete),
            ("what was handed in is read otherwise", old.submission != new.submission),
            ("the week's tests or files changed", old.tests != new.tests),
            ("the grader or its software changed", old.environment != new.environment),
            ("another seed", old.seed != new.seed),
        )
        if differs
    ]
    before = {task["id"]: task for task in old.tasks}
    tasks = []
    for task in new.tasks:
        was = before.pop(task["id"], {"points": None, "cases": []})
        cases = _cases(was, task)
        if cases or was["points"] != task["points"]:
            tasks.append(Task(task["id"], was["points"], task["points"], tuple(cases)))
    tasks += [Task(id, task["points"], None) for id, task in before.items()]
    return Change(
        new.student, new.attempt, new.finished, found, because, list(asked), (old.points, new.points), tasks
    )  # fmt: skip


def _cases(was: dict[str, Any], task: dict[str, Any]) -> list[tuple[str, str, str]]:
    old = {case["test"]: case for case in was["cases"]}
    new = {case["test"]: case for case in task["cases"]}
    return [
        (
            (new.get(test) or old[test])["behaviour"],
            old[test]["verdict"] if test in old else NOT_THERE,
            new[test]["verdict"] if test in new else NOT_THERE,
        )
        for test in dict.fromkeys([*old, *new])
        if test not in old or test not in new or old[test]["verdict"] != new[test]["verdict"]
    ]


def of(folder: Path, assignment: str, student: str) -> list[Change]:
    """All changes of a student's marks, the oldest first. LabError for a damaged file."""
    found = []
    for path in sorted((folder / assignment / marks.quoted(student)).glob(f"*{HISTORY}")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                data = json.loads(line)
                tasks = [Task(**{**task, "cases": tuple(map(tuple, task["cases"]))}) for task in data.pop("tasks")]
                found.append(Change(**{**data, "points": tuple(data["points"])}, tasks=tasks))
            except (ValueError, KeyError, TypeError):
                raise LabError(f"{path} is damaged: take the broken line out of it") from None
    return sorted(found, key=lambda change: change.when)


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


def sentences(change: Change, short: bool = False) -> Iterator[str]:
    """A change for people: one line, then a line for each case; `short`: for all cases of which the same became."""
    if not change.tasks:
        of = f"{', '.join(change.asked)} judged anew: " if change.asked else ""
        yield f"{change.student}, attempt {change.attempt}: {of}nothing changed ({change.why or 'graded anew'})"
    for task in change.tasks:
        if task.before is None and all(before == NOT_THERE for _, before, _ in task.cases):
            passed = sum(after == PASSED for _, _, after in task.cases)
            yield (
                f"{change.student}, attempt {change.attempt}: {task.id} judged for the first time: {passed} of "
                f"{len(task.cases)} cases pass"
            )
            continue
        if task.after is None and task.before == 0 and not task.cases:  # a stretch task, which a whole run leaves out
            yield f"{change.student}, attempt {change.attempt}: {task.id} is judged no more until `--task {task.id}`"
            continue
        yield (
            f"{change.student}, attempt {change.attempt}: {task.id} from {_points(task.before)} to "
            f"{_points(task.after)} ({change.why or 'graded anew'})"
        )
        alike: dict[tuple[str, str], list[str]] = {}
        for behaviour, before, after in task.cases:
            alike.setdefault((before, after), []).append(behaviour)
        for (before, after), cases in alike.items():
            for behaviour in cases[:1] if short else cases:
                more = f", and {len(cases) - 1} more" if short and len(cases) > 1 else ""
                yield f"    {behaviour}{more}: {before}, now {after}"


def _points(value: float | None) -> str:
    return "none" if value is None else f"{number(value)}"


def _beside(folder: Path, mark: Mark, end: str) -> Path:
    return marks.path_of(folder, mark.assignment, mark.student, mark.attempt).with_suffix(end)


def _without_times(mark: Mark) -> dict[str, Any]:
    return {name: value for name, value in asdict(mark).items() if name not in ("seconds", "core_seconds", "finished")}
