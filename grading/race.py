"""The class's table of week 13's race, by pseudonym: python -m grading.race [--class DIR]

Every entry runs in a sandbox of its own, like a check; its time is the virtual wire's, from the broker's ledger, so it
is the same on any machine. A pseudonym is what the entry's file says (`PSEUDONYM = "..."`, read as text and never run),
unless another one says it too or it is somebody's name or key; else it is made from the number and the class's seed.
"""

import argparse
import hashlib
import hmac
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading.intake.arrange import Package, arrange
from grading.intake.names import printable
from grading.intake.submission import read_submission
from grading.judge import laid_out
from grading.register.classes import open_class
from grading.register.counting import counting
from grading.register.people import everybody
from grading.register.schema import Class
from grading.register.submissions import Attempt
from grading.run import class_seed, named
from grading.sandbox.box import Limits
from grading.sandbox.frames import clean
from grading.sandbox.runner import SandboxRunner
from labkit.checks.race import SECONDS, Result, race_of, run, table
from labkit.checks.tasks import Week
from labkit.errors import LabError, run_command

LONGEST = 24  # characters of a pseudonym
SAYS = re.compile(r"""^PSEUDONYM\s*=\s*(["'])(.+)\1""", re.MULTILINE)


@dataclass(frozen=True)
class Placed:
    """One submission's race, and whose it is. `why` says why there is no result, if there is none."""

    name: str
    pseudonym: str
    result: Result | None
    why: str = ""


def race(cls: Class, week: Week, tell: Callable[[str], None] = lambda name: None) -> tuple[list[Placed], list[Placed]]:
    """Run what counts of everybody, a group's once. Returns (those with a score, the best first; those who did not
    finish).

    Who has not written the entry is in neither. LabError: no race, no submissions, no sandbox on this machine."""
    race = race_of(week)
    counted: dict[int, Attempt] = {one.submission.id: one.submission for one in counting(cls, week.name).values()}
    if not counted:
        raise LabError(f"there is no submission of {week.name}: `grade collect {week.name} DOWNLOAD` first")
    seed = class_seed(cls, week)
    packages = {
        number: arrange(read_submission(cls.archive(week, number), one.renamed), week)
        for number, one in counted.items()
    }
    pseudonym = pseudonyms(week, packages, seed, {key for one in everybody(cls) for key in (one.name, one.email)})
    ranked, out = [], []
    for number, package in sorted(packages.items()):
        name = named(cls, counted[number])
        tell(name)
        result = _run(week, package, seed)
        if result.score is not None:
            ranked.append(Placed(name, pseudonym[number], result))
        elif result.entered or race.TASK not in result.laps[-1].why:  # a blank that is not the entry's own stops it
            lap = next(lap for lap in result.laps if lap.seconds is None)
            why = f"{lap.track}: {lap.verdict}: {clean(lap.why, 400)}"
            out.append(Placed(name, pseudonym[number], result, why))
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


def pseudonyms(week: Week, packages: Mapping[int, Package], seed: int, taken: Iterable[str]) -> dict[int, str]:
    """{submission: pseudonym}, all different, and none of those that are taken: people's names and keys."""
    wanted = {number: _wanted(week, package) for number, package in packages.items()}
    refused = {"", *(name.casefold() for name in taken)}
    said = Counter(name.casefold() for name in wanted.values())
    return {
        number: name if said[name.casefold()] == 1 and name.casefold() not in refused else _made(number, seed)
        for number, name in wanted.items()
    }


def _made(number: int, seed: int) -> str:
    return f"entry {hmac.new(str(seed).encode(), str(number).encode(), hashlib.sha256).hexdigest()[:8]}"


def _wanted(week: Week, package: Package) -> str:
    """What the entry's file says, read as text."""
    for module in {module for task in week.tasks for module in task.modules}:
        text = package.files.get(f"{week.package}/{module.replace('.', '/')}.py", b"").decode(errors="replace")
        if said := SAYS.search(text):
            return " ".join(clean(said[2][:LONGEST], LONGEST).split())
    return ""


def class_table(week: Week, ranked: Sequence[Placed]) -> Any:
    """The table that may be shown to the class: pseudonyms alone."""
    rows: list[tuple[str, float, dict[str, float | None]]] = []
    par: dict[str, float | None] = {}
    for placed in ranked:
        if placed.result and placed.result.score:
            par = {lap.track: lap.par for lap in placed.result.laps}
            rows.append((placed.pseudonym, placed.result.score, {lap.track: lap.seconds for lap in placed.result.laps}))
    return table(race_of(week), [*rows, ("par", 1.0, par)] if rows else rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the table, and who did not finish; status 1 if somebody did not."""
    parser = argparse.ArgumentParser(prog="python -m grading.race", description="The class's table of week 13's race.")
    parser.add_argument("--class", dest="folder", default=".", metavar="DIR", help="the class's folder")
    parser.add_argument("--who", action="store_true", help="say also who is who, and why somebody did not finish")
    options = parser.parse_args(argv)
    from rich.console import Console

    with open_class(options.folder) as cls:
        week = cls.week("week13")
        ranked, out = race(cls, week, lambda name: print(f"racing: {printable(name)}", file=sys.stderr))
    Console().print(class_table(week, ranked))
    for placed in (*ranked, *out) if options.who else ():
        print(printable(f"{placed.pseudonym}: {placed.name}" + (f": {placed.why}" if placed.why else "")))
    if out and not options.who:
        print(f"{len(out)} did not finish: --who says who, and why.")
    return 1 if out else 0


if __name__ == "__main__":
    run_command("race", main, printable)
