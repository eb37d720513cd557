"""What a check found, as data: cases, points, diagnoses. The table, the JSON and the grader read nothing else."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from labkit.checks.tasks import Task, Week
from labkit.checks.verdict import FAULT, PASSED, cause_line


@dataclass(frozen=True)
class CaseResult:
    """One case of one test. `possible` is exact: the shares of three cases of 10 points add up to 10."""

    task: str
    test: str  # pytest's node id, for a rerun
    title: str  # what its test looks at, in words
    case: str  # which case of it; "" for a test without cases
    possible: Fraction
    verdict: str
    text: str = ""  # the diagnosis; of a case that passed what its check notes, "" mostly
    cause: tuple[str, ...] = ()
    printed: str = ""  # what the student's code printed
    seconds: float = 0.0

    @property
    def behaviour(self) -> str:
        return f"{self.title}: {self.case}" if self.case else self.title

    @property
    def earned(self) -> Fraction:
        return self.possible if self.verdict == PASSED else Fraction(0)

    def to_json(self) -> dict[str, Any]:
        return {
            "test": self.test,
            "behaviour": self.behaviour,
            "verdict": self.verdict,
            "points": number(self.earned),
            "possible": number(self.possible),
            "seconds": round(self.seconds, 3),
            "text": self.text,
            "cause": list(self.cause),
            "printed": self.printed,
        }


@dataclass
class Outcome:
    """One run of checks: the weeks and tasks selected, with the cases that ran."""

    selection: list[tuple[Week, tuple[str, ...]]]
    seed: int
    cases: list[CaseResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tasks(self) -> list[Task]:
        return [task for week, ids in self.selection for task in week.tasks if task.id in ids]

    def of(self, task: str) -> list[CaseResult]:
        return [case for case in self.cases if case.task == task]

    @property
    def earned(self) -> Fraction:
        return points(self.cases)

    @property
    def possible(self) -> Fraction:
        """Automatic points of the tasks selected. From the registry: a case that did not run counts as not earned."""
        return sum((Fraction(str(task.points)) for task in self.tasks if task.kind == "auto"), Fraction(0))

    @property
    def full(self) -> bool:
        """Whether everything automatic that was selected is earned (a stretch task: whether all its cases passed)."""
        passed = self.earned == self.possible and all(case.verdict == PASSED for case in self.cases)
        return passed and all(self.of(task.id) for task in self.tasks if task.kind != "written")

    @property
    def faults(self) -> list[CaseResult]:
        """Cases that the machinery could not judge. They are nobody's zero."""
        return [case for case in self.cases if case.verdict == FAULT]

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "points": number(self.earned),
            "possible": number(self.possible),
            "full": self.full,
            "seconds": round(self.seconds, 3),
            "tasks": [
                {
                    "id": task.id,
                    "title": task.title,
                    "kind": task.kind,
                    "cell": task.cell,
                    "points": number(points(self.of(task.id))) if task.kind != "written" else None,
                    "possible": task.points,
                    "cases": [case.to_json() for case in self.of(task.id)],
                }
                for task in self.tasks
            ],
        }

    def __repr__(self) -> str:
        if not self.possible and self.cases:  # a stretch task
            passed = sum(case.verdict == PASSED for case in self.cases)
            return f"{passed} of {len(self.cases)} cases pass; they give no points"
        return f"{number(self.earned)} of {number(self.possible)} automatic points"


# In a sentence: ranks, and numbers that are no line of a file, no part of a name and no "N-1".
_RANK = re.compile(r"\b([Rr])anks? \d+(?:(?:, | and | to )\d+)*")
_NUMBER = re.compile(r"(?<![\w.:+-])\d[\d.e]*\b")


def gist(sentence: str) -> str:
    """What is said of one mistake by every rank and every case: without ranks and lengths."""
    return _NUMBER.sub("#", _RANK.sub(r"\1ank #", sentence))


def decided(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """The cases; where one could not choose between causes, its task's others choose, if only one fits them all."""
    certain: dict[str, set[str]] = {}
    for task in {case.task for case in cases}:
        named = [set(map(gist, case.cause)) for case in cases if case.task == task]
        sure = certain[task] = set().union(*(causes for causes in named if len(causes) == 1))
        open_ = [causes for causes in named if len(causes) > 1 and not causes & sure]
        common = set.intersection(*open_) if len(open_) > 1 else set()
        if len(common) == 1:
            sure |= common
    chosen = []
    for case in cases:
        fits = [cause for cause in case.cause if gist(cause) in certain[case.task]]
        if len(case.cause) > 1 and len(fits) == 1:
            line = f"{cause_line((fits[0],))} (by the other cases: this one would fit others too)"
            case = replace(case, cause=(fits[0],), text=case.text.replace(cause_line(case.cause), line))
        chosen.append(case)
    return chosen


def points(cases: Sequence[CaseResult]) -> Fraction:
    return sum((case.earned for case in cases), Fraction(0))


def number(value: Fraction | float) -> int | float:
    """Points as people write them: 6, 1.5, 3.33. Half a hundredth is rounded up, as by hand: 77.175 is 77.18."""
    rounded = math.copysign(math.floor(100 * abs(float(value)) + 0.5 + 1e-7) / 100, value)
    return int(rounded) if rounded == int(rounded) else rounded
