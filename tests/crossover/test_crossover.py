"""The map of crossovers: shapes, reasons, the split, resuming, and one real map of this CPU."""

import itertools
import json
import re
from collections import namedtuple

import pytest
import torch
from rich.console import Console

from labkit import cli
from labkit.crossover import crossover, grid, linear, pictures
from labkit.crossover import record as records
from labkit.crossover.grid import ARMS, BASE, FP8, Cell, Shape, describe, reason, speedup, without_waiting
from labkit.errors import LabError

Kernel = namedtuple("Kernel", "name begin end")
CPU = torch.device("cpu")
CUBE = Shape(1024, 1024, 1024)


def a_cell(arm, product, quantise, launch=0.0, shape=CUBE, **more):
    parts = {"product": product, "quantise": quantise, "launch": launch}
    return Cell(*shape, arm, seconds=sum(parts.values()), spread=0.01, queue=1e-6, parts=parts, error=0.03, **more)


def a_map(folder, missing=()):
    """A map made up from a simple machine: products at 700 and 1300 TFLOP/s, quantising by bytes, a slow CPU."""
    cells, sizes = [], (1024, 4096, 16384)
    for shape, arm in itertools.product(grid.shapes(sizes, sizes, sizes), ARMS):
        fp8 = arm in FP8
        product = shape.flops / (1300e12 if fp8 else 700e12)
        quantise = 8 * (shape.M * shape.K + shape.K * shape.N + shape.M * shape.N) / 3.5e12 if fp8 else 0.0
        launch = max(0.0, (250e-6 if fp8 else 60e-6) - product - quantise)
        lost = Cell(*shape, arm, why_not="not enough GPU memory")
        cells.append(lost if (shape, arm) in missing else a_cell(arm, product, quantise, launch, shape))
    record = {"kind": "crossover", "status": "finished", "device": "cuda", "device_name": "NVIDIA H200"}
    record |= {"arms": list(ARMS), "grid": {name: list(sizes) for name in "MKN"}, "method": {}, "versions": {}}
    record["cells"] = [cell.to_dict() for cell in cells]
    records.save(record, folder)
    return record


# ---- shapes and reasons


def test_sizes():
    assert grid.parse_sizes("4K, 1024,1k", "m") == [1024, 4096]
    for text in ("", "0", "-1", "1M", "4K,x", "1.5K"):
        with pytest.raises(LabError, match="--m"):
            grid.parse_sizes(text, "m")
    assert [str(s) for s in grid.shapes([2, 1], [1], [4, 1])] == ["1x1x1", "2x1x1", "1x1x4", "2x1x4"]  # small first
    assert Shape(2, 3, 5).flops == 3 * 2 * 30


def test_arms():
    assert grid.parse_arms(None) == list(ARMS)
    assert grid.parse_arms(" torchao-rowwise,te-block ") == [BASE, "te-block", "torchao-rowwise"]
    with pytest.raises(LabError, match="no arm 'te-delaid'"):
        grid.parse_arms("te-delaid")
    with pytest.raises(LabError, match="nothing to hold against"):
        grid.parse_arms("bf16")


def test_the_reason_is_what_it_pays_most_for():
    base = a_cell(BASE, 100e-6, 0.0, 10e-6)
    assert reason(base, a_cell("te-current", 60e-6, 20e-6)) is None  # it wins
    assert reason(base, a_cell("te-current", 60e-6, 90e-6, 20e-6)) == "quantise"
    assert reason(base, a_cell("te-current", 60e-6, 30e-6, 90e-6)) == "launch"
    assert reason(base, a_cell("te-current", 150e-6, 10e-6)) == "product"
    assert reason(base, a_cell("te-current", 50e-6, 45e-6, 30e-6)) == "launch"  # its kernels alone would win
    assert reason(base, a_cell("te-current", 60e-6, 50e-6)) == "quantise"  # a tie is no win
    assert reason(base, a_cell("te-bf16", 150e-6, 0.0)) is None  # no FP8, nothing to explain
    assert reason(base, Cell(1, 1, 1, "te-current", why_not="x")) is None
    slow = a_cell("te-current", 60e-6, 30e-6, 90e-6)
    assert speedup(base, slow) == pytest.approx(110 / 180) and without_waiting(base, slow) == pytest.approx(100 / 90)
    assert re.findall(r"[\d.]+", describe(base, slow).split("loses")[1])[:5] == ["0.61", "1.11", "40", "30", "80"]


# ---- the split


def test_kernels_are_divided_among_arms_by_the_marks():
    kernels = [
        Kernel("nvjet_tst_128", 0, 30),
        Kernel("spin_kernel(long)", 40, 41),
        Kernel("nvjet_sm90_qqtst_e4m3", 50, 60),
        Kernel("transformer_engine::cast_transpose", 60, 72),
        Kernel("elementwise_add", 73, 76),
        Kernel("spin_kernel", 90, 91),
    ]
    (bf16, no), (fp8, yes) = linear.split_kernels(kernels[::-1], arms=2, repeats=3)
    assert bf16 == {"product": pytest.approx(1e-5), "quantise": 0.0} and no is False
    assert fp8 == {"product": pytest.approx(10e-6 / 3), "quantise": pytest.approx(5e-6)} and yes is True
    for wrong in (kernels[:-1], kernels[:1] + kernels[2:], [*kernels, Kernel("late", 95, 96)]):
        with pytest.raises(LabError, match="marks between the arms"):
            linear.split_kernels(wrong, arms=2, repeats=3)


def test_launch_is_what_no_kernel_fills_where_the_cpu_sets_the_pace():
    parts = {"product": 30e-6, "quantise": 20e-6}
    assert linear.with_launch(parts, 200e-6, queue=195e-6) == {**parts, "launch": pytest.approx(150e-6)}
    ahead = linear.with_launch(parts, 55e-6, queue=20e-6)  # the CPU is ahead: only the clock moved
    assert ahead == {"product": pytest.approx(33e-6), "quantise": pytest.approx(22e-6), "launch": 0.0}
    slowed = linear.with_launch(parts, 40e-6, queue=40e-6)  # the profiler slowed the parts down
    assert slowed["launch"] == 0.0 and sum(slowed.values()) == pytest.approx(40e-6)


# ---- real, on this CPU


THREE = (BASE, "torchao-tensorwise", "torchao-rowwise")


@pytest.fixture(scope="module")
def real():
    return {cell.arm: cell for cell in linear.measure(Shape(64, 128, 32), THREE, CPU, budget=0.005)}


def test_fp8_really_rounds_and_bf16_does_not(real):
    assert 0.0005 < real[BASE].error < 0.005  # 8 significant bits
    for arm in ("torchao-tensorwise", "torchao-rowwise"):
        assert 0.01 < real[arm].error < 0.1  # 4 bits: what ran is told from what it gave
    for cell in real.values():
        assert sum(cell.parts.values()) == pytest.approx(cell.seconds) and set(cell.parts) == set(grid.PARTS)
        assert cell.parts["product"] > 0 and cell.parts["quantise"] >= 0 and cell.fp8_kernels is None


def test_one_arm_that_cannot_run_costs_the_others_nothing():
    odd, te = linear.measure(Shape(64, 128, 40), [BASE, "torchao-tensorwise"], CPU, 0.001)
    assert odd.seconds and te.seconds is None and "multiples of 16" in te.why_not
    base, tokens = linear.measure(Shape(24, 128, 32), [BASE, "torchao-rowwise"], CPU, 0.001)
    assert base.seconds and tokens.why_not == "torchao FP8 rowwise needs a multiple of 16 tokens"
    _, te = linear.measure(Shape(128, 128, 128), [BASE, "te-block"], CPU, 0.001)
    assert te.why_not.startswith("precision backend 'te'")


def test_a_map_from_nothing_to_pictures(tmp_path, capfd):
    words = ["crossover", "--device", "cpu", "--m", "64", "--k", "64", "--n", "32,64", "--budget", "0.002", "--out"]
    with pytest.raises(SystemExit) as end:
        cli.main([*words, str(tmp_path / "map")])
    out, err = capfd.readouterr()
    assert end.value.code == 0 and not err, "Kineto's own chatter is not shown"
    record = records.load(tmp_path / "map")
    assert all(crossover.summarise(record, arm) in out for arm in record["arms"])
    assert all(f"{ARMS[arm][2]}: left out, {why}" in out for arm, why in record["missing"].items())
    assert record["status"] == "finished" and record["arms"] == [BASE, "torchao-tensorwise", "torchao-rowwise"]
    assert len(record["cells"]) == 6 and set(record["missing"]) == {"te-bf16", "te-delayed", "te-current", "te-block"}
    assert record["finished"] and record["versions"]["torch"] and record["command"] and record["hardware"]["cpu"]
    figures = sorted(path.name for path in (tmp_path / "map" / "figures").glob("*.png"))
    assert figures == ["crossover_split.png", "crossover_torchao_rowwise.png", "crossover_torchao_tensorwise.png"]
    assert records.table(record, record["arms"][-1]) in (tmp_path / "map" / "crossover.md").read_text()


# ---- stopped, killed, resumed


def fake_measure(log):
    def fake(shape, arms, device, budget, compiled):
        log.append(shape)
        return [a_cell(arm, 1e-5, 1e-5, shape=shape) for arm in arms]

    return fake


def go(tmp_path, monkeypatch, measure, **more):
    monkeypatch.setattr(linear, "measure", measure)
    request = crossover.Request("64", "64", "32,64,128", "torchao-tensorwise", "cpu", tmp_path / "map", **more)
    return crossover.crossover(request, Console(quiet=True))


def test_the_same_command_goes_on_where_it_was(tmp_path, monkeypatch):
    log = []
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(crossover.time, "monotonic", lambda: float(next(clock)))
    assert go(tmp_path, monkeypatch, fake_measure(log), seconds=5.0) == 1  # the time was up before the end
    assert 0 < len(log) < 3 and records.load(tmp_path / "map")["status"] == "stopped"
    before = len(log)
    assert go(tmp_path, monkeypatch, fake_measure(log), seconds=1e9) == 0
    assert len(log) == 3 and len(set(log)) == 3 and before < 3  # nothing was measured twice
    assert go(tmp_path, monkeypatch, fake_measure(log), seconds=1e9) == 0 and len(log) == 3


def test_a_killed_run_keeps_its_shapes(tmp_path, monkeypatch):
    log = []

    def killed(shape, *rest):
        if len(log) == 2:
            raise KeyboardInterrupt
        return fake_measure(log)(shape, *rest)

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, monkeypatch, killed)
    kept = records.load(tmp_path / "map")
    assert len(kept["cells"]) == 4 and len(records.list_missing(kept)) == 1
    assert sorted(path.name for path in (tmp_path / "map").iterdir()) == ["crossover.json"]  # nothing half-written


def test_another_map_is_not_mixed_in(tmp_path, monkeypatch):
    log = []
    go(tmp_path, monkeypatch, fake_measure(log))
    with pytest.raises(LabError, match="another method: choose another folder"):
        go(tmp_path, monkeypatch, fake_measure(log), budget=0.7)
    file = tmp_path / "map" / "crossover.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "device_name": "another CPU"}))
    with pytest.raises(LabError, match="another device name"):
        go(tmp_path, monkeypatch, fake_measure(log))
    file.write_text("{")
    with pytest.raises(LabError, match="no readable"):
        go(tmp_path, monkeypatch, fake_measure(log))
    file.write_text('{"kind": "train"}')
    with pytest.raises(LabError, match="no map of crossovers"):
        go(tmp_path, monkeypatch, fake_measure(log))
    with pytest.raises(LabError, match="no readable"):
        records.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "words, said",
    [
        (["--device", "tpu"], "cuda or cpu"),
        (["--m", "4Q"], "--m takes sizes"),
        (["--arms", "x"], "no arm 'x'"),
        (["--device", "cpu", "--arms", "te-block"], "arm te-block cannot run here"),
        (["--seconds", "0"], "above 0"),
        (["--device", "cuda"], "torch sees no GPU"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        cli.main(["crossover", *words, "--out", str(tmp_path / "map")])
    err = capsys.readouterr().err
    assert end.value.code == 2 and said in err and err.count("\n") == 1 and not (tmp_path / "map").exists()


# ---- written and drawn


def test_pictures_say_what_the_cells_say(tmp_path):
    record = a_map(tmp_path, missing=[(Shape(16384, 16384, 16384), "te-block")])
    figures = tmp_path / "figures"
    figures.mkdir()
    base, cell = (records.cells(record)[CUBE, arm] for arm in (BASE, "te-current"))
    drawn = pictures.heat_map(record, "te-current", figures)
    worst = re.search(r"(\d+) shapes.* from ([\d.]+) times at M x K x N = (\S+) to", drawn.alt).groups()
    assert worst == ("27", f"{speedup(base, cell):.2f}", str(CUBE)) and record["device_name"] in drawn.alt
    assert drawn.png.stat().st_size > 10_000 and drawn.svg.is_file()
    assert re.search(r"(\d+) shapes", pictures.heat_map(record, "te-block", figures).alt)[1] == "26"
    assert pictures.split(record, figures).alt
    assert pictures.heat_map({**record, "cells": []}, "te-block", figures) is None
    assert pictures.split({**record, "cells": []}, figures) is None


def test_tables_and_summaries(tmp_path):
    record = a_map(tmp_path, missing=[(Shape(1024, 1024, 4096), "te-block")])
    table = records.table(record, "te-block")
    row = next(line for line in table.splitlines() if line.startswith("| 1024 | 1024 |"))
    base, cell = (records.cells(record)[Shape(1024, 1024, 1024), arm] for arm in (BASE, "te-block"))
    assert row.startswith(f"| 1024 | 1024 | {speedup(base, cell):.2f} w ({without_waiting(base, cell):.2f}) | - |")
    have, every = records.cells(record), grid.shapes(**record["grid"])
    wins = sum(speedup(*records.pair(have, shape, "te-current")) > 1.02 for shape in every)
    assert f"faster at {wins} of 27 shapes" in crossover.summarise(record, "te-current")
    record["cells"] = [c for c in record["cells"] if c["arm"] != "te-block"]
    assert "not measured" in crossover.summarise(record, "te-block")
