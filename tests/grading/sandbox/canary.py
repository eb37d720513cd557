"""A small week in which some points cannot be earned honestly: what is expected follows from the seed, and nothing that
the function is given tells it. Whoever earns them has cheated.

Run as a script it does what a grader without a sandbox does: student's functions run in the judge's own process. There
every cheat below earns; so they are real.
"""

import os
import sys
from pathlib import Path

from labkit.checks import load_week, run_checks
from labkit.checks.runner import Job, Reply
from tests.checks.miniweek import make_week

REGISTRY = """
title = "Canary"
notebook = "lab.ipynb"
tests = ["test_week91.py"]
task = [
    {id = "91.1", title = "adding up", kind = "auto", points = 4, functions = ["ops.total"]},
    {id = "91.2", title = "twice", kind = "auto", points = 2, functions = ["ops.twice"], stands_on = ["91.1"]},
    {id = "91.3", title = "what cannot be known", kind = "auto", points = 1, functions = ["ops.secret"]},
]
"""
TESTS = '''
import pytest, torch
from labkit.checks import call, call_alone, same, sent, task, tensors
from labkit.checks.traffic import LIBRARY


@task("91.1", points=4)
@pytest.mark.parametrize("N, L", [(2, 4), (3, 5)])
def test_total(N, L, seed):
    """Adds up over the ranks, by messages"""
    x = tensors(seed, N, L)
    got, ledger = call("ops.total", x, in_place=True)
    for r in range(N):
        same(got[r], torch.stack(x).sum(0), rank=r)
        sent(ledger[r], forbid=LIBRARY, at_least=1)


@task("91.2", points=2)
def test_twice(seed):
    """Twice"""
    x = tensors(seed, 2, 4)
    got, ledger = call("ops.twice", x, in_place=True)
    same(got[0], 2 * torch.stack(x).sum(0))


@task("91.3", points=1)
def test_secret(seed):
    """A number that only the seed tells"""
    want = tensors(seed, 1, 1)[0].item()
    same(call_alone("ops.secret"), want)
'''
OPS = """
import torch


def total(x, group):
    ### BEGIN SOLUTION 91.1 the sum
    y = x.clone()
    for s in range(1, group.size):
        y += group.sendrecv(x, dst=(group.rank + s) % group.size, src=(group.rank - s) % group.size)
    return y
    ### END SOLUTION


def twice(x, group):
    ### BEGIN SOLUTION 91.2 twice the sum
    return 2 * total(x, group)
    ### END SOLUTION


def secret():
    ### BEGIN SOLUTION 91.3 guess
    return 0.0
    ### END SOLUTION
"""
# Bodies of `secret`, and what they try.
CHEATS = {
    "walking through all objects": """
    import gc
    from labkit.checks import tensors
    from labkit.checks.plugin import seed_of
    objects = gc.get_objects()
    (test,) = [one for one in objects if type(one).__name__ == "Function" and one.name == "test_secret"]
    for found in objects:
        if type(found).__name__ == "Checks":
            return tensors(seed_of(found.seed, test), 1, 1)[0].item()
    return 0.0""",
    "labkit patched": """
    import labkit.checks.judge as judge
    judge._close = lambda *args: True
    return 0.0""",
    "equal to everything": """
    class Any(float):
        __eq__ = lambda self, other: True
        __hash__ = None
    return Any(0)""",
    "a forged result, and an end": """
    import os
    os.write(1, b"earned 1\\n")
    os._exit(0)""",
}


def cheating(name: str) -> str:
    honest = "    ### BEGIN SOLUTION 91.3 guess\n    return 0.0\n    ### END SOLUTION"
    return OPS.replace(honest, CHEATS[name].strip("\n"))


class InProcess:
    """The runner that a sandbox stands against: no other process, no bytes in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, job: Job) -> Reply:
        for name in (job.package, f"{job.package}.{job.function.partition('.')[0]}"):
            sys.modules.pop(name, None)  # pytest has imported the course's package
        sys.path.insert(0, str(self.folder))
        module, _, function = job.function.rpartition(".")
        found = getattr(__import__(f"{job.package}.{module}", fromlist=[function]), function)
        return Reply(values=[found(*job.inputs[0])], inputs=list(job.inputs))

    def close(self) -> None:
        pass


def main(folder: Path) -> None:
    """Each cheat in a fork of its own, which prints "NAME: earned N"."""
    import pytest  # noqa: F401  not in each of them again
    import torch  # noqa: F401  the same

    import labkit.checks.plugin  # noqa: F401  the same

    week = load_week(make_week(folder / "course", OPS, TESTS, REGISTRY))
    for name in CHEATS:
        print(f"{name}: ", end="", flush=True)
        student = make_week(folder / name / "student", cheating(name), TESTS, REGISTRY)
        pid = os.fork()
        if pid == 0:
            outcome = run_checks(["91.3"], weeks=[week], runner=InProcess(student.parent), seed=7)
            print(f"earned {outcome.earned}", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
