"""The tiers and their budgets: who pays for a test, what is recorded, and that a budget can be exceeded."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("tests/week13/test_bench.py", "week13"),
        ("tests/test_mutants14.py", "week14"),
        ("tests/capstone/test_faults.py", "capstone"),
        ("tests/comm/test_group.py", "labkit"),
        ("tests/crossover/test_crossover.py", "compare"),
        ("tests/grading/sandbox/test_honest.py", "grading"),
        ("tests/test_cli.py", "course"),
        ("tests/bad_input/test_bad_input.py", "course"),
    ],
)
def test_who_pays(file, part):
    assert tiers.part_of(file) == part


def test_recorded_seconds_are_within_the_budgets():
    assert not tiers.over(tiers.load()), "make tests cheaper, or mark some thorough; then `make durations`"


@pytest.mark.parametrize("week", [13, 14, 15, 16])
def test_a_notebook_takes_no_longer_than_a_student_was_promised(week):
    """Four minutes. As it was recorded: the seconds of a slower machine would make a right commit red."""
    name = f"tests/week{week}/test_notebook.py::test_it_runs_from_top_to_bottom"
    assert tiers.load()["thorough"][name] < 240


def test_every_test_file_is_recorded():
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    new = tiers.unrecorded(files, tiers.load())
    assert not new, f"make durations TESTS='{' '.join(new)}'"


def test_a_part_over_its_budget_is_named():
    recorded = {"quick": {"tests/week99/test_x.py": 60.4, "tests/week99/test_y.py::z": 0.6}, "thorough": {}}
    assert tiers.over(recorded) == ["week99, quick: 61 core seconds, 60 allowed"]
    recorded["quick"]["tests/week99/test_x.py"] = 59.4
    assert tiers.over(recorded) == []


def test_a_file_of_which_nothing_is_recorded_is_named():
    recorded = {"quick": {"tests/comm/test_a.py::x": 3.0}, "thorough": {"tests/comm/test_b.py": 1.0}}
    files = {"tests/comm/test_a.py", "tests/comm/test_b.py", "tests/comm/test_c.py"}
    assert tiers.unrecorded(files, recorded) == ["tests/comm/test_c.py"]


def test_small_functions_are_told_with_their_file():
    spent = {
        "quick": Counter({"tests/a.py::x": 3.0, "tests/a.py::y": 0.2, "tests/a.py::z": 0.1}),
        "thorough": Counter(),
    }
    nothing = {"quick": {}, "thorough": {}}
    assert tiers.condense(spent, nothing) == {"quick": {"tests/a.py": 0.3, "tests/a.py::x": 3.0}, "thorough": {}}


def test_measuring_one_file_leaves_the_others_as_recorded_and_forgets_files_that_are_gone():
    here = "tests/test_tiers.py"
    recorded = {
        "quick": {here: 1.0, "tests/conftest.py": 2.0, "tests/gone.py": 3.0},
        "thorough": {f"{here}::slow": 9.0},
    }
    spent = {"quick": Counter({f"{here}::fast": 0.7}), "thorough": Counter()}
    assert tiers.condense(spent, recorded) == {
        "quick": {f"{here}::fast": 0.7, "tests/conftest.py": 2.0},
        "thorough": {},
    }


def test_the_meter_counts_what_a_child_computes_dead_or_alive():
    # In a process of its own: others' children come and go in this one. The kernel counts in ticks of 10 ms, user and
    # system apart: a few may be missing.
    code = """
import subprocess, sys
from tests.tiers import Meter
burn = "import time\\nwhile time.process_time() < 0.5: pass\\n"
meter = Meter()
subprocess.run([sys.executable, "-c", burn], check=True)
dead = meter.read()
child = subprocess.Popen([sys.executable, "-c", burn + "print(flush=True); input()"], stdin=-1, stdout=-1, text=True)
child.stdout.readline()
print(dead, meter.read())
child.communicate("\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    dead, alive = map(float, done.stdout.split())
    assert dead > 0.45 and alive > 0.45
