"""Reading a record that is being written: parts, torn lines, cuts, another file in its place; what a picture gets."""

import json
import math
import os
import random

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.record.run import RunRecord
from labkit.watch.folder import Folder, Tail, at_work, runs_in
from labkit.watch.source import Source
from labkit.watch.tables import BINS, cells, outline
from tests.watch.lines import lines, write


def put(file, *steps, end="\n"):
    with open(file, "a") as stream:
        stream.write("\n".join(json.dumps({"step": s, "x": s * 1.5}) for s in steps) + end)


def test_only_what_is_new_and_whole(tmp_path):
    tail = Tail(tmp_path / "f")
    assert tail.read() == ([], False) and tail.written is None
    put(tail.file, 1, 2)
    assert [line["step"] for line in tail.read()[0]] == [1, 2]
    put(tail.file, 3, end="")
    assert tail.read() == ([], False)
    put(tail.file, end="\nnot json\n")
    put(tail.file, 4)
    assert [line["step"] for line in tail.read()[0]] == [3, 4] and tail.torn == 1
    assert tail.read() == ([], False) and tail.written > 0


def test_a_long_file_comes_in_parts(tmp_path):
    put(tmp_path / "f", *range(500))
    tail, got = Tail(tmp_path / "f", most=1000), []
    while not got or tail.behind:
        new, anew = tail.read()
        assert not anew and len(new) < 60
        got += new
    assert [line["step"] for line in got] == list(range(500))
    short = Tail(tmp_path / "f", most=5)
    assert short.read()[0] == [{"step": 0, "x": 0.0}], "a line that is longer than a look is read nevertheless"


@pytest.mark.parametrize("later", [1, 3, 40], ids=["shorter", "as long", "longer"])
def test_a_file_that_was_cut_back_and_grew_is_read_anew(tmp_path, later):
    tail = Tail(tmp_path / "f")
    put(tail.file, 1, 2, 3, 4, 5)
    tail.read()
    keep = tail.file.read_text().splitlines(keepends=True)[:2]
    tail.file.write_text("".join(keep))
    for step in range(3, 3 + later):
        with tail.file.open("a") as stream:
            stream.write(json.dumps({"step": step, "x": step * 1.6}) + "\n")
    got, anew = tail.read()
    assert anew and [line["step"] for line in got] == [1, 2, *range(3, 3 + later)]
    assert tail.read() == ([], False)


def test_another_file_in_its_place_and_none(tmp_path):
    tail = Tail(tmp_path / "f")
    put(tail.file, 1, 2)
    tail.read()
    put(tmp_path / "g", 1, 2)
    (tmp_path / "g").rename(tail.file)
    assert tail.read()[1] is True
    tail.file.unlink()
    assert tail.read() == ([], True) and tail.read() == ([], False)


def test_a_record_that_is_written_killed_and_resumed_reads_as_it_stands(tmp_path):
    """Whenever one looks, what was taken in is what the file says."""
    record = RunRecord.create(tmp_path / "r", kind="train", config={"steps": 50}, hardware={})
    folder, draw, step, records = Folder(tmp_path / "r"), random.Random(3), 0, []
    for _ in range(60):
        for _ in range(draw.randrange(4)):
            step += 1
            record.step(step=step, loss=draw.random(), grad_norm=math.nan if draw.random() < 0.1 else 1.0)
        if draw.random() < 0.2 and step:
            step = draw.randrange(step)
            record.close()
            record = RunRecord.open(tmp_path / "r", resume_from=step + 1)
        folder._polled = -math.inf  # as if the pause between two looks were over
        records.append(seen := folder.poll())
        assert list(seen["step"]) == list(range(1, step + 1))
        assert seen.status == "running" and seen.silence < 60
        assert [e["kind"] for e in seen.events] == ["resume"] * len(seen.events)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "r" / "steps.jsonl").read_text().splitlines()]
    assert list(seen["loss"]) == losses and len(set(map(id, records))) > 4
    record.close()
    folder._polled = -math.inf
    assert folder.poll().status == "interrupted", "it says running, and nobody writes"


def test_a_void_record_voids_its_alarms(tmp_path):
    run = lines(100)
    run[80]["grad_norm"] = 900.0
    write(tmp_path / "r", run)
    source = Source(tmp_path / "r")
    assert [a.step for a in source.poll("")[2]] == [81]
    write(tmp_path / "r", run[:70])
    source._open[tmp_path / "r"][0]._polled = -math.inf
    assert source.poll("")[2] == []


def test_no_run_no_folder_and_the_runs_of_a_comparison(tmp_path):
    with pytest.raises(LabError, match="there is no run in"):
        runs_in(tmp_path)
    out = tmp_path / "c"
    write(out, [], kind="compare", config={"arms": {"bf16": {"label": "BF16"}, "fp8": {"label": "FP8 fast"}}})
    assert runs_in(out) == {} and at_work({}) is None
    write(out / "arms" / "fp8", lines(3))
    write(out / "arms" / "bf16", lines(3))
    write(out / "speed" / "bf16", lines(3))
    found = runs_in(out)
    assert list(found) == ["BF16 (speed)", "BF16", "FP8 fast"]
    with RunRecord.create(out / "arms" / "new", kind="train", config={}, hardware={}):
        os.utime(out / "arms" / "new" / "steps.jsonl", (0, 0))
        assert at_work(runs_in(out)) == "new", "the one that is written now"
    assert runs_in(out / "arms" / "fp8") == {"fp8": out / "arms" / "fp8"}


def test_outlines_keep_every_spike():
    draw = np.random.default_rng(0)
    x = np.arange(1, 100_001, dtype=float)
    y = draw.standard_normal(100_000)
    for at in draw.integers(0, 100_000, 30):
        y[at] = 50 + draw.random()
        y[at - 5] = -50 - draw.random()
    y[777] = np.nan
    px, py = outline(x, y)
    assert len(px) <= 2 * BINS + 2 and (np.diff(px) > 0).all()
    assert {v for v in y if abs(v) > 50} <= set(py) and np.isfinite(py).all()
    assert np.array_equal(py, y[px.astype(int) - 1]), "points of the curve, none made up"
    assert px[0] == 1 and px[-1] == 100_000
    near_x, _ = outline(x, y, 500, 900)
    assert near_x[0] == 499 and near_x[-1] == 901 and len(near_x) == 402, "all of them, but the one that is NaN"
    assert outline(x[:0], y[:0])[0].size == 0


def test_cells_tell_the_worst():
    steps = np.arange(10.0, 20_010, 10)
    values = np.ones((2000, 3), np.float32)
    values[1234, 1] = 9
    values[77, 2] = np.nan
    for how, worst in (("max", 9), ("min", 1)):
        edges, image = cells(steps, values, 240, how)
        assert image.shape == (3, 240) and len(edges) == 241 and np.nanmax(image) == worst
        assert edges[0] <= 10 and edges[-1] >= 20_000 and not np.isnan(image).any()
    column = int(np.argmax(cells(steps, values, 240, "max")[1][1]))
    edges = cells(steps, values, 240, "max")[0]
    assert edges[column] <= steps[1234] <= edges[column + 1]
    assert cells(steps[:1], values[:1], 240, "max")[1].shape == (3, 1)
