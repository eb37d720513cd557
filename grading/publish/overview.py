"""The class in numbers and lists: what it has not understood, how it did, whom to look at. The page and its figures
read it."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grading.mark import Mark
from grading.publish import page
from grading.publish.mistakes import Behaviour, behaviours, by_mistake, untouched
from grading.register.standing import MISSING, Standing, possible
from labkit.checks.tasks import Week
from labkit.checks.verdict import CRASHED, FAULT, FORBIDDEN, HUNG, NO_RESULT, NOT_ATTEMPTED, OUT_OF_MEMORY

SLOWEST = 10  # rows


@dataclass(frozen=True)
class Incident:
    """One student, one task, one verdict: how many cases, where first, and the diagnosis' first line."""

    student: str
    task: str
    verdict: str
    cases: int
    behaviour: str
    words: str


@dataclass
class Overview:
    """What the class's page says, as data."""

    week: Week
    standings: list[Standing]
    behaviours: list[Behaviour]
    incidents: list[Incident]
    absent: list[str] = field(default_factory=list)  # names of those who submitted nothing, and whose deadline passed

    @property
    def grouped(self) -> list[Behaviour]:
        """The behaviours; what fails together is one."""
        return by_mistake(self.behaviours)

    @property
    def not_understood(self) -> list[Behaviour]:
        return [entry for entry in self.grouped if entry.failed]

    @property
    def doubtful(self) -> list[Standing]:
        """Those whom a person must look at: the grader failed somewhere."""
        return [s for s in self.standings if not s.settled or (mark_of(s).attention and not mark_of(s).complete)]

    @property
    def noted(self) -> list[Standing]:
        """Those of whose submission something is to be known, a size say; the grader did not fail."""
        return [s for s in self.standings if mark_of(s).attention and s not in self.doubtful and not s.unsandboxed]

    @property
    def slowest(self) -> list[Standing]:
        return sorted(self.standings, key=lambda s: -mark_of(s).seconds)[:SLOWEST]

    @property
    def automatic(self) -> list[float]:
        """Automatic points of those whose points are sure."""
        return [float(s.automatic) for s in self.standings if s.settled]

    @property
    def possible(self) -> float:
        return max((possible(s.tasks, "auto") for s in self.standings), default=0)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile of the sure automatic points."""
        values = self.automatic
        if len(values) < 2:
            only = values[0] if values else 0.0
            return only, only, only
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, median, high

    def by_task(self) -> list[dict[str, Any]]:
        """Of each task that gives points: mean share of the points, how many have all, none, a blank, no decision."""
        rows: dict[str, dict[str, Any]] = {}
        for standing in self.standings:
            for task in standing.tasks:
                if task["kind"] == "stretch":
                    continue
                about = {name: task[name] for name in ("id", "title", "kind", "possible")}
                row = rows.setdefault(task["id"], {**about, "shares": [], "full": 0, "none": 0, "open": 0})
                points = standing.points(task)
                row["open"] += points is None
                if points is not None:
                    row["shares"].append(points / task["possible"])
                    row["full"] += points >= task["possible"]
                    row["none"] += points == 0
        for row in rows.values():
            row["mean"] = statistics.fmean(row["shares"]) if row["shares"] else None
        return list(rows.values())


def overview(week: Week, standings: list[Standing]) -> Overview:
    """Count the class: those who have a mark, and are not excused."""
    graded = [one for one in standings if one.mark is not None and not one.excused]
    found = behaviours(tried(week, standing) for standing in graded)
    absent = [one.person.called for one in standings if one.state == MISSING]
    return Overview(week, graded, found, [incident for s in graded for incident in _incidents(s)], absent)


def mark_of(standing: Standing) -> Mark:
    """The mark of somebody who has one."""
    assert standing.mark is not None
    return standing.mark


def tried(week: Week, standing: Standing) -> list[dict[str, Any]]:
    """A student's tasks, where a module that was not handed in counts as not attempted: it is no misunderstanding. A
    stretch task is there only if it was attempted."""
    tasks = [task for task in standing.tasks if not untouched(task)]
    absent = {name.removesuffix(".py").replace("/", ".") for name in mark_of(standing).missing}
    if not absent:
        return tasks

    def of(task: dict[str, Any]) -> dict[str, Any]:
        if task["id"] not in week or not absent & set(week.task(task["id"]).modules):
            return task
        cases = [{**c, "verdict": NOT_ATTEMPTED} if c["verdict"] == NO_RESULT else c for c in task["cases"]]
        return {**task, "cases": cases}

    return [of(task) for task in tasks]


def _incidents(standing: Standing) -> Iterator[Incident]:
    for task in standing.tasks:
        groups: dict[str, list[dict[str, Any]]] = {}
        for case in task["cases"]:
            if case["verdict"] in (HUNG, CRASHED, OUT_OF_MEMORY, FORBIDDEN, FAULT):
                groups.setdefault(case["verdict"], []).append(case)
        for verdict, cases in groups.items():
            first, name = cases[0], standing.person.called
            words = page.one_line(page.here(first["text"]), 160)
            yield Incident(name, task["id"], verdict, len(cases), first["behaviour"], words)
