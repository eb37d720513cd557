"""lab.ipynb: its shape, what a student's copy of it does, and one run from top to bottom with the solutions."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

import week13_allreduce
from labkit.checks.markers import strip_notebook
from labkit.checks.tasks import load_week
from labkit.notebook import load_ipython_extension, on_record, open_task, waiting_sentence

WEEK = Path(week13_allreduce.__file__).parent
TEXT = (WEEK / "lab.ipynb").read_text(encoding="utf-8")
CELLS = json.loads(TEXT)["cells"]


def source(cell):
    return "".join(cell["source"])


def grade_cells(cells):
    return {cell["metadata"]["labkit"]["grade_id"]: cell for cell in cells if "labkit" in cell["metadata"]}


def test_no_output_is_committed():
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_every_task_has_its_grade_cell():
    week, found = load_week(WEEK), grade_cells(CELLS)
    ids = [cell["id"] for cell in CELLS]
    assert len(set(ids)) == len(ids)
    for task in week.tasks:
        if task.kind == "auto":
            assert source(found[task.cell]).strip() == f'check("{task.id}")'
        if task.kind == "written":
            assert any(name.startswith(task.cell) for name in found)
    for name, cell in found.items():
        assert cell["id"] == name and name.startswith("task-" + cell["metadata"]["labkit"]["task"].replace(".", "-"))
    headings = " ".join(source(cell) for cell in CELLS if cell["cell_type"] == "markdown")
    for task in week.tasks:
        assert re.search(rf"\b{task.id}\b", headings), f"task {task.id} is never named"


def test_five_predictions_come_before_what_they_predict():
    places = [
        i
        for i, cell in enumerate(CELLS)
        if "on_record(" in source(cell) and cell["cell_type"] == "code" and "import" not in source(cell)
    ]
    assert len(places) == 5
    for number, at in enumerate(places, 1):
        used = [i for i, cell in enumerate(CELLS) if f"guess_{number}." in source(cell)]
        assert not used or min(used) > at
        assert "None" in source(CELLS[at])


def test_the_rubric_adds_up_and_the_answers_are_taken_out():
    text = " ".join(source(cell) for cell in CELLS)
    points = [int(n) for n in re.findall(r"^\| (?:predictions|a\.|b\.)[^|]*\| (\d+) \|", text, re.M)]
    assert sum(points) == load_week(WEEK).task("13.7").points
    student = json.loads(strip_notebook(TEXT))["cells"]
    for name in ("task-13-7-clocks", "task-13-7-topology"):
        assert "Write your answer here" in source(grade_cells(student)[name])
        assert len(source(grade_cells(student)[name])) < 200 < len(source(grade_cells(CELLS)[name]))


def test_an_open_task_is_recognised_wherever_it_was_met():
    hole = NotImplementedError("Task 13.2: ring reduce-scatter")
    assert open_task(hole) == ("13.2", "ring reduce-scatter")
    wrapped = RuntimeError("rank 0 raised NotImplementedError: Task 13.2: ring reduce-scatter (collectives.py:121)")
    assert open_task(wrapped) == ("13.2", "ring reduce-scatter")
    failed = RuntimeError("rank 1 failed")
    failed.__cause__ = hole
    assert open_task(failed) == ("13.2", "ring reduce-scatter")
    assert open_task(NotImplementedError("not here")) is None and open_task(ValueError("Task 13.2")) is None
    assert waiting_sentence("13.2", "ring reduce-scatter") == (
        "This cell waits for task 13.2, ring reduce-scatter: write it in week13_allreduce/collectives.py."
    )


def test_predictions_ask_for_what_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guess = on_record("prediction 1", ms=None, GB=3)
    assert guess.ms is None and guess.GB == 3
    out = capsys.readouterr().out
    assert "still open: ms. Write a number" in out and "on record (predictions.jsonl): GB = 3" in out
    on_record("prediction 3", first_comes_back=None)
    assert "Write True or False" in capsys.readouterr().out


def test_predictions_are_kept_with_their_date(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for GB in (3, 3, 4):  # a repeated one adds no line, a changed one does
        on_record("prediction 1", ms=None, GB=GB)
    on_record("prediction 2", ms=None)  # a blank is not a prediction
    on_record("prediction 3", first_comes_back=False)
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in line.items() if k != "time"} for line in lines] == [
        {"prediction": "prediction 1", "GB": 3},
        {"prediction": "prediction 1", "GB": 4},
        {"prediction": "prediction 3", "first_comes_back": False},
    ]
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in lines)
    (tmp_path / "predictions.jsonl").write_text("no json\n")
    capsys.readouterr()
    assert on_record("prediction 4", wire=1).wire == 1 and "here only" in capsys.readouterr().out


def test_needs_says_which_task_and_hides_nothing_else(capsys):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell("%%needs 13.4\nraise NotImplementedError('Task 13.4: ring all-reduce')")
    out = capsys.readouterr()
    assert "waits for task 13.4, ring all-reduce" in out.out and "Traceback" not in out.out + out.err
    result = shell.run_cell("%%needs 13.4\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    shell.run_cell("%%needs 13.4\nfound = 41 + 1")
    assert shell.user_ns["found"] == 42


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there. Takes about a minute."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(WEEK.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    notebook = nbformat.reads(TEXT, 4)
    begin = time.perf_counter()
    nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(WEEK)}}
    ).execute()  # raises on the first error
    seconds = time.perf_counter() - begin
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pages = "".join(o.data.get("text/html", "") for o in outputs if o.output_type == "display_data")
    assert pages.count("<figure") == 7 and pages.count('alt=""') == 0
    said = "".join(o.text for o in outputs if o.output_type == "stream") + pages
    assert "waits for task" not in said and "80 of 80 automatic points" in re.sub(r"<[^>]+>", "", said)
    assert "naive                 4.768 ms  4.768 ms" in said
    assert seconds < 180, f"{seconds:.0f} s: a student on two cores was promised three minutes"
