"""Week 16's lab.ipynb: its shape, a student's copy on the first day, a run from top to bottom with the solutions."""

from __future__ import annotations

import re

import pytest

import week16_fp8
from labkit.checks.tasks import load_week
from tests.notebooks import Notebook, source
from tests.stripped import strip_folder

NOTEBOOK = Notebook(week16_fp8)
WEEK, CELLS = NOTEBOOK.folder, NOTEBOOK.cells
PREDICTIONS = 11


def test_no_output_is_committed():
    NOTEBOOK.has_no_output()


def test_every_task_has_its_grade_cell():
    NOTEBOOK.has_its_grade_cells()


def test_predictions_come_before_what_they_predict():
    places = [i for i, cell in enumerate(CELLS) if re.match(r"guess_\d+ = on_record", source(cell))]
    assert len(places) == PREDICTIONS
    for number, at in enumerate(places, 1):
        pattern = re.compile(rf"\bguess_{number}\.")
        used = [i for i, cell in enumerate(CELLS) if pattern.search(source(cell))]
        waits = [i for i, cell in enumerate(CELLS) if re.match(rf"%%needs guess_{number}\b", source(cell))]
        assert used and min(used) > at and waits and min(waits) == min(used)
        assert all(i in waits for i in used), "a cell that shows what was guessed waits for the guess"
        assert "None" in source(CELLS[at])
        asked = re.findall(r"(\w+)=None", source(CELLS[at]))
        shown = " ".join(source(CELLS[i]) for i in used)
        for key in asked:  # by name, or by a name that is put together
            assert key in shown or re.sub(r"_[^_]*$", "_{", key) in shown or f'"{key}"' in shown, key


def test_the_rubric_adds_up_and_the_answer_is_taken_out():
    text = " ".join(source(cell) for cell in CELLS)
    points = [int(n) for n in re.findall(r"^\| [a-z][^|]* \| (\d+) \|", text, re.M)]
    assert sum(points) == load_week(WEEK).task("16.9").points
    NOTEBOOK.takes_answers_out("task-16-9")


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures == 5 + (any(WEEK.glob("results/bench/h200*.json"))) and run.nameless == 0
    assert "waits for task" not in run.plain and "90 of 90 automatic points" in run.plain
    assert "e4m3: 100.0% of the gradient become 0" in run.plain
    assert "step 0, whose scale is 1, loses 100%" in run.plain


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_with_every_task_open(tmp_path, monkeypatch):
    """In the student's tree on the first day no cell fails: those that need a task say which."""
    strip_folder(WEEK, tmp_path / WEEK.name)
    run = NOTEBOOK.run(monkeypatch, tmp_path / WEEK.name)
    # The given arms beside one another, and what is on record of an H200: neither needs a task.
    assert run.figures == 1 + any(WEEK.glob("results/bench/h200*.json")), "a picture of what nobody has written"
    for task in ("16.1", "16.2", "16.3", "16.4", "16.5", "16.6", "16.7", "16.8"):
        assert f"waits for task {task}" in run.plain or f"Task {task}" in run.plain, task
    assert "0 of 90 automatic points" in run.plain
