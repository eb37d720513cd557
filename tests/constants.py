"""What a week's calls are given on every seed alike: what a submission could recognise, or keep in a table.

    python -m tests.constants 13 --task 13.5

One line for each argument of the reference's calls: the function, which argument, the value, the cases. Formats, names and
small whole numbers are listed too; who reads the list decides which of them should be drawn (`labkit.checks.drawn`).
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from labkit.checks.runner import Job, Reply
from tests.judged import ROOT, ThreadRunner, cases_of, judge
from tests.kills import PLANS, seeds


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(where, what) of every number, text and tensor in it. Positions in a list are one: [k]."""
    if isinstance(value, torch.Tensor):
        yield path, f"{tuple(value.shape)} of {value.dtype}"
        yield f"{path}.numbers", str(value.flatten()[:3].tolist())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each, f"{path}[k]")
    else:
        yield path, repr(value)[:60]


class Recorder(ThreadRunner):
    """Runs jobs as ThreadRunner does, and keeps what they were given since `given` was emptied."""

    given: set[tuple[str, str]]

    def run(self, job: Job) -> Reply:
        for path, what in leaves([*job.inputs[:2], dict(job.kwargs)]):
            self.given.add((f"{job.function}{path}", what))
        return super().run(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("week", choices=PLANS, help="its number, or capstone")
    parser.add_argument("--task", action="append", help="only this one; may come several times")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    plan = PLANS[options.week]
    cases = [case for case in cases_of(ROOT / plan.folder) if case.task in (options.task or {case.task})]
    runner, same = Recorder(ROOT, plan.week.package), defaultdict[tuple[str, str], list[str]](list)
    for case in cases:
        found = []
        for seed in seeds(options.week, options.seeds):
            runner.given = set()
            judge(case, seed, runner, plan.week, plan.deadline)
            found.append(runner.given)
        for each in set.intersection(*found):
            same[each].append(case.name)
    for (where, what), names in sorted(same.items()):
        if not re.fullmatch(r"True|False|None|-?[0-4](\.0)?", what):
            print(f"{where} = {what}   {', '.join(names)}")


if __name__ == "__main__":
    main()
