"""Which pairs of submissions share more than honest work does.

Compared are the functions that the tasks name, and nothing else. What counts is runs of K nodes of the syntax tree that
two submissions have in common, less what explains itself:

  - runs that stand in what was handed out;
  - runs that more than COMMON of all submissions have: with these tasks most people write some lines alike.

The course's own solutions take part, as one more submission: who has them has seen them. So does every attempt of a
student; of two students their most alike attempts are shown.

SHARE and ONE are measured on honest variants of two blanks of week 13, by one author, and copies of them. Two honest
ones of 50 pairs share 0.13 of their nodes at most, and in no function as many as LEAST; a copy with other names 1.00,
and one with two idle statements in each function besides 0.90 at least. A pair on the page is a reason to read.
"""

import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from grading.intake.arrange import arrange
from grading.intake.released import released_week
from grading.intake.submission import Submission
from labkit.checks.tasks import Week
from labkit.errors import LabError

K = 12  # nodes in a run: a short line, or half of a long one
SHARE = 0.5  # of the smaller submission's nodes, from which on a pair is shown
ONE = 0.9  # of a single function's nodes: who copied one function alone
LEAST = 60  # nodes that must be shared: less is a few lines, which two people do write alike
COMMON = 0.1  # of the submissions; at least FEW of them
FEW = 6
_TREES = Path(__file__).with_name("trees.py")


@dataclass
class Work:
    """One submission: its functions as fingerprints (copydetect's), and the texts that they come from.

    student     whose it is; of a group all of them
    year        "" for this class, else what the folder of an earlier one is called
    number      the submission's; 0 for a student's only one
    owners      keys of its people: two submissions that share one are not compared
    """

    student: str
    year: str
    number: int = 0
    owners: frozenset[str] = frozenset()
    texts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)
    prints: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        shown = f"{self.student}, submission {self.number}" if self.number else self.student
        return f"{shown} ({self.year})" if self.year else shown

    @property
    def person(self) -> tuple[str, str]:
        """Whose it is."""
        return self.student, self.year

    @property
    def nodes(self) -> dict[str, str]:
        """What is compared, by function."""
        return {name: str(print_.filtered_code) for name, print_ in self.prints.items()}

    @property
    def size(self) -> int:
        """Nodes that are looked at."""
        return int(sum(print_.token_coverage for print_ in self.prints.values()))


@dataclass
class Pair:
    """Two submissions that share much.

    share       of the smaller one's nodes; shared: how many nodes
    functions   (function, share of it, lines that are shared in the first, in the second): those of which LEAST nodes
                are shared first, and of these the most alike. A function of one line is alike by chance
    """

    first: Work
    second: Work
    share: float
    shared: int
    functions: list[tuple[str, float, set[int], set[int]]]
    one: float = 0.0  # the largest share of a function of which LEAST nodes are shared


@dataclass(frozen=True)
class Source:
    """A submission to be compared, under the name of whoever handed it in (see Work)."""

    submission: Submission
    year: str = ""
    number: int = 0
    owners: frozenset[str] = frozenset()


def read(week: Week, source: Source, labels: dict[str, str]) -> Work | None:
    """A submission's functions; None if none of them can be read.

    labels  a character for each label, shared by all submissions that are compared"""
    package = arrange(source.submission, week)
    paths = {module: f"{week.package}/{module.replace('.', '/')}.py" for module in package.used}
    own = {module: package.files[path] for module, path in paths.items() if path in package.files}
    work = _work(source.submission.name, source.year, _texts(own), _functions(week), labels)
    if work is not None:
        work.number, work.owners = source.number, source.owners
    return work


def given(week: Week, labels: dict[str, str]) -> dict[str, set[int]]:
    """function -> fingerprints of what students got."""
    released = released_week(week)
    texts = {module: released.files[path] for module, path in released.modules.items()}
    work = _work("", "", _texts(texts), _functions(week), labels)
    return {name: set(print_.hashes) for name, print_ in work.prints.items()} if work else {}


def _functions(week: Week) -> list[str]:
    return [name for task in week.tasks if task.kind == "auto" for name in task.functions]


def _texts(modules: Mapping[str, bytes]) -> dict[str, str]:
    return {module: data[:500_000].decode("utf-8", "replace") for module, data in modules.items()}


def _work(student: str, year: str, texts: dict[str, str], functions: list[str], labels: dict[str, str]) -> Work | None:
    from copydetect import CodeFingerprint

    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_TREES)],
            input=json.dumps({"texts": texts, "functions": functions}).encode("utf-8", "backslashreplace"),
            capture_output=True,
            timeout=60,
            check=True,
        )
        found = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None  # its parser gave up: the caller says so
    work = Work(student, year)
    for name, one in found.items():
        nodes = "".join(labels.setdefault(label, chr(0x10000 + len(labels))) for label in one["labels"])
        if len(nodes) < K:
            continue
        work.texts[name], work.lines[name] = texts[name.rpartition(".")[0]], one["lines"]
        work.prints[name] = CodeFingerprint("", K, 1, filter=False, fp=io.StringIO(nodes))
    return work if work.prints else None


def without(works: Sequence[Work], handed_out: Mapping[str, set[int]], *, habits: bool = True) -> None:
    """Take away what explains itself: what was handed out and, for `habits`, what many have."""
    from copydetect.utils import get_token_coverage

    people = len({work.person for work in works})
    most = max(FEW, int(COMMON * people)) if habits else people
    for name in {name for work in works for name in work.prints}:
        theirs: dict[tuple[str, str], set[int]] = {}
        for work in works:
            if name in work.prints:
                theirs.setdefault(work.person, set()).update(work.prints[name].hashes)
        holders = Counter(one for hashes in theirs.values() for one in hashes)
        common = {one for one, many in holders.items() if many > most} | handed_out.get(name, set())
        for work in works:
            if (own := work.prints.get(name)) is not None:
                own.hashes = own.hashes - common
                own.hash_idx = {one: places for one, places in own.hash_idx.items() if one not in common}
                own.token_coverage = get_token_coverage(own.hash_idx, K, len(own.filtered_code))


def pairs(works: Sequence[Work]) -> list[Pair]:
    """Pairs that share much, the most alike first; one of two students. Two of an earlier year are not
    compared."""
    found = [
        pair
        for first, second in combinations(works, 2)
        if first.person != second.person and not first.owners & second.owners and not (first.year and second.year)
        if (pair := alike(first, second)).shared >= LEAST and (pair.share >= SHARE or pair.one >= ONE)
    ]
    return _ordered(found)


def _ordered(found: list[Pair]) -> list[Pair]:
    """The most alike first, and of two students no more than that one."""
    most: dict[frozenset, Pair] = {}
    for pair in sorted(found, key=lambda pair: (-pair.share, -pair.shared)):
        most.setdefault(frozenset((pair.first.person, pair.second.person)), pair)
    return list(most.values())


def alike(first: Work, second: Work) -> Pair:
    """How much two submissions share."""
    from copydetect.detector import compare_files

    functions, total, most = [], 0, 0.0
    for name in first.prints:
        if name not in second.prints or not first.prints[name].hashes & second.prints[name].hashes:
            continue
        one, other = first.prints[name], second.prints[name]
        _, _, slices = compare_files(one, other)
        nodes = [_nodes(each) for each in slices]
        shared = min(len(nodes[0]), len(nodes[1]))
        total += shared
        smaller = min(one.token_coverage, other.token_coverage)
        lines = [{work.lines[name][at] for at in each} for work, each in zip((first, second), nodes)]
        share = min(1.0, shared / smaller) if smaller else 0.0
        most = max(most, share) if shared >= LEAST else most
        functions.append(((shared < LEAST, -share, -shared), (name, share, lines[0], lines[1])))
    size = min(first.size, second.size)
    ordered = [function for _, function in sorted(functions, key=lambda one: one[0])]
    return Pair(first, second, min(1.0, total / size) if size else 0.0, total, ordered, most)


def _nodes(slices: Any) -> set[int]:
    return {at for begin, end in zip(*slices) for at in range(int(begin), int(end))} if len(slices) == 2 else set()


def compare(
    week: Week,
    sources: Iterable[Source],
    *,
    ours: Submission | None = None,
    progress: Callable[[str], None] = lambda student: None,
) -> tuple[list[Pair], list[Work], list[str]]:
    """(pairs, every submission that was compared, students of whose submissions none can be read).

    sources  every submission of this class (year "") and of earlier ones
    ours     the course's own solutions; with them this class alone is compared

    LabError without a task to compare."""
    labels: dict[str, str] = {}
    if not _functions(week):
        raise LabError(f"{week.name} has no automatic task: there is nothing to compare")
    works: list[Work] = []
    people: dict[tuple[str, str], list[Work]] = {}
    for source in [*([Source(ours)] if ours else []), *sources]:
        progress(source.submission.name)
        theirs = people.setdefault((source.submission.name, source.year), [])
        if (work := read(week, source, labels)) is not None:
            theirs[:] = [*(one for one in theirs if one.nodes != work.nodes), work]
    for theirs in people.values():
        for work in theirs if len(theirs) == 1 else ():
            work.number = 0
        works += theirs
    unread = [student for (student, _), theirs in people.items() if not theirs]
    handed_out = given(week, labels)
    # Who has the course's solutions has seen them, also if many have: what they have in common is no habit.
    without(works, handed_out, habits=False)
    own = works[:1] if ours is not None and ours.name not in unread else []
    others = works[len(own) :]
    seen = [pair for work in others if not work.year for pair in pairs([*own, work])]
    without(works, handed_out)
    return _ordered([*seen, *pairs(others)]), others, unread
