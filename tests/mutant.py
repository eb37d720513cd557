"""A mutant: a week's reference with one place changed. Each week's are in `mutants13.py` and so on.

A mutant fails exactly the checks that it names; a cause that is printed is one of its own; where it has none, no case
may print one.
"""

import re
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any, Self

from tests.edits import bare

ANY = ("wrong", "crashed", "hung", "no result", "forbidden call")  # whatever verdict


@dataclass(frozen=True)
class Mutant:
    """In `place` of `module`, the line(s) `old` become `new`; an empty `old` is the whole solution there.

    Comments are no part of the text that `old` stands in.

    task      whose checks run
    place     "function", "Class.method", "method" (the first of that name) or "class Class"
    fails     checks that must fail: "test_name" (all its cases) or "test_name[part of a case's name"
    causes    beginnings of sentences: every printed cause must begin with one, and each must be printed at least once.
              A crash's or a deadlock's report is one: "Rank " is its beginning, whichever rank it names
    verdicts  the words that may stand at a failing check
    may       checks that may fail: a wrong answer can be right by luck in a chunk of one number
    cascade   run the tasks that stand on this one as well: none of their checks may fail
    seldom    its causes are reported on some seeds only: on many seeds they must be (tests/kills.py), on one they may
    deadline  seconds for a call, where the week's is too long: for an endless loop
    """

    name: str
    task: str
    module: str
    place: str
    old: str
    new: str
    fails: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ("wrong",)
    may: tuple[str, ...] = ()
    cascade: bool = False
    deadline: float | None = None
    seldom: bool = False

    blind = False  # written before the checks were read: which of them fail for it, nobody says

    def apply(self, text: str) -> str:
        """The module's text with the edit made. AssertionError if the place is not there, or there twice."""
        text = bare(text)
        start, end = span(text, self.place)
        body = text[start:end]
        if not self.old:
            head = body.index("\n", body.index("### BEGIN SOLUTION")) + 1
            tail = body.rindex("    ### END SOLUTION")
            return text[: start + head] + indent(dedent(self.new).strip("\n"), "    ") + "\n" + text[start + tail :]
        found = body.count(self.old)
        assert found == 1, f"{self.name}: {self.old!r} stands {found} times in {self.place}"
        return text[:start] + body.replace(self.old, self.new) + text[end:]


@dataclass(frozen=True)
class At:
    """A place in the module of a task's solution. Called, it makes a mutant.

        bottleneck, best_ring = At.each("13.6", "topology", "bottleneck", "best_ring")
        best_ring("one rank left out", "return best", "return best[:-1]",
            "test_best_ring", "a rank is missing", verdicts=ANY)

    First its name; then the old and the new text; then the checks that must fail (one, or a tuple), and the causes. The
    other fields of a Mutant go by keyword. `ruff format` leaves the tables alone: a short edit stands beside its name, a
    longer one has the new line below the old one.
    """

    task: str
    module: str
    place: str

    @classmethod
    def each(cls, task: str, module: str, *places: str) -> list[Self]:
        return [cls(task, module, place) for place in places]

    def __call__(
        self, name: str, old: str, new: str, fails: str | tuple[str, ...] = (), *causes: str, **more: Any
    ) -> Mutant:
        if isinstance(may := more.get("may", ()), str):
            more["may"] = (may,)
        fails = (fails,) if isinstance(fails, str) else fails
        return Mutant(name, self.task, self.module, self.place, old, new, fails, causes, **more)


def span(text: str, place: str) -> tuple[int, int]:
    """Where a function, a method or a class begins and ends in a module's text."""
    owner, _, name = place.rpartition(".")
    start = _find(rf"^class {owner}\b", text) if owner else 0
    word, _, name = name.rpartition(" ")
    start = _find(rf"^ {{0,4}}{word or 'def'} {name}\b", text, start)
    edge = " {0,4}" if text[start] == " " else ""  # a method ends where the next begins
    after = re.compile(rf"^{edge}(def|class|@)", re.MULTILINE).search(text, start + 1)
    return start, after.start() if after else len(text)


def _find(pattern: str, text: str, start: int = 0) -> int:
    found = re.compile(pattern, re.MULTILINE).search(text, start)
    assert found, f"there is no {pattern!r}"
    return found.start()
