"""`grade race`: the class's table of a week's race, by pseudonym. Every entry runs in a sandbox of its own, like a
check; its time is the virtual wire's, from the broker's ledger, so it is the same on any machine.

A pseudonym is what the entry's file says (`PSEUDONYM = "..."`, read as text and never run); where it says nothing, or
what another one says, or somebody's id, it is made from the student's id and the class's secret seed.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading.intake.arrange import Package, arrange
from grading.intake.find import Entry, find_submissions
from grading.intake.load import load
from grading.judge import laid_out
from grading.sandbox.box import Limits
from grading.sandbox.frames import clean
from grading.sandbox.runner import SandboxRunner
from labkit.checks.race import SECONDS, Result, race_of, run, table
from labkit.checks.tasks import Week
from labkit.errors import LabError

LONGEST = 24  # characters of a pseudonym
FIRST = (
    "amber",
    "brisk",
    "calm",
    "deft",
    "eager",
    "fleet",
    "grand",
    "hazel",
    "keen",
    "lucid",
    "mild",
    "noble",
    "quick",
)
SECOND = (
    "badger",
    "curlew",
    "dipper",
    "egret",
    "falcon",
    "heron",
    "ibis",
    "kestrel",
    "lynx",
    "marten",
    "otter",
    "wren",
)


@dataclass(frozen=True)
class Placed:
    """One student's race. `why` says why there is no result, if there is none."""

    student: str
    pseudonym: str
    result: Result | None
    why: str = ""


def race(
    week: Week, submissions: Path, seed: int, told: Callable[[str], None] = lambda student: None
) -> tuple[list[Placed], list[Placed]]:
    """Run everybody's last attempt. Returns (those with a score, the best first; those who did not finish).

    Who has not written the entry is in neither. LabError: no race, no submissions, no sandbox on this machine."""
    race = race_of(week)
    latest: dict[str, Entry] = {}
    for entry in find_submissions(submissions, week):
        if entry.student not in latest or entry.attempt > latest[entry.student].attempt:
            latest[entry.student] = entry
    if not latest:
        raise LabError(f"there is no submission of {week.name} in {submissions}")
    packages: dict[str, Package | str] = {}
    for student, entry in latest.items():
        try:
            submission = load(entry, week)
        except LabError as error:
            packages[student] = str(error)
        else:
            packages[student] = arrange(submission, week)
    names = pseudonyms(week, packages, seed)
    ranked, out = [], []
    for student, package in sorted(packages.items()):
        told(student)
        if isinstance(package, str):
            out.append(Placed(student, names[student], None, package))
            continue
        result = _run(week, package, seed)
        if result.score is not None:
            ranked.append(Placed(student, names[student], result))
        elif result.entered or race.TASK not in result.laps[-1].why:  # a hole that is not the entry's own stops it
            lap = next(lap for lap in result.laps if lap.seconds is None)
            out.append(Placed(student, names[student], result, f"{lap.track}: {lap.verdict}: {clean(lap.why, 400)}"))
    ranked.sort(key=lambda placed: (-((placed.result and placed.result.score) or 0.0), placed.pseudonym))
    return ranked, out


def _run(week: Week, package: Package, seed: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="grade-race-") as work:
        Path(work).chmod(0o755)  # the sandbox's user is another one
        with (
            laid_out(package, Path(work, "entry")) as folder,
            SandboxRunner(folder, limits=Limits(uses=week.uses), deadline=SECONDS, precompile=True) as runner,
        ):
            return run(week, runner, seed)


def pseudonyms(week: Week, packages: dict[str, Any], seed: int) -> dict[str, str]:
    """{student: pseudonym}, all different, and none of them a student's id."""
    wanted = {student: _wanted(week, package) for student, package in packages.items()}
    ids = {student.casefold() for student in packages}
    said = [name.casefold() for name in wanted.values()]
    found: dict[str, str] = {}
    for student in sorted(packages):
        name, n = wanted[student], 0
        if not name or said.count(name.casefold()) > 1 or name.casefold() in ids:
            name = ""
        while not name or name in found.values():
            name, n = _made(student, seed, n), n + 1
        found[student] = name
    return found


def _made(student: str, seed: int, n: int) -> str:
    digest = hmac.new(str(seed).encode(), f"{student} {n}".encode(), hashlib.sha256).digest()
    name = f"{FIRST[digest[0] % len(FIRST)]} {SECOND[digest[1] % len(SECOND)]}"
    return name if n == 0 else f"{name} {digest[2]}"


def _wanted(week: Week, package: Package | str) -> str:
    """What the entry's file says, read as text."""
    if isinstance(package, str):
        return ""
    for module in {module for task in week.tasks for module in task.modules}:
        text = package.files.get(f"{week.package}/{module.replace('.', '/')}.py", b"").decode(errors="replace")
        if "PSEUDONYM" not in text:
            continue
        try:
            nodes = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in nodes:
            if (
                isinstance(node, ast.Assign)
                and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["PSEUDONYM"]
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                return " ".join(clean(node.value.value[:LONGEST], LONGEST).split())
    return ""


def class_table(week: Week, ranked: Sequence[Placed]) -> Any:
    """The table that may be shown to the class: pseudonyms alone."""
    laps = [(p, {lap.track: lap.seconds for lap in p.result.laps}) for p in ranked if p.result]
    par = {lap.track: lap.par for p in ranked[:1] if p.result for lap in p.result.laps}
    rows = [(p.pseudonym, p.result.score, times) for p, times in laps if p.result and p.result.score]
    return table(race_of(week), [*rows, ("par", 1.0, par)] if rows else rows)
