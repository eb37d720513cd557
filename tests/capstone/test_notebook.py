"""lab.ipynb: its shape, and one run from top to bottom with the solutions."""

from __future__ import annotations

import re

import pytest

import capstone
from labkit.checks.tasks import load_week
from tests.notebooks import Notebook, source

NOTEBOOK = Notebook(capstone)
CELLS = NOTEBOOK.cells


def test_no_output_is_committed():
    NOTEBOOK.has_no_output()


def test_every_task_has_its_grade_cell():
    NOTEBOOK.has_its_grade_cells()


def test_three_predictions_come_before_what_they_predict():
    for number in (1, 2, 3):
        (at,) = [i for i, cell in enumerate(CELLS) if f"guess_{number} = on_record(" in source(cell)]
        used = [i for i, cell in enumerate(CELLS) if f"guess_{number}." in source(cell)]
        waits = [i for i, cell in enumerate(CELLS) if re.match(rf"%%needs guess_{number}\b", source(cell))]
        assert used and min(used) > at and waits == used, "a cell that shows what was guessed waits for the guess"
        keys = re.findall(r"(\w+)=None", source(CELLS[at]))
        assert keys and all(f'"{key}"' in source(CELLS[used[0]]) for key in keys)


def test_the_rubric_adds_up():
    text = " ".join(source(cell) for cell in CELLS)
    points = [int(n) for n in re.findall(r"^\| [^|]+\| (\d+) \|", text, re.M)]
    assert sum(points) == load_week(NOTEBOOK.folder).task("C.5").points


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points that tests give. The last cell checks all tasks: those that
    check one alone would do it a second time."""
    one = re.compile(r'"check\(\\"C\.[1-4]\\"\)"')
    assert len(one.findall(NOTEBOOK.text)) == 4
    run = NOTEBOOK.run(monkeypatch, text=one.sub('"pass"', NOTEBOOK.text))
    assert "waits for task" not in run.said and "80 of 80 automatic points" in run.plain, run.plain[-2000:]
