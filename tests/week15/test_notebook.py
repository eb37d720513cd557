"""lab.ipynb: its shape, and one run from top to bottom with the solutions."""

from __future__ import annotations

import re

import pytest

import week15_tp_attention
from labkit.checks.tasks import load_week
from tests.notebooks import Notebook, source

NOTEBOOK = Notebook(week15_tp_attention)
WEEK, CELLS = NOTEBOOK.folder, NOTEBOOK.cells


def test_no_output_is_committed():
    NOTEBOOK.has_no_output()


def test_every_task_has_its_grade_cell():
    NOTEBOOK.has_its_grade_cells()


def test_eight_predictions_come_before_what_they_predict():
    places = [
        i
        for i, cell in enumerate(CELLS)
        if "on_record(" in source(cell) and cell["cell_type"] == "code" and "import" not in source(cell)
    ]
    assert len(places) == 8
    for number, at in enumerate(places, 1):
        used = [i for i, cell in enumerate(CELLS) if f"guess_{number}." in source(cell)]
        waits = [i for i, cell in enumerate(CELLS) if re.match(rf"%%needs guess_{number}\b", source(cell))]
        assert used and min(used) > at and waits == used, "a cell that shows what was guessed waits for the guess"
        keys = re.findall(r"(\w+)=None", source(CELLS[at]))
        shown = source(CELLS[used[0]])
        assert keys and all(f'"{key}"' in shown or key.startswith("D") for key in keys)


def test_the_rubric_adds_up_and_the_answer_is_taken_out():
    text = " ".join(source(cell) for cell in CELLS)
    points = [int(n) for n in re.findall(r"^\| [abc] \|[^|]*\| (\d+) \|", text, re.M)]
    assert sum(points) == load_week(WEEK).task("15.7").points
    NOTEBOOK.takes_answers_out("task-15-7")


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures >= 6 and run.nameless == 0
    assert "waits for task" not in run.said and "90 of 90 automatic points" in run.plain, run.plain[-2000:]
    assert "['all_reduce', 'all_reduce']" in run.said and "1F1B takes 1.00 of GPipe's time" in run.said
    assert "if forward and gradient sends wait: False" in run.said and run.said.count("sends wait: True") == 2
