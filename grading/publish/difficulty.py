"""How the tasks did as questions: difficulty, discrimination, attempts against points, and what to teach again.

    difficulty       the mean share of a task's points, of those who tried it (classical test theory calls it p)
    discrimination   Pearson's correlation of that share with the share of all other points: do those who do well
                     elsewhere do well here? With its 95 % interval by Fisher's z. An interval that holds 0 says nothing
                     yet. One that lies below 0 says that something is wrong with the task or its checks: look at it
    attempts         Spearman's rank correlation of how often a student handed in with the points that count

What was not handed in, or was left as a hole, is not counted as tried; nor is what a person must look at.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import correlation, fmean, median
from typing import Any

from grading.publish.mistakes import behaviours
from grading.publish.overview import Overview, mark_of, tried
from grading.register.standing import Standing
from labkit.checks.verdict import NOT_ATTEMPTED, UNKNOWN

FEW = 10  # students: a correlation of fewer is noise
Z95 = 1.96


@dataclass
class Question:
    """One task as a question. `causes`: the most common mistakes in words, with how many students made each."""

    id: str
    title: str
    tried: int
    difficulty: float | None
    discrimination: float | None = None
    interval: tuple[float, float] | None = None
    causes: list[tuple[str, int]] = field(default_factory=list)

    @property
    def suspect(self) -> bool:
        """Those who do well elsewhere do worse here, beyond chance."""
        return self.interval is not None and self.interval[1] < 0


@dataclass
class Questions:
    """All tasks of a week in their order.

    by_attempts   (attempts, students, median of the automatic points)
    attempts      rank correlation of attempts with points; None if everybody handed in equally often
    """

    tasks: list[Question]
    by_attempts: list[tuple[int, int, float]]
    attempts: float | None

    @property
    def again(self) -> list[Question]:
        """What to teach again: the tasks of which those who tried lost most, the worst first."""
        lost = [task for task in self.tasks if task.difficulty is not None and task.difficulty < 1]
        return sorted(lost, key=lambda task: (task.difficulty or 0) - 1)[:3]


def questions(overview: Overview) -> Questions:
    """Count a class."""
    week, standings = overview.week, overview.standings
    shares = [_shares(week, standing) for standing in standings]
    found = []
    for task in week.tasks:
        if task.kind == "stretch":
            continue
        pairs = []
        for own in shares:
            rest = [(share, points) for id, (share, points) in own.items() if id != task.id]
            if task.id in own and rest:
                pairs.append((own[task.id][0], sum(s * p for s, p in rest) / sum(p for _, p in rest)))
        here = [own[task.id][0] for own in shares if task.id in own]
        r = _correlation(pairs)
        interval = _interval(r, len(pairs)) if r is not None else None
        mean, causes = fmean(here) if here else None, _causes(standings, week, task.id)
        found.append(Question(task.id, task.title, len(here), mean, r, interval, causes))
    return Questions(found, *_attempts(standings))


def _shares(week: Any, standing: Standing) -> dict[str, tuple[float, float]]:
    """task -> (share of its points, its points) of what a student tried and what is decided."""
    found = {}
    for task in tried(week, standing):
        points, possible = standing.points(task), task["possible"]
        left = task["cases"] and all(case["verdict"] == NOT_ATTEMPTED for case in task["cases"])
        skipped = left or task["kind"] == "stretch" or task["id"] in mark_of(standing).unanswered
        if points is not None and possible and not skipped:
            found[task["id"]] = (points / possible, possible)
    return found


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    if len(pairs) < FEW or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return max(-1.0, min(1.0, correlation(first, second)))


def _interval(r: float, many: int) -> tuple[float, float]:
    """95 % of a correlation, by Fisher's z = atanh r, whose standard error is 1 / sqrt(n - 3)."""
    z, wide = math.atanh(max(-0.999999, min(0.999999, r))), Z95 / math.sqrt(many - 3)
    return math.tanh(z - wide), math.tanh(z + wide)


def _causes(standings: Sequence[Standing], week: Any, id: str) -> list[tuple[str, int]]:
    """The mistakes of a task in words, each student counted once for each."""
    words: dict[str, str] = {}
    many: Counter[str] = Counter()
    for standing in standings:
        own = [task for task in tried(week, standing) if task["id"] == id]
        made = {}
        for entry in behaviours([own]):
            made.update({key: entry.words[key] for key in entry.mistakes})
        made = {key: said for key, said in made.items() if not key.endswith(UNKNOWN)} or made
        words |= made
        many.update(made.keys())
    return [(words[key], count) for key, count in many.most_common(3)]


def _attempts(standings: Sequence[Standing]) -> tuple[list[tuple[int, int, float]], float | None]:
    groups: dict[int, list[float]] = {}
    for standing in standings:
        if standing.settled:
            many = len(standing.counted.attempts) if standing.counted else 0
            groups.setdefault(many, []).append(float(standing.automatic))
    pairs = [(float(many), points) for many, theirs in groups.items() for points in theirs]
    ranked = list(zip(_ranks([a for a, _ in pairs]), _ranks([b for _, b in pairs])))
    return [(many, len(theirs), median(theirs)) for many, theirs in sorted(groups.items())], _correlation(ranked)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(values)
    place = {value: order.index(value) + (order.count(value) + 1) / 2 for value in set(values)}
    return [place[value] for value in values]
