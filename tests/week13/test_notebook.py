"""lab.ipynb: what a student's copy of it does, and one run from top to bottom with the solutions."""

import json
from datetime import datetime

import pytest

import week13_allreduce
from labkit.notebook import SKIP, load_ipython_extension, on_record, open_task, waiting_sentence
from tests.notebooks import Notebook

NOTEBOOK = Notebook(week13_allreduce)


def test_an_open_task_is_recognised_wherever_it_was_met():
    blank = NotImplementedError("Task 13.2: ring reduce-scatter")
    assert open_task(blank) == ("13.2", "ring reduce-scatter")
    wrapped = RuntimeError("rank 0 raised NotImplementedError: Task 13.2: ring reduce-scatter (collectives.py:121)")
    assert open_task(wrapped) == ("13.2", "ring reduce-scatter")
    failed = RuntimeError("rank 1 failed")
    failed.__cause__ = blank
    assert open_task(failed) == ("13.2", "ring reduce-scatter")
    assert open_task(NotImplementedError("not here")) is None and open_task(ValueError("Task 13.2")) is None
    assert waiting_sentence("13.2", "ring reduce-scatter") == (
        "This cell waits for task 13.2, ring reduce-scatter: write it in week13_allreduce/collectives.py."
    )


def test_predictions_are_kept_with_their_date_and_ask_for_what_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for GB in (3, 3, 4):  # a repeated one adds no line, a changed one does
        guess = on_record("prediction 1", ms=None, GB=GB)
    assert guess.ms is None and guess.GB == 4 and guess.open == ["ms"]
    assert "on record (predictions.jsonl): GB = 3" in capsys.readouterr().out
    on_record("prediction 2", comes_back=None)  # a blank is not a prediction
    assert "Write True or False" in capsys.readouterr().out
    on_record("prediction 3", first_comes_back=False)
    skipped = on_record("prediction 5", ms=SKIP)
    assert skipped.open == [] and skipped.ms is None and skipped.beside("ms") == "" and not hasattr(skipped, "seconds")
    assert kept(tmp_path) == [
        {"prediction": "prediction 1", "GB": 3},
        {"prediction": "prediction 1", "GB": 4},
        {"prediction": "prediction 3", "first_comes_back": False},
        {"prediction": "prediction 5", "ms": SKIP},
    ]
    (tmp_path / "predictions.jsonl").write_text("no json\n")
    capsys.readouterr()
    assert on_record("prediction 4", wire=1).wire == 1 and "here only" in capsys.readouterr().out


def kept(folder):
    """The lines of predictions.jsonl without their times."""
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert all(datetime.fromisoformat(line.pop("time")).tzinfo for line in lines)
    return lines


def test_a_cell_waits_for_its_guess_and_both_times_are_kept(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_GUESSES", raising=False)
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell("from labkit.notebook import SKIP, on_record")
    cell = "%%needs guess_7\nprint('measured: 5' + guess_7.beside('ms'))"
    shell.run_cell(cell)
    assert "run the cell above that makes guess_7" in capsys.readouterr().out
    shell.run_cell("guess_7 = on_record('prediction 7', ms=None)")
    shell.run_cell(cell)
    out = capsys.readouterr().out
    assert "write SKIP" in out and "measured" not in out
    assert not (tmp_path / "predictions.jsonl").exists()
    shell.run_cell("guess_7 = on_record('prediction 7', ms=3)")
    for _ in range(2):
        shell.run_cell(cell)
    assert capsys.readouterr().out.count("measured: 5   (your guess: 3)") == 2
    shell.run_cell("guess_7 = on_record('prediction 7', ms=5)")
    assert "Its cell had already run" in capsys.readouterr().out
    first, again = ({"prediction": "prediction 7", "ms": ms} for ms in (3, 5))
    assert kept(tmp_path) == [first, {"ran": "prediction 7"}, again]


def test_where_nobody_guesses_cells_run_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_GUESSES", "skip")
    guess = on_record("prediction 1", ms=None)
    guess.ran()
    assert guess.open == [] and guess.ms is None and not any(tmp_path.iterdir())


def test_needs_says_which_task_and_hides_nothing_else(capsys):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell("%%needs 13.4\nraise NotImplementedError('Task 13.4: ring all-reduce')")
    out = capsys.readouterr()
    assert (out.out, out.err) == (waiting_sentence("13.4", "ring all-reduce") + "\n", "")
    result = shell.run_cell("%%needs 13.4\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    shell.run_cell("%%needs 13.4\nfound = 41 + 1")
    assert shell.user_ns["found"] == 42


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_it_runs_from_top_to_bottom(monkeypatch):
    """With the solutions; every cell, no error, all points, and the pictures are there. Takes about two minutes."""
    run = NOTEBOOK.run(monkeypatch)
    assert run.figures == 9 and run.nameless == 0
    assert not run.waits and (80, 80) in run.points
    assert "naive                 4.768 ms  4.768 ms" in run.said
