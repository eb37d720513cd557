"""Whose line is named, where a student's function is called by the course's files, and calls them."""

import importlib
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch

from labkit.comm import callsite
from labkit.comm.autopsy import RanksFailed
from labkit.comm.callsite import describe_error, frames_of
from labkit.comm.diagnose import _own_line
from labkit.comm.threads import run

SCENARIOS = """
from ops import product, walk

def within(function, *args):
    return function(*args)

def count(x, w):  # stands around a student's product, as a dispatch mode does
    return torch.mm(x, w)

def drive():
    return product(count)

def alone():
    raise ValueError("the course's own")

def apart(group, who):
    if group.rank == who:
        walk(group, meet)
    group.barrier()

def meet(group):
    group.all_reduce(torch.ones(3))
"""
OPS = """
def product(count):
    return count(torch.ones(2, 3), torch.ones(2, 3))

def walk(group, meet):
    meet(group)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, dy):
        return dy
"""


@pytest.fixture
def week(tmp_path, monkeypatch):
    """A week's two files, imported from where they lie: `scenarios.drive()` calls `ops.product`."""
    for name, text in (("ops", OPS), ("scenarios", SCENARIOS)):
        (tmp_path / f"{name}.py").write_text("import torch\n" + textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callsite, "_root", f"{tmp_path}/")
    yield importlib.import_module("scenarios"), importlib.import_module("ops")
    for name in ("ops", "scenarios"):
        sys.modules.pop(name)


def line_of(module, words):
    text = Path(module.__file__).read_text().splitlines()
    return f"{module.__file__}:{next(number for number, line in enumerate(text, 1) if words in line)}"


def raised(function):
    with pytest.raises((RuntimeError, ValueError)) as error:
        function()
    return error.value


def test_an_error_within_the_courses_file_is_the_students_who_called_it(week):
    scenarios, ops = week
    said = describe_error(raised(scenarios.drive))
    assert _own_line(said["stack"]) == line_of(ops, "return count(")
    calls = [line.split()[-1] for line in said["traceback"].splitlines() if ", line " in line]
    assert calls == ["raised", "drive", "product"], "how theirs was called, and nothing below that they cannot mend"


def test_an_error_that_no_line_of_a_students_led_to_stays_where_it_is(week):
    scenarios, _ = week
    said = describe_error(raised(scenarios.alone))
    assert _own_line(said["stack"]) == line_of(scenarios, "raise ValueError")


@pytest.mark.parametrize("gives", ["dy", "(dy, dy[1:])"])
def test_a_backward_that_gives_too_little_is_named(week, gives, tmp_path):
    """torch says so when the function has returned: its frame is gone."""
    _, ops = week
    (tmp_path / "ops.py").write_text("import torch\n" + OPS.replace("return dy", f"return {gives}"))
    ops = importlib.reload(ops)
    x = torch.ones(4, requires_grad=True)
    error = raised(ops.Double.apply(x, x).sum().backward)
    assert _own_line(describe_error(error)["stack"]) == line_of(ops, "def backward")
    assert frames_of(error)[-1].name == "backward"


@pytest.mark.parametrize("who", [0, 1])
def test_ranks_that_part_are_shown_at_the_students_line(week, who):
    """One stands in a collective that a student's function asked the course for, the other in the course's barrier."""
    scenarios, ops = week
    with pytest.raises(RanksFailed) as failed:
        run(partial(scenarios.apart, who=who), (), 2, 5.0)
    autopsy = failed.value.autopsy
    assert autopsy.call == line_of(ops, "meet(group)")
    assert f"barrier at {line_of(scenarios, 'group.barrier()')}, the course's line and not yours" in autopsy.cause


def test_whose_a_file_is(monkeypatch):
    monkeypatch.setattr(callsite, "_root", "/home/anna/course/")
    mine = "/home/anna/course/week90_x/ops.py"
    assert callsite.students(mine)
    assert not callsite.students("/home/anna/course/week90_x/scenarios.py")
    assert not callsite.students("/home/anna/course/week90_x/given/blocks.py")
    assert not callsite.students("/tmp/reference/week90_x/ops.py"), "the reference's, in place of theirs"
    assert not callsite.students(torch.__file__) and not callsite.students(callsite.__file__)
    assert not callsite.students("<string>")
    above, between = f"{callsite._ROOT}/labkit/comm/threads.py", f"{callsite._ROOT}/labkit/checks/outcome.py"
    assert callsite.cut([above, mine, between, mine, torch.__file__], str) == [mine, mine, torch.__file__]
    stack = ["<frozen importlib._bootstrap>", torch.__file__, "/tmp/reference/week90_x/ops.py", mine]
    assert [callsite.pick_frame(stack[:most]) for most in (1, 2, 3, 4)] == [None, 1, 2, 3]
