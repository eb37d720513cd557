"""Every mutant of a week, on many seeds: does a wrong answer fail whatever the seed?

    python -m tests.kills 13                              survivors and false causes, on 200 seeds
    python -m tests.kills 15 --seeds 20 --task 15.2 --show
    python -m tests.kills 13 --out week13_allreduce/results/checks/kills.json

The same test functions judge, on thread ranks (`tests/judged.py`). On the first seeds all cases run: what fails must be
what the mutant names, and every cause that is told must be one of its own. On the others the case that failed last
comes first, and the first failure is enough. The reference must pass every case of every seed.

With `--task` and `--out`, what FILE holds of other tasks stays, if it was found with the same seeds and versions.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from labkit.checks import load_week
from labkit.checks.outcome import CaseResult, gist
from labkit.checks.tasks import Week
from labkit.checks.verdict import WRONG, CheckFailed
from tests.edits import TRUE_ALWAYS
from tests.judged import ROOT, ThreadRunner, cases_of, judge, named, package
from tests.mutant import Mutant


@dataclass(frozen=True)
class Plan:
    """How a week's mutants are judged.

    tables    modules of `tests` with a list MUTANTS
    left_out  mutants that only the real machinery can judge, and why
    deadline  seconds for a call, on a machine that may be busy with other things
    full      seeds on which all cases run, and what fails is looked at
    promised  seeds after which every cause of a mutant must have been told
    always    beginnings of causes that are true of whatever they are told of
    may       checks that any mutant may fail
    autopsies whether what is told of a crash or a hang must be a cause of the mutant's, too
    """

    folder: str
    tables: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 20.0
    full: int = 3
    promised: int = 3
    always: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    autopsies: bool = True

    @property
    def mutants(self) -> list[Mutant]:
        """All that are judged."""
        every = [m for table in self.tables for m in importlib.import_module(f"tests.{table}").MUTANTS]
        return [mutant for mutant in every if mutant.name not in self.left_out]

    @property
    def week(self) -> Week:
        return load_week(ROOT / self.folder)

    def honest(self, mutant: Mutant, failed: CheckFailed | CaseResult) -> bool:
        """Whether a cause that is told is the mutant's. Several ("cannot tell them apart") are honest if the right one
        is among them."""
        if not failed.cause or not (self.autopsies or failed.verdict == WRONG):
            return True
        return any(cause.startswith((*mutant.causes, *self.always)) for cause in failed.cause)

    @property
    def record(self) -> Path:
        """Where what was found is kept."""
        return ROOT / self.folder / "results" / "checks" / "kills.json"


PLANS = {
    "13": Plan(
        "week13_allreduce",
        ("mutants13", "mutants13_blind"),
        {
            "a rank ends its process": "it would end the judge",
            "endless loop": "it waits for the deadline each time",
            "built-in collective in disguise": "threads have no process group",
            "another rank's data through a shared global": "threads share it",
        },
        deadline=5.0,
        full=4,
        may=("test_reduce_scatter_traffic", "test_all_gather_traffic", "test_all_reduce_traffic"),
    ),
    "14": Plan(
        "week14_fsdp",
        ("mutants14", "mutants14_stretch"),
        always=TRUE_ALWAYS,
        autopsies=False,
        may=("test_fsdp_refuses",),  # beside each refusal stand the losses of ordinary steps
    ),
    "15": Plan(
        "week15_tp_attention", ("mutants15", "mutants15_stretch"), deadline=60.0, promised=1, always=TRUE_ALWAYS
    ),
    "16": Plan(
        "week16_fp8",
        ("mutants16",),
        {"a maximum without a flag": "among threads the maximum keeps a NaN"},
        always=TRUE_ALWAYS,
    ),
    "capstone": Plan(
        "capstone",
        ("mutants_capstone",),
        promised=5,
        always=TRUE_ALWAYS,
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
    told   the causes, by how often
    false  sentences on what must not be: a wrong cause, a wrong case, a cause that nobody was told
    """

    mutant: Mutant
    killed: int = 0
    survived: list[int] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)


def examine(plan: Plan, mutant: Mutant, wanted: list[int]) -> Found:
    """One mutant on these seeds."""
    found, week = Found(mutant), plan.week
    cases = [case for case in cases_of(week.folder) if case.task == mutant.task]
    with tempfile.TemporaryDirectory() as folder:
        runner = package(Path(folder), week, mutant)
        for number, seed in enumerate(wanted):
            dead, full = False, number < plan.full
            for case in list(cases):
                failed = judge(case, seed, runner, week, plan.deadline)
                if failed is not None:
                    dead = True
                    _look(plan, found, case.name, failed, full)
                    if not full:
                        cases.remove(case)
                        cases.insert(0, case)
                        break
                elif full and named(case.name, mutant.fails):
                    found.false.append(f"{case.name} passes, seed {seed}")
            found.killed += dead
            if not dead:
                found.survived.append(seed)
        runner.close()
    for cause in () if mutant.blind or len(wanted) < plan.promised else mutant.causes:
        if not any(sentence.startswith(cause) for sentence in found.told):
            found.false.append(f"nobody was told {cause!r}")
    return found


def _look(plan: Plan, found: Found, case: str, failed: CheckFailed, full: bool) -> None:
    mutant = found.mutant
    found.told.update(failed.cause)
    if not plan.honest(mutant, failed):
        found.false.append(f"{case} tells {'; or '.join(failed.cause)!r}")
    if full:
        found.by[f"{case}: {failed.verdict}"] += 1
    if full and not mutant.blind:
        if not named(case, (*mutant.fails, *mutant.may, *plan.may)):
            found.false.append(f"{case} must pass: {failed.text}")
        elif failed.verdict not in mutant.verdicts:
            found.false.append(f"{case}: {failed.verdict}: {failed.text}")


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


def tell(found: Found, of: int, show: bool) -> None:
    """What is to be mended of one mutant; all that is known of it, to be shown."""
    who = f"{found.mutant.task} {found.mutant.name}"
    if found.survived:
        print(f"{who}: survives {len(found.survived)} of {of}: {found.survived[:5]}", flush=True)
    for sentence in dict.fromkeys(found.false):
        print(f"{who}: {sentence}", flush=True)
    if show:
        print(f"{who}: killed {found.killed} of {of}; fails {dict(found.by)}; told {dict(found.told)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("week", choices=PLANS, help="its number, or capstone")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--task", action="append", help="only this one; may come several times")
    parser.add_argument("--name", default="", help="only mutants whose name holds this")
    parser.add_argument("--show", action="store_true", help="what fails, and what is told")
    parser.add_argument("--out", type=Path, help="keep what was found in this file")
    options = parser.parse_args()
    plan, wanted, begin = PLANS[options.week], seeds(options.week, options.seeds), time.time()
    mutants = [m for m in plan.mutants if (not options.task or m.task in options.task) and options.name in m.name]
    if not mutants:
        parser.error("no mutant has this task and name")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes below: ranks are threads already
    done: dict[str, Found] = {}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        right = {task: pool.submit(reference, plan, task, wanted) for task in dict.fromkeys(m.task for m in mutants)}
        for job in as_completed([pool.submit(examine, plan, mutant, wanted) for mutant in mutants]):
            found = job.result()
            done[found.mutant.task + found.mutant.name] = found
            tell(found, len(wanted), options.show)  # at once: a run of an hour that is stopped has said something
        wrongly = {task: job.result() for task, job in right.items()}
    for task, cases in wrongly.items():
        for text in cases:
            print(f"{task}: the reference fails {text}")
    bad = sum(bool(f.survived or f.false) for f in done.values()) + sum(map(bool, wrongly.values()))
    print(f"{len(done)} mutants, {len(wanted)} seeds, {time.time() - begin:.0f} s: {bad} to mend")
    if options.out:
        before = json.loads(options.out.read_text()) if options.task and options.out.exists() else {}
        kept = record(options.week, list(done.values()), wrongly, len(wanted), before)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
    return bool(bad)


def once(told: Iterable[str]) -> list[str]:
    """Of causes that differ in ranks and lengths only, one."""
    return sorted({gist(cause): cause for cause in sorted(told, reverse=True)}.values())


def record(
    week: str, done: list[Found], wrongly: dict[str, list[str]], count: int, before: dict[str, Any]
) -> dict[str, Any]:
    """What is kept: date, versions, command, and each mutant's kills; of tasks that were not judged now, what `before`
    says."""
    plan = PLANS[week]
    conditions = {
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "hardware": f"CPU, {platform.machine()}; ranks are threads",
        "seeds": {"number": count, "small": count - count // 2, "drawn": count // 2},
    }
    same = all(before.get(name) == value for name, value in conditions.items())
    passes = before["reference_passes"] if same else {}
    passes = {**passes, **{task: not cases for task, cases in wrongly.items()}}
    entries = [
        {
            "task": found.mutant.task,
            "name": found.mutant.name,
            "written": "before the checks were read" if found.mutant.blind else "with the checks",
            "killed": found.killed,
            "of": count,
            "causes_told": once(found.told),
        }
        for found in done
    ]
    entries += [entry for entry in (before["mutants"] if same else []) if entry["task"] not in wrongly]
    order = {(mutant.task, mutant.name): number for number, mutant in enumerate(plan.mutants)}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python -m tests.kills {week} --out {plan.record.relative_to(ROOT)}",
        **conditions,
        "reference_passes": {
            task: passes[task] for task in dict.fromkeys(m.task for m in plan.mutants) if task in passes
        },
        "left_out": dict(plan.left_out),
        "mutants": sorted(
            (entry for entry in entries if (entry["task"], entry["name"]) in order),
            key=lambda entry: order[entry["task"], entry["name"]],
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
