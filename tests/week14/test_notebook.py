"""lab.ipynb: what a student's copy of it does, and one run from top to bottom with the solutions."""

import pytest

import week14_fsdp
from tests.notebooks import Notebook, source
from tests.stripped import strip_folder

NOTEBOOK = Notebook(week14_fsdp)
WEEK, CELLS = NOTEBOOK.folder, NOTEBOOK.cells


def test_the_peaks_that_were_measured_are_shown_after_prediction_1():
    (cell,) = (source(cell) for cell in CELLS if "memory_table(" in source(cell))
    assert cell.startswith("%%needs guess_1 14.1\n") and "memory.memory(" in cell, "with the student's own numbers"


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions: every cell, no error, all points, all pictures."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures == 8 and run.nameless == 0
    assert not run.waits and (85, 85) in run.points
    assert "buckets of 64 MiB: 4.5 ms exposed" in run.said and "1.46 times as long" in run.said


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_a_students_first_run_waits_kindly(tmp_path, monkeypatch):
    """Without the solutions: no error, and each cell that needs a task says which."""
    folder = tmp_path / WEEK.name
    strip_folder(WEEK, folder)
    run = NOTEBOOK.run(monkeypatch, folder)
    assert {"14.1", "14.2", "14.3", "14.4", "14.5"} <= run.waits
    assert run.figures == 1 and run.nameless == 0, "the recorded scaling runs need no task"
    assert "Traceback" not in run.said
