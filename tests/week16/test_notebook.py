"""Week 16's lab.ipynb: a student's copy on the first day, a run from top to bottom with the solutions."""

import re

import pytest

import week16_fp8
from tests.notebooks import Notebook
from tests.stripped import strip_folder

NOTEBOOK = Notebook(week16_fp8)
WEEK = NOTEBOOK.folder


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures == 9 + (any(WEEK.glob("results/bench/h200*.json"))) and run.nameless == 0
    assert not run.waits and (90, 90) in run.points
    assert "e4m3: 100.0% of the gradient become 0" in run.plain
    assert "step 0, whose scale is 1, loses 100%" in run.plain


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_with_every_task_open(tmp_path, monkeypatch):
    """In the student's tree on the first day no cell fails: those that need a task say which."""
    strip_folder(WEEK, tmp_path / WEEK.name)
    run = NOTEBOOK.run(monkeypatch, tmp_path / WEEK.name)
    # The given arms, the runs of 16.8, section 13 and what is on record of an H200: none needs a task.
    assert run.figures == 3 + any(WEEK.glob("results/bench/h200*.json")), "a picture of what nobody has written"
    shown = run.waits | set(re.findall(r"Task ([\d.]*\d)", run.plain))
    assert {f"16.{number}" for number in range(1, 9)} <= shown and (0, 90) in run.points
