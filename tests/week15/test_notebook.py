"""lab.ipynb: one run from top to bottom with the solutions."""

import pytest

import week15_tp_attention
from tests.notebooks import Notebook

NOTEBOOK = Notebook(week15_tp_attention)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures >= 6 and run.nameless == 0
    assert not run.waits and (90, 90) in run.points, run.plain[-2000:]
    assert "['all_reduce', 'all_reduce']" in run.said and "1F1B takes 1.00 of GPipe's time" in run.said
    assert "if forward and gradient sends wait: False" in run.said and run.said.count("sends wait: True") == 2
