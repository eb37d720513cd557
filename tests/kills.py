"""Every mutant of a week, on many seeds: does a wrong answer fail, whatever the seed?

    python -m tests.kills 13                              survivors and false causes, on 200 seeds
    python -m tests.kills 15 --seeds 20 --task 15.2 --show
    python -m tests.kills capstone --seeds 1 --named      does a case that a mutant names fail? The first is enough
    python -m tests.kills 13 --new --out week13_allreduce/results/checks/kills.json

The same test functions judge, on thread ranks (`tests/judged.py`). On the first seeds all cases run: what fails must be
what the mutant names, and every cause that is reported must be one of its own. On the others the case that failed last
comes first, and the first failure is enough. The reference must pass every case of every seed.

`--out FILE` keeps what was found: each entry with the date, the versions and the number of seeds of its own run.
Entries of mutants that were not judged now stay as they are, so that a new mutant costs its own minutes only.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from labkit.checks import load_week
from labkit.checks.outcome import CaseResult
from labkit.checks.tasks import Week
from labkit.checks.verdict import TRUE_ALWAYS, WRONG, CheckFailed
from tests.judged import ROOT, ThreadRunner, cases_of, judge, named, package
from tests.mutant import Mutant


@dataclass(frozen=True)
class Plan:
    """How a week's mutants are judged.

    tables    modules of `tests` with a list MUTANTS
    left_out  mutants that only the real machinery can judge, and why
    deadline  seconds for a call, on a machine that may be busy with other things
    full      seeds on which all cases run, and what fails is looked at
    promised  seeds after which every cause of a mutant must have been reported
    always    beginnings of causes that are true of whatever they are reported for
    may       checks that any mutant may fail
    unpaid    seeds that the record of a task for no points must have; with points it must have 200
    autopsies whether what is reported of a crash or a hang must be a cause of the mutant's, too
    """

    folder: str
    tables: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 20.0
    full: int = 3
    promised: int = 3
    always: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    unpaid: int = 200
    autopsies: bool = True

    @property
    def mutants(self) -> list[Mutant]:
        """All that are judged."""
        every = [m for table in self.tables for m in importlib.import_module(f"tests.{table}").MUTANTS]
        return [mutant for mutant in every if mutant.name not in self.left_out]

    @property
    def week(self) -> Week:
        return load_week(ROOT / self.folder)

    def honest(self, mutant: Mutant, failed: CheckFailed | CaseResult, case: str | None = None) -> bool:
        """Whether a reported cause is the mutant's. Several ("cannot tell them apart") are honest if the right one
        is among them."""
        if not failed.cause or not (self.autopsies or failed.verdict == WRONG):
            return True
        if any(cause.startswith((*mutant.causes, *self.always)) for cause in failed.cause):
            return True
        # A case beside the mutant may have other ranks: what it reports must be an autopsy, which names them.
        beside = case is not None and failed.verdict != WRONG and named(case, self.may)
        return beside and all(cause.startswith("Rank ") for cause in failed.cause)

    @property
    def record(self) -> Path:
        """Where what was found is kept."""
        return ROOT / self.folder / "results" / "checks" / "kills.json"


PLANS = {
    "13": Plan(
        "week13_allreduce",
        ("mutants13", "mutants13_blind", "mutants13_stretch"),
        {
            "a rank ends its process": "it would end the judge",
            "endless loop": "it waits for the deadline each time",
            "built-in collective in disguise": "threads have no process group",
            "another rank's data through a shared global": "threads share it",
        },
        deadline=5.0,
        full=4,
        unpaid=20,  # a race on 200 seeds takes the better part of an hour
        may=tuple(
            f"test_{lap}_{what}"
            for lap in ("reduce_scatter", "all_gather", "all_reduce")
            for what in ("traffic", "in_a_part")
        ),
    ),
    "14": Plan(
        "week14_fsdp",
        ("mutants14", "mutants14_stretch"),
        always=TRUE_ALWAYS,
        autopsies=False,
        # beside each refusal stand losses and gradients of ordinary steps; an odd case is first of all a case
        may=("test_fsdp_refuses", "test_second_backward", "test_odd_cases", "test_odd_steps"),
    ),
    "15": Plan(
        "week15_tp_attention", ("mutants15", "mutants15_stretch"), deadline=60.0, promised=1, always=TRUE_ALWAYS
    ),
    "16": Plan(
        "week16_fp8",
        ("mutants16", "mutants16_stretch", "mutants16_tensor_cores"),
        {"a maximum without a flag": "among threads the maximum keeps a NaN"},
        always=TRUE_ALWAYS,
    ),
    "capstone": Plan(
        "capstone",
        ("mutants_capstone",),
        promised=5,
        always=(*TRUE_ALWAYS, "most healthy runs ring", "it rings for no fault of these kinds"),
        autopsies=False,
        may=("test_what_a_rank_holds",),  # beside what is held stands the loss of the step
    ),
}


def seeds(week: str, count: int) -> list[int]:
    """Half of them small, half of them anywhere."""
    return [
        *range(count - count // 2),
        *random.Random(int(week) if week.isdigit() else week).sample(range(2**31), count // 2),
    ]


@dataclass
class Found:
    """What became of one mutant.

    by     the cases that failed on the first seeds, with their verdicts, by how often
    causes the causes that were reported, by how often
    false  sentences on what must not be: a wrong cause, a wrong case, a cause that was never reported
    """

    mutant: Mutant
    killed: int = 0
    survived: list[int] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)

    def add(self, plan: Plan, case: str, failed: CheckFailed, full: bool) -> None:
        """Count a case that failed; on the first seeds (`full`) also see whether it may fail."""
        self.causes.update(failed.cause)
        if not plan.honest(self.mutant, failed, case):
            self.false.append(f"{case} reports {'; or '.join(failed.cause)!r}")
        if full:
            self.by[f"{case}: {failed.verdict}"] += 1
        if full and not self.mutant.blind:
            if not named(case, (*self.mutant.fails, *self.mutant.may, *plan.may)):
                self.false.append(f"{case} must pass: {failed.text}")
            elif failed.verdict not in self.mutant.verdicts:
                self.false.append(f"{case}: {failed.verdict}: {failed.text}")

    def report(self, of: int, show: bool) -> None:
        """Print what is to be fixed; with `show`, all that is known."""
        who = f"{self.mutant.task} {self.mutant.name}"
        if self.survived:
            print(f"{who}: survives {len(self.survived)} of {of}: {self.survived[:5]}", flush=True)
        for sentence in dict.fromkeys(self.false):
            print(f"{who}: {sentence}", flush=True)
        if show:
            print(f"{who}: killed {self.killed} of {of}; fails {dict(self.by)}; causes {dict(self.causes)}", flush=True)


def examine(plan: Plan, mutant: Mutant, wanted: list[int], only_named: bool = False) -> Found:
    """One mutant on these seeds; with `only_named`, in the cases alone that must fail, up to the first that does."""
    found, week = Found(mutant), plan.week
    names = mutant.fails if only_named and not mutant.blind else ()
    cases = [c for c in cases_of(week.folder) if c.task == mutant.task and (not names or named(c.name, names))]
    with tempfile.TemporaryDirectory() as folder:
        runner = package(Path(folder), week, mutant)
        for number, seed in enumerate(wanted):
            dead, full = False, number < plan.full
            for case in list(cases):
                failed = judge(case, seed, runner, week, plan.deadline)
                if failed is not None:
                    dead = True
                    found.add(plan, case.name, failed, full)
                    if only_named or not full:
                        cases.remove(case)
                        cases.insert(0, case)
                        break
                elif full and not only_named and named(case.name, mutant.fails):
                    found.false.append(f"{case.name} passes, seed {seed}")
            found.killed += dead
            if not dead:
                found.survived.append(seed)
        runner.close()
    for cause in () if mutant.blind or only_named or len(wanted) < plan.promised else mutant.causes:
        if not any(sentence.startswith(cause) for sentence in found.causes):
            found.false.append(f"{cause!r} was never reported")
    return found


def reference(plan: Plan, task: str, wanted: list[int]) -> list[str]:
    """Cases in which the reference fails: none, it is to be hoped."""
    week = plan.week
    cases = [case for case in cases_of(week.folder) if case.task == task]
    with tempfile.TemporaryDirectory() as folder:
        runner: ThreadRunner = package(Path(folder), week, None)
        wrong = [
            f"{case.name}, seed {seed}: {failed}"
            for case in cases
            for seed in wanted
            if (failed := judge(case, seed, runner, week, plan.deadline)) is not None
        ]
        runner.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("week", choices=PLANS, help="its number, or capstone")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--task", action="append", help="only this one; may come several times")
    parser.add_argument("--name", default="", help="only mutants whose name holds this")
    parser.add_argument("--named", action="store_true", help="only the cases that a mutant must fail; one is enough")
    parser.add_argument("--new", action="store_true", help="only mutants that the record does not have")
    parser.add_argument("--show", action="store_true", help="what fails, and which causes are reported")
    parser.add_argument("--out", type=Path, help="keep what was found in this file")
    options = parser.parse_args()
    plan, wanted, begin = PLANS[options.week], seeds(options.week, options.seeds), time.time()
    mutants = [m for m in plan.mutants if (not options.task or m.task in options.task) and options.name in m.name]
    if options.new:
        kept = {(e["task"], e["name"]) for e in json.loads(plan.record.read_text())["mutants"]}
        mutants = [m for m in mutants if (m.task, m.name) not in kept]
    if not mutants:
        parser.error("no mutant has this task and name")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes below: ranks are threads already
    done: list[Found] = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        right = {task: pool.submit(reference, plan, task, wanted) for task in dict.fromkeys(m.task for m in mutants)}
        for job in as_completed([pool.submit(examine, plan, mutant, wanted, options.named) for mutant in mutants]):
            done.append(job.result())
            done[-1].report(len(wanted), options.show)  # at once: a run of an hour that is stopped has said something
        wrongly = {task: job.result() for task, job in right.items()}
    for task, cases in wrongly.items():
        for text in cases:
            print(f"{task}: the reference fails {text}")
    bad = sum(bool(f.survived or f.false) for f in done) + sum(map(bool, wrongly.values()))
    print(f"{len(done)} mutants, {len(wanted)} seeds, {time.time() - begin:.0f} s: {bad} to fix")
    if options.out:
        write(options.out, options.week, done, wrongly, len(wanted))
    return bool(bad)


def write(path: Path, week: str, done: list[Found], wrongly: dict[str, list[str]], seeds: int) -> None:
    """Keep what was found in `path`, one entry a line, each with the run that found it. What the file already says of
    other mutants and tasks stays."""
    plan = PLANS[week]
    now = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "seeds": seeds,
    }
    before = json.loads(path.read_text()) if path.exists() else {"runs": [], "reference": [], "mutants": []}
    for entry in (*before["reference"], *before["mutants"]):
        entry["run"] = before["runs"][entry["run"]]
    reference = {entry["task"]: entry for entry in before["reference"]}
    mutants = {(entry["task"], entry["name"]): entry for entry in before["mutants"]}
    for task, cases in wrongly.items():
        reference[task] = {"task": task, "passes": not cases, "run": now}
    for found in done:
        mutant = found.mutant
        entry = {"task": mutant.task, "name": mutant.name, "blind": mutant.blind, "killed": found.killed}
        mutants[mutant.task, mutant.name] = {**entry, "run": now}
    tasks = [task for task in dict.fromkeys(m.task for m in plan.mutants) if task in reference]
    kept: dict[str, Any] = {
        "command": f"python -m tests.kills {week} --out {plan.record.relative_to(ROOT)}",
        "left_out": dict(plan.left_out),
        "runs": [],
        "reference": [reference[task] for task in tasks],
        "mutants": [mutants[m.task, m.name] for m in plan.mutants if (m.task, m.name) in mutants],
    }
    for entry in (*kept["reference"], *kept["mutants"]):
        if entry["run"] not in kept["runs"]:
            kept["runs"].append(entry["run"])
        entry["run"] = kept["runs"].index(entry["run"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept).replace('{"task"', '\n{"task"') + "\n")


if __name__ == "__main__":
    sys.exit(main())
