"""A class of week 13 made of real outcomes (week13_outcomes.json): marks as `grade run` writes them, in no time."""

from __future__ import annotations

import copy
import json
import random
from fractions import Fraction
from pathlib import Path

from grading import marks
from grading.marks import Mark
from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT, NOT_ATTEMPTED, OUT_OF_MEMORY

ROOT = Path(__file__).resolve().parents[3]
RECORDED = json.loads(Path(__file__).with_name("week13_outcomes.json").read_text())
MUTANTS = tuple(RECORDED["mutants"])
AWKWARD = (
    "O'Neill, Anna",
    'Bob "the ring" Müller',
    '=HYPERLINK("http://x")',
    "+49 30",
    "-minus",
    "@mention",
    "two\nlines",
    "\u05d3\u05e0\u05d4 \u05db\u05d4\u05df",
    "\u0623\u062d\u0645\u062f, \u0633\u0627\u0631\u0629",
    "\u674e\u96f7",
    "<script>alert(1)</script>",
    "a/b;c\\d",
    " leading space",
    "'=quoted",
    "'t Hooft",
    "..",
    "Zoe\u0308 \u00c5ngstr\u00f6m",
    "comma,comma",
)


def mark(student: str, *mutants: str, blank: tuple[str, ...] = (), attempt: int = 1, **fields) -> Mark:
    """A mark of one who made these mutants' mistakes and left these tasks blank; the rest is the reference's."""
    tasks = copy.deepcopy(RECORDED["reference"])
    wrong = {case["test"]: case for name in mutants for case in RECORDED["mutants"][name]}
    for task in tasks:
        earned = Fraction(0)
        for case in task["cases"]:
            if task["id"] in blank:
                case.update(verdict=NOT_ATTEMPTED, text=RECORDED["blank"][case["test"]], points=0)
            elif case["test"] in wrong:
                case.update(wrong[case["test"]], points=0)
            earned += Fraction(str(case["points"]))
        if task["kind"] != "written":
            full = sum(Fraction(str(case["possible"])) for case in task["cases"])
            task["points"] = number(earned * Fraction(str(task["possible"])) / full) if full else 0
    made = Mark(
        student,
        "week13",
        attempt,
        received="2026-11-20T18:00:00+01:00",
        submission="5d" * 32,
        seed=20261121,
        tasks=tasks,
        seconds=4.0,
        core_seconds=3.5,
    )
    for key, value in fields.items():
        setattr(made, key, value)
    return scored(made)


def scored(made: Mark) -> Mark:
    """Sum the tasks."""
    auto = [task for task in made.tasks if task["kind"] == "auto"]
    made.points, made.possible = number(sum(t["points"] for t in auto)), sum(t["possible"] for t in auto)
    return made


def spoil(made: Mark, test: str, verdict: str, text: str, printed: str = "", cause: tuple = ()) -> Mark:
    """One case of a mark ends otherwise: `test` is a part of its node id."""
    for task in made.tasks:
        for case in task["cases"]:
            if test in case["test"]:
                task["points"] = number(task["points"] - case["points"])
                case.update(verdict=verdict, text=text, printed=printed, cause=list(cause), points=0)
                return scored(made)
    raise AssertionError(f"no case {test}")


def forty(folder: Path, seed: int = 4) -> list[Mark]:
    """Forty students: most with one to three mistakes, some blank, full, hung, out of memory, faulty, unsandboxed."""
    rng = random.Random(seed)
    common = rng.sample(MUTANTS, 12)
    names = [*AWKWARD, *(f"student{n:02}" for n in range(40 - len(AWKWARD)))]
    made = []
    for place, name in enumerate(names):
        mistakes = [rng.choice(common if rng.random() < 0.7 else MUTANTS) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        blank = tuple(task for task in ("13.3", "13.4", "13.5", "13.6") if rng.random() < 0.08)
        one = mark(name, *mistakes, blank=blank)
        one.seconds = round(3 + 6 * rng.random() + 8 * one.verdicts().get("hung", 0), 2)
        one.core_seconds = round(0.8 * one.seconds, 2)
        if place == 20:
            spoil(one, "test_best_ring", OUT_OF_MEMORY, "rank 0 took more than 2 GiB in topology.best_ring")
        if place == 21:
            spoil(one, "test_algbw", FAULT, "the check itself failed, tell the course: OSError: no space left")
            one.complete = False
            one.attention = ["13.5, Algorithm bandwidth: the machine had no space left; run it again"]
        if place == 22:
            one.isolation = marks.UNSANDBOXED
        if place == 23:
            one.notes = ["There is no timing.py: task 13.5 earns nothing. timings.py looks like it: was it renamed?"]
        if place == 24:
            spoil(
                one,
                "test_reduce_scatter[even",
                "wrong",
                "the result of rank 0 is wrong\n  expected  1\n  got       2\n  cause unknown",
                printed="rank 0 \x1b[31mhere\x1b[0m\n" + "x" * 3000 + "\n<b>bold</b>\n" * 40,
            )
        made.append(one)
    for one in made:
        marks.write(folder, one)
    return made
