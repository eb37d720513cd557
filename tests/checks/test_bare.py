"""Tasks judged without torch: what they can reach, what they cannot, and how their ends are reported."""

import pytest

from labkit.checks import load_week, run_checks
from labkit.checks.runner import LocalRunner

REGISTRY = """
title = "Bare"
notebook = "lab.ipynb"
tests = ["test_week93.py"]

[[task]]
id = "93.1"
title = "doubling"
kind = "auto"
points = 4
functions = ["bits.double"]
without = ["torch", "ml_dtypes"]

[[task]]
id = "93.2"
title = "doubling with torch"
kind = "auto"
points = 1
functions = ["bits.with_torch"]
"""

TESTS = '''
import torch
from labkit.checks import call_alone, call_each, expect, same, task


@task("93.1", points=3)
def test_double(seed):
    """Doubles bits"""
    x = torch.arange(6, dtype=torch.int32).reshape(2, 3).to(torch.uint16)
    got = call_alone("bits.double", x, scale=2)
    same(got, torch.tensor([[0, 2, 4], [6, 8, 10]]).to(torch.uint16))
    a, b = call_each("bits.double", [(x, 0), (x.float(), 3)])
    expect(not a.long().any() and b.dtype == torch.float32, "the dtype is kept")


@task("93.1", points=1)
def test_kind():
    """Sees NumPy arrays, and returns what it likes"""
    got = call_alone("bits.kind", torch.ones(2))
    expect(got == {"kind": "numpy.ndarray", "list": (1.5, None)}, f"{got}")


@task("93.2", points=1)
def test_with_torch():
    """The other task has torch"""
    same(call_alone("bits.with_torch", torch.ones(2)), torch.ones(2) * 2)
'''

BITS = """
import numpy as np


def double(x, scale=2):
    return x * x.dtype.type(scale)


def kind(x):
    return {"kind": f"{type(x).__module__}.{type(x).__name__}", "list": (1.5, None)}


def with_torch(x):
    import torch

    return torch.add(x, x)
"""


@pytest.fixture(scope="module")
def runner():
    with LocalRunner() as local:
        yield local


def make(folder, bits=BITS):
    week = folder / "week93_bare"
    week.mkdir()
    for name, text in (("tasks.toml", REGISTRY), ("test_week93.py", TESTS), ("bits.py", bits), ("__init__.py", "")):
        (week / name).write_text(text)
    return week


def checked(tmp_path, runner, bits=BITS, deadline=30.0):
    return run_checks(weeks=[load_week(make(tmp_path, bits))], runner=runner, seed=1, deadline=deadline)


def test_arrays_cross_and_come_back_in_their_dtypes(tmp_path, runner):
    outcome = checked(tmp_path, runner)
    assert outcome.full, [case.text for case in outcome.cases]


@pytest.mark.parametrize("line", ["import torch", "import torch.nn", "from ml_dtypes import float8_e4m3fn"])
def test_what_it_is_judged_without_is_refused_by_name(tmp_path, runner, line):
    outcome = checked(tmp_path, runner, line + "\n" + BITS)
    first = outcome.of("93.1")[0]
    name = line.split()[1].partition(".")[0]
    assert first.verdict == "crashed" and f"task 93.1 is judged without {name}" in first.text, first.text


@pytest.mark.parametrize(
    "body, verdict, words",
    [
        ("import os; os._exit(3)", "crashed", "ended without an answer (status 3)"),
        ("raise ValueError('no')", "crashed", "ValueError: no"),
        ("raise NotImplementedError('Task 93.1: doubling')", "not attempted", "Task 93.1: doubling"),
        ("import sys; sys.stdin.read(); print('hello'); return None", "no result", "None came back"),
    ],
)
def test_how_it_may_end(tmp_path, runner, body, verdict, words):
    bits = BITS.replace("    return x * x.dtype.type(scale)", f"    {body}")
    first = checked(tmp_path, runner, bits).of("93.1")[0]
    assert first.verdict == verdict and words in first.text, first.text
    assert first.printed == "hello\n" * body.count("hello")


def test_an_endless_one_ends_at_the_deadline_and_nothing_stays(tmp_path, runner):
    bits = BITS.replace("    return x * x.dtype.type(scale)", "    while True: pass")
    first, second, _ = checked(tmp_path, runner, bits, deadline=3.0).cases
    assert first.verdict == "hung" and second.verdict == "passed"
    who = "rank 0 waits for double, which runs in a process of its own: importing bits.py, or the call, does not end"
    cause = f"Rank 0 did not finish; {who}."  # and no line of a student's
    assert first.text == f"The ranks did not end within 3 s. {cause}\n\n  {who.replace('0', '0 ', 1)}"
