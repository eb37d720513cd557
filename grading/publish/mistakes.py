"""Cases that tell the same mistake, and how often a class made it. From marks alone; nothing here draws or prints.

One mistake often breaks several cases of several tests, and an autopsy's words hold line numbers and ranks. So cases
are put together by what was recognised, not by the exact words.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grading.publish.page import one_line
from labkit.checks.outcome import gist
from labkit.checks.verdict import FAULT, HUNG, NOT_ATTEMPTED, PASSED, UNKNOWN, WRONG

CaseData = dict[str, Any]  # as CaseResult.to_json gives it

# A path is looked for from each of a text's characters, and a student may have written the text: so not for ever.
_PLACE = re.compile(r" ?(?:at )?\(?[^\s()]{0,200}\.py:\d+\)?")
_RANKS = re.compile(r"\b[Rr]ank(s?) \d+(?:(?:, | and )\d+)*")
_NUMBER = re.compile(r"(?<![\w.+-])\d[\d.e]*\b")
_ADVICE = re.compile(r"(?<=\. )[A-Za-z][^.]*: [^.]*\.?$")  # "Ragged chunks differ in length: like= must be ..."


def failed(case: CaseData) -> bool:
    """It ran and was judged, and not passed. A blank and a fault of the grader are no failures."""
    return case["verdict"] not in (PASSED, NOT_ATTEMPTED, FAULT)


def untouched(task: dict[str, Any]) -> bool:
    """A stretch task that was not attempted, or not judged: nobody asked for it, so it is no finding."""
    return task["kind"] == "stretch" and all(case["verdict"] == NOT_ATTEMPTED for case in task["cases"])


def title(case: CaseData) -> str:
    """The behaviour without which case of it: "Other operations: mean" -> "Other operations"."""
    which = re.search(r"\[(.*)\]$", case["test"], re.S)
    return case["behaviour"].removesuffix(f": {which[1]}") if which else case["behaviour"]


def grouped(cases: Iterable[CaseData]) -> list[list[CaseData]]:
    """Failed cases, those of one mistake together, in the order they came. Hangs are one mistake: words hold times."""
    groups: dict[tuple, list[CaseData]] = {}
    for case in cases:
        if failed(case):
            what = () if case["verdict"] == HUNG else tuple(map(gist, case["cause"] or [case["text"]]))
            groups.setdefault((case["verdict"], what), []).append(case)
    return list(groups.values())


@dataclass
class Mistake:
    """One mistake: equal keys are the same, of whichever student. words: it in one line; example: one diagnosis of it, word
    for word; who: places in the class of those who made it."""

    key: str
    words: str
    example: str
    who: set[int] = field(default_factory=set)

    @property
    def recognised(self) -> bool:
        return not self.key.endswith(UNKNOWN)


def mistake(case: CaseData) -> Mistake:
    """What a failed case tells.

    A recognised cause is a fixed sentence, in which only lengths differ from case to case. What an autopsy says is
    full of ranks, places and times: those are taken out of its first sentence, and the advice at its end is kept."""
    if not case["cause"] and case["verdict"] == WRONG:
        words = f"{WRONG}, {UNKNOWN}"
    elif len(case["cause"]) > 1:
        words = "one of: " + "; or ".join(case["cause"])
    elif case["cause"] and case["verdict"] == WRONG:
        words = case["cause"][0]
    else:
        words = _autopsy(case["cause"][0] if case["cause"] else one_line(case["text"], 1000))
    return Mistake(_NUMBER.sub("#", words), words, case["text"])


def _autopsy(text: str) -> str:
    text = _RANKS.sub(lambda rank: "some ranks" if rank[1] else "a rank", _PLACE.sub("", text.partition("\n\n")[0]))
    advice = _ADVICE.search(text)
    first = re.split(r"(?<=\w)\. (?=[A-Za-z])|: a rank waits|, a rank in ", text, maxsplit=1)[0].strip(" .")
    words = re.sub(r" \([\d,.]+ bytes\)", "", _capital(first))
    return f"{words}. {_capital(advice[0])}" if advice and advice[0] not in words else words


def _capital(text: str) -> str:
    """A sentence's begin. A name of a file or a function stays as it is."""
    return text if re.match(r"\w*[._(]", text) else text[:1].upper() + text[1:]


@dataclass
class Behaviour:
    """How a class did at one behaviour (one test, all its cases). Students are places in the class.

    judged      those of whom the machinery can say something, without grader faults, which `faults` counts
    failed      at least one case ran and did not pass; untried: it is still a blank
    made        key of a mistake -> the mistake
    also        titles of further behaviours that fail with it, and are counted here: see `by_mistake`
    """

    task: str
    title: str
    judged: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    untried: set[int] = field(default_factory=set)
    faults: int = 0
    made: dict[str, Mistake] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)

    def share(self, students: set[int]) -> float:
        """Share of the judged."""
        return len(students) / len(self.judged) if self.judged else 0.0

    @property
    def mistakes(self) -> list[Mistake]:
        """The most common first."""
        return sorted(self.made.values(), key=lambda one: (-len(one.who), not one.recognised))

    @property
    def typical(self) -> Mistake | None:
        """The most common mistake; one of a known cause, if there is any."""
        return min(self.made.values(), key=lambda one: (not one.recognised, -len(one.who)), default=None)


def behaviours(tasks_of_students: Iterable[Sequence[dict[str, Any]]]) -> list[Behaviour]:
    """All behaviours, the one that most students failed first; then the less tried first."""
    found: dict[tuple[str, str], Behaviour] = {}
    for student, tasks in enumerate(tasks_of_students):
        for task in tasks:
            tests: dict[str, list[CaseData]] = {}
            for case in task["cases"]:
                tests.setdefault(case["test"].partition("[")[0], []).append(case)
            for test, cases in tests.items():
                entry = found.setdefault((task["id"], test), Behaviour(task["id"], title(cases[0])))
                _count(entry, cases, student)
    return _ranked(found.values())


def by_mistake(found: Iterable[Behaviour]) -> list[Behaviour]:
    """The behaviours, those of a task as one that the same students failed or left as a blank, or in which one
    recognised mistake is what most of the failed did. Else a single slip of the class would stand there five times."""
    same: dict[tuple, list[Behaviour]] = {}
    for entry in found:
        failed = frozenset(entry.failed)
        which = (failed,) if failed else (failed, frozenset(entry.untried), entry.faults)
        same.setdefault((entry.task, *which), []).append(entry)
    groups: dict[tuple, list[Behaviour]] = {}
    for place, entry in enumerate(map(_together, same.values())):
        typical = entry.typical
        shared = typical and typical.recognised and 2 * len(typical.who) > len(entry.failed)
        groups.setdefault((entry.task, typical.key if typical and shared else place), []).append(entry)
    return _ranked(_together(group) for group in groups.values())


def _together(group: list[Behaviour]) -> Behaviour:
    if len(group) == 1:
        return group[0]
    whole = Behaviour(group[0].task, group[0].title)
    whole.also = [title for entry in group for title in (entry.title, *entry.also)][1:]
    for entry in group:
        whole.faults = max(whole.faults, entry.faults)
        whole.judged |= entry.judged
        whole.failed |= entry.failed
        whole.untried |= entry.untried
        for key, one in entry.made.items():
            whole.made.setdefault(key, Mistake(key, one.words, one.example)).who |= one.who
    whole.untried -= whole.failed
    # As within a behaviour: one mistake recognised at one of them is not unknown at the next.
    known = {student for one in whole.made.values() if one.recognised for student in one.who}
    for key, one in list(whole.made.items()):
        if not one.recognised:
            one.who -= known
        if not one.who:
            del whole.made[key]
    return whole


def _ranked(found: Iterable[Behaviour]) -> list[Behaviour]:
    return sorted(found, key=lambda entry: (-len(entry.failed), -len(entry.untried)))


def _count(entry: Behaviour, cases: list[CaseData], student: int) -> None:
    wrong = [case for case in cases if failed(case)]
    if not wrong and any(case["verdict"] == FAULT for case in cases):
        entry.faults += 1
        return
    entry.judged.add(student)
    if not wrong:
        if any(case["verdict"] == NOT_ATTEMPTED for case in cases):
            entry.untried.add(student)
        return
    entry.failed.add(student)
    made = [mistake(case) for case in wrong]
    for one in [one for one in made if one.recognised] or made:  # recognised at one case, it is not unknown at the next
        entry.made.setdefault(one.key, one).who.add(student)
