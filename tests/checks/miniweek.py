"""A small week of its own for these tests: a folder as the real ones, made in a temporary place."""

from pathlib import Path

from labkit.checks.runner import Job, Reply

REGISTRY = """
title = "Mini"
notebook = "lab.ipynb"
tests = ["test_week91.py"]

[[task]]
id = "91.1"
title = "adding up"
kind = "auto"
points = 10
functions = ["ops.total"]

[[task]]
id = "91.2"
title = "adding up twice"
kind = "auto"
points = 5
functions = ["ops.twice"]
stands_on = ["91.1"]

[[task]]
id = "91.3"
title = "an essay"
kind = "written"
points = 5

[[task]]
id = "91.4"
title = "more"
kind = "stretch"
points = 0
"""

TESTS = '''
import pytest, torch
from labkit.checks import call, call_alone, same, sent, task, tensors


@task("91.1", points=9)
@pytest.mark.parametrize("N, L", [(1, 4), (2, 4), (3, 5)])
def test_total(N, L, seed):
    """Adds up over the ranks."""
    x = tensors(seed, N, L)
    got, ledger = call("ops.total", x, in_place=True)
    for r in range(N):
        same(got[r], torch.stack(x).sum(0), rank=r, looks_like={"nothing added": x[r]})


@task("91.1", points=1)
def test_name():
    """Knows its name"""
    assert call_alone("ops.name") == "ops"


@task("91.2", points=5)
def test_twice(seed):
    """Twice"""
    x = tensors(seed, 2, 4)
    got, _ = call("ops.twice", x, in_place=True)
    same(got[0], 2 * torch.stack(x).sum(0))


@task("91.4", points=0)
def test_stretch():
    same(call_alone("ops.more"), 1)
'''

OPS = """
import torch


def total(x, group):
    ### BEGIN SOLUTION 91.1 the sum
    return group.all_reduce(x)
    ### END SOLUTION


def name():
    ### BEGIN SOLUTION 91.1 the name
    return "ops"
    ### END SOLUTION


def twice(x, group):
    ### BEGIN SOLUTION 91.2 twice the sum
    return 2 * total(x, group)
    ### END SOLUTION


def more():
    ### BEGIN SOLUTION 91.4 more
    return 1
    ### END SOLUTION
"""


class Answering:
    """A runner without processes: `answer(job)` gives the Reply. It keeps its jobs."""

    def __init__(self, answer):
        self.answer, self.jobs = answer, []

    def run(self, job: Job) -> Reply:
        self.jobs.append(job)
        return self.answer(job)

    def close(self):
        pass


def make_week(root: Path, ops: str = OPS, tests: str = TESTS, registry: str = REGISTRY) -> Path:
    """Write the week below `root`; returns its folder."""
    folder = root / "week91_mini"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text('"""Mini."""\n')
    (folder / "tasks.toml").write_text(registry)
    (folder / "test_week91.py").write_text(tests)
    (folder / "ops.py").write_text(ops)
    return folder
