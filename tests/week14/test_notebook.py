"""lab.ipynb: its shape, what a student's copy of it does, and one run from top to bottom with the solutions."""

from __future__ import annotations

import re

import pytest

import week14_fsdp
from labkit.checks.tasks import load_week
from tests.notebooks import Notebook, source
from tests.stripped import strip_folder

NOTEBOOK = Notebook(week14_fsdp)
WEEK, CELLS = NOTEBOOK.folder, NOTEBOOK.cells
GUESSES = 7


def test_no_output_is_committed():
    NOTEBOOK.has_no_output()


def test_every_task_has_its_grade_cell():
    NOTEBOOK.has_its_grade_cells()


def test_predictions_come_before_what_they_predict():
    places = [i for i, cell in enumerate(CELLS) if "= on_record(" in source(cell)]
    assert len(places) == GUESSES
    for number, at in enumerate(places, 1):
        used = [i for i, cell in enumerate(CELLS) if f"guess_{number}." in source(cell)]
        waits = [i for i, cell in enumerate(CELLS) if re.match(rf"%%needs guess_{number}\b", source(cell))]
        assert used and min(waits) > at, "it is asked before anything waits for it"
        assert set(used) <= set(waits), "a cell that shows what was guessed waits for the guess"
        assert "None" in source(CELLS[at])
        for name in re.findall(r"(\w+)=None", source(CELLS[at])):
            assert any(f'guess_{number}.beside("{name}")' in source(CELLS[i]) for i in used), f"{name} is never shown"


def test_the_peaks_that_were_measured_are_shown_after_prediction_1():
    (cell,) = (source(cell) for cell in CELLS if "memory_table(" in source(cell))
    assert cell.startswith("%%needs guess_1 14.1\n") and "memory.memory(" in cell, "with the student's own numbers"


def test_the_rubric_adds_up_and_the_answer_is_taken_out():
    text = " ".join(source(cell) for cell in CELLS)
    points = [int(n) for n in re.findall(r"^\| [a-z][^|]*\| (\d+) \|", text, re.M)]
    assert sum(points) == load_week(WEEK).task("14.6").points
    NOTEBOOK.takes_answers_out("task-14-6-scaling")


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions: every cell, no error, all points, all pictures."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures == 8 and run.nameless == 0
    assert "waits for task" not in run.said and "85 of 85 automatic points" in run.plain
    assert "buckets of 64 MiB: 4.5 ms exposed" in run.said and "1.46 times as long" in run.said


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_a_students_first_run_waits_kindly(tmp_path, monkeypatch):
    """Without the solutions: no error, and each cell that needs a task says which."""
    folder = tmp_path / WEEK.name
    strip_folder(WEEK, folder)
    run = NOTEBOOK.run(monkeypatch, folder)
    for task in ("14.1", "14.2", "14.3", "14.4", "14.5"):
        assert f"This cell waits for task {task}" in run.said
    assert run.figures == 1 and run.nameless == 0, "the recorded scaling runs need no task"
    assert "Traceback" not in run.said
