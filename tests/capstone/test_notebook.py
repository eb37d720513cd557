"""lab.ipynb: one run from top to bottom with the solutions."""

import re

import pytest

import capstone
from tests.notebooks import Notebook

NOTEBOOK = Notebook(capstone)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points that tests give. The last cell checks all tasks: those that
    check one alone would do it a second time."""
    one = re.compile(r'"check\(\\"C\.[1-4]\\"\)"')
    assert len(one.findall(NOTEBOOK.text)) == 4
    run = NOTEBOOK.run(monkeypatch, text=one.sub('"pass"', NOTEBOOK.text))
    assert not run.waits and (80, 80) in run.points, run.plain[-2000:]
