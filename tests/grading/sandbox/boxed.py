"""All mutants of week 13, the reference and the released week through the sandbox, again and again: are the verdicts
the intended ones, and always the same? A script, because it takes minutes and wants the machine to itself:

    python -m tests.grading.sandbox.verdicts --repeat 5 --load 1 --out verdicts.json

`--load N` keeps N processes busy meanwhile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest

from grading.benchmarks.against_nbgrader import hardware_and_versions
from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from grading.run import reference_submission
from grading.sandbox.box import Limits
from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import load_week, run_checks
from labkit.checks.markers import strip
from labkit.checks.outcome import Outcome
from labkit.checks.verdict import PASSED
from tests.grading.sandbox.attacking import readable
from tests.kills import PLANS
from tests.mutant import Mutant
from tests.mutants13 import MUTANTS

ROOT = Path(__file__).resolve().parents[3]
# A rank in a sandbox has no torch.distributed to fall into: what is a forbidden call at home crashes here, alone too.
DISGUISE = "built-in collective in disguise"
ALSO = {DISGUISE: ("crashed",)}
DEADLINE = 3.0  # seconds: the mutants that hang would take long at 8


class Boxed:
    """A week in one sandbox for all of them: only the modules in its folder are exchanged. Use it in a `with`."""

    def __init__(self, folder: Path, week: str = "week13_allreduce") -> None:
        self.week, self.folder = load_week(ROOT / week), folder
        self.submission = reference_submission(self.week)
        self.lay(self.submission.files)
        limits = Limits(uses=self.week.uses, weeks=tuple(map(str, self.week.below)))
        parts = parts_of(self.week)
        self.runner = SandboxRunner(folder, parts=parts, limits=limits, budget=1e6, deadline=DEADLINE)

    def lay(self, files: dict[str, bytes]) -> None:
        for path, data in arrange(Submission.of("anna", files), self.week).files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        readable(self.folder)

    def check(self, tasks, texts: dict[str, str]) -> Outcome:
        """These tasks, all with points where there are none, of the reference with other texts for these modules."""
        self.runner.hangs.clear()
        self.runner.fatal.clear()
        files = {f"{self.week.package}/{name.replace('.', '/')}.py": text.encode() for name, text in texts.items()}
        self.lay({**self.submission.files, **files})
        try:
            return run_checks(tasks or [self.week.name], weeks=[self.week], runner=self.runner, seed=13)
        finally:
            self.lay(self.submission.files)

    def source(self, module: str) -> str:
        return self.submission.files[f"{self.week.package}/{module.replace('.', '/')}.py"].decode()

    def mutant(self, mutant: Mutant) -> Outcome:
        tasks = [mutant.task, *(t.id for t in self.week.tasks if mutant.cascade and mutant.task in t.stands_on)]
        return self.check(tasks, {mutant.module: mutant.apply(self.source(mutant.module))})

    def reference(self, *tasks: str) -> Outcome:
        return self.check(tasks, {})

    def blanks(self, filled: str = "") -> dict[str, str]:
        """The released modules; `filled`: a statement that stands in every blank."""
        names = [name.split("/", 1)[1][:-3].replace("/", ".") for name in self.submission.files if name.endswith(".py")]
        texts = {name: strip(self.source(name), f"{name}.py") for name in names}
        return {
            name: re.sub(r"raise NotImplementedError\(.*\)", filled or r"\g<0>", text) for name, text in texts.items()
        }

    def released(self, *tasks: str) -> Outcome:
        return self.check(tasks, self.blanks())

    def cheat(self, module: str, text: str, task: str) -> Outcome:
        """What a cheat in one of its modules earns; the grader must not fail of it."""
        found = self.check([task], {module: text})
        assert not found.faults, found.faults
        return found

    def __enter__(self) -> Boxed:
        return self

    def __exit__(self, *exc) -> None:
        self.runner.close()


def boxed(week: str):
    """A fixture: this week in a sandbox, for a module of tests."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory):
        with Boxed(tmp_path_factory.mktemp(week), week) as one:
            yield one

    return made


def _named(case, names) -> bool:
    name = case.test.rpartition("::")[2]
    return any(name == one or name.startswith(one if "[" in one else one + "[") for one in names)


def differences(mutant: Mutant, outcome: Outcome) -> list[str]:
    """Where the verdicts are not the intended ones; [] if all are, and so are the points."""
    wrong, intended = [], Fraction(0)
    for case in outcome.cases:
        must = _named(case, mutant.fails)
        may = _named(case, mutant.may) or (_named(case, PLANS["13"].may) and not must)  # values are judged there too
        intended += 0 if must or (may and case.verdict != PASSED) else case.possible
        if ((case.verdict == PASSED) == must and not may) or (
            must and not may and case.verdict not in (*mutant.verdicts, *ALSO.get(mutant.name, ()))
        ):
            wrong.append(f"{case.behaviour}: {case.verdict}: {case.text}")
    if not wrong and outcome.earned != intended:
        wrong.append(f"{outcome.earned} points, {intended} were intended")
    return wrong


def _busy() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    load = [multiprocessing.get_context("fork").Process(target=_busy, daemon=True) for _ in range(chosen.load)]
    for process in load:
        process.start()
    seen: dict[str, set[str]] = {}
    unintended: list[str] = []
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder, Boxed(Path(folder)) as week13:
        runs = {
            "reference": week13.reference,
            "released": week13.released,
            **{f"{m.task} {m.name}": m for m in MUTANTS},
        }
        for turn in range(chosen.repeat):
            for number, (name, run) in enumerate(runs.items(), 1):
                outcome = week13.mutant(run) if isinstance(run, Mutant) else run()
                verdicts = [f"{case.test.rpartition('::')[2]}: {case.verdict}" for case in outcome.cases]
                seen.setdefault(name, set()).add(json.dumps([float(outcome.earned), verdicts]))
                if isinstance(run, Mutant):
                    unintended += [f"{name}: {line}" for line in differences(run, outcome)]
                elif outcome.earned != (80 if name == "reference" else 0):
                    unintended.append(f"{name}: {float(outcome.earned)} points")
                print(f"\r{turn + 1}/{chosen.repeat}  {number}/{len(runs)}  {name:60}", end="", file=sys.stderr)
    for process in load:
        process.kill()
    command = f"python -m tests.grading.sandbox.verdicts --repeat {chosen.repeat} --load {chosen.load}"
    result = {
        "kind": "grading verdicts", "command": command, "date": date.today().isoformat(), **hardware_and_versions(),
        "submissions": len(seen), "repeats": chosen.repeat, "load": chosen.load, "unintended": unintended,
        "changed between repeats": [name for name, ways in seen.items() if len(ways) > 1],
        "seconds": round(time.time() - begin),
    }  # fmt: skip
    print("\n" + json.dumps(result, indent=1, ensure_ascii=False))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    sys.exit(bool(unintended or result["changed between repeats"]))


if __name__ == "__main__":
    main()
