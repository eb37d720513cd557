"""The shape of every week's lab.ipynb: its cells, its predictions, its rubric. Runs from top to bottom are beside the
weeks' other tests."""

import importlib
import re
from typing import NamedTuple

import pytest

from labkit.checks.tasks import load_week
from tests.notebooks import Notebook, source


class Shape(NamedTuple):
    """What differs: how many predictions; the written task, its lines in the rubric's table, and the cells that hold a
    model answer."""

    package: str
    predictions: int
    written: str
    rubric: str
    answers: tuple[str, ...] = ()


SHAPES = [
    Shape("week13_allreduce", 7, "13.7", r"(?:predictions|a\.|b\.)[^|]*", ("task-13-7-clocks", "task-13-7-topology")),
    Shape("week14_fsdp", 7, "14.6", r"[a-z][^|]*", ("task-14-6-scaling",)),
    Shape("week15_tp_attention", 8, "15.7", r"[abc] \|[^|]*", ("task-15-7",)),
    Shape("week16_fp8", 15, "16.9", r"[a-z][^|]*", ("task-16-9",)),
    Shape("capstone", 3, "C.5", r"[^|]+"),
]
# Names that a cell puts together, as f"{N}_GPUs".
COMPOSED = {"D4096_on_2", "D1024_on_2", "D4096_on_4", "percent_lost_e4m3", "percent_lost_e5m2"}
# More cells wait for these than show them.
AWAITED = {("week13_allreduce", 7), ("week14_fsdp", 1)}


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.package)
def shape(request):
    return request.param


@pytest.fixture
def notebook(shape):
    return Notebook(importlib.import_module(shape.package))


def test_no_output_is_committed(notebook):
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_every_task_has_its_grade_cell(notebook):
    notebook.has_its_grade_cells()


def test_predictions_come_before_what_they_predict(notebook, shape):
    code = [source(cell) if cell["cell_type"] == "code" else "" for cell in notebook.cells]
    made = [found[1] for text in code if (found := re.search(r"^guess_(\d+) = on_record\(", text, re.M))]
    assert made == [str(number) for number in range(1, shape.predictions + 1)]
    for number in range(1, shape.predictions + 1):
        (at,) = (i for i, text in enumerate(code) if f"guess_{number} = on_record(" in text)
        used = [i for i, text in enumerate(code) if re.search(rf"\bguess_{number}\.", text)]
        waits = [i for i, text in enumerate(code) if re.match(rf"%%needs guess_{number}\b", text)]
        assert used and min(used) > at and min(waits) == min(used)
        assert set(used) <= set(waits), "a cell that shows what was guessed waits for the guess"
        assert used == waits or (shape.package, number) in AWAITED
        keys = re.findall(r"(\w+)=None", code[at])
        shown = "".join(code[i] for i in used)
        assert keys
        for key in set(keys) - COMPOSED:
            assert f'"{key}"' in shown or f"guess_{number}.{key}" in shown, f"{key} is never shown"


def test_the_rubric_adds_up_and_the_answers_are_taken_out(notebook, shape):
    text = " ".join(source(cell) for cell in notebook.cells)
    points = re.findall(rf"^\| {shape.rubric}\| (\d+) \|", text, re.M)
    assert sum(map(int, points)) == load_week(notebook.folder).task(shape.written).points
    notebook.takes_answers_out(*shape.answers)
