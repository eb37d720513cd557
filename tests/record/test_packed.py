"""A packed run reads as its folder did."""

import gzip
import json
import math

import pytest

from labkit.compare.report import report
from labkit.errors import LabError
from labkit.record.packed import pack, packed
from labkit.record.read import PACKED, read_run
from labkit.record.run import RunRecord


def record(path, *, kind="train", steps=3):
    run = RunRecord.create(path, kind=kind, command="lab test", config={"steps": steps}, hardware={"gpus": []})
    for step in range(1, steps + 1):
        run.step(step=step, loss=math.inf if step == 2 else 1.0 / step, heldout=2.0 / step)
    run.event("compiled", step=1, message="ä")
    run.results(loss=math.nan)
    run.finish()
    return path


def shown(data):
    """Everything that a reader gets; as text, since NaN differs from itself."""
    return repr((data.run, data.steps, data.events, data.truncated, data.status, data.series("heldout")))


def test_a_packed_run_reads_as_its_folder_did(tmp_path):
    run = record(tmp_path / "run")
    before = shown(read_run(run))
    assert packed(run)[4:8] == bytes(4), "no time of packing: the same run gives the same bytes"
    assert pack(run) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run" + PACKED]
    assert shown(read_run(run)) == before


def test_a_comparison_keeps_its_folder_and_its_arms_are_packed(tmp_path):
    whole = tmp_path / "whole"
    RunRecord.create(whole, kind="compare", command="lab compare", hardware={"gpus": []}).finish()
    for name in ("arms/bf16", "arms/fp8", "speed/bf16"):
        record(whole / name)
    (whole / "report.html").write_text("drawn")
    (whole / "clocks.csv").write_text("kept")
    before, timed = read_run(whole), read_run(whole / "speed/bf16")
    assert pack(whole) == 3
    files = {file.relative_to(whole).as_posix() for file in whole.rglob("*") if file.is_file()}
    arms = {f"{name}{PACKED}" for name in ("arms/bf16", "arms/fp8", "speed/bf16")}
    assert files == {"run.json", "clocks.csv", *arms}
    after = read_run(whole)
    assert {name: shown(arm) for name, arm in after.arms.items()} == {n: shown(arm) for n, arm in before.arms.items()}
    assert shown(read_run(whole / "speed/bf16")) == shown(timed)
    assert report(whole).exists()
    assert pack(tmp_path) == 0  # nothing is left to pack


def test_a_run_that_goes_on_is_not_packed_and_nothing_is_touched(tmp_path):
    done = record(tmp_path / "done")
    going = RunRecord.create(tmp_path / "going", kind="train", hardware={"gpus": []})
    with pytest.raises(LabError, match="still going on"):
        pack(tmp_path)
    assert (done / "steps.jsonl").exists() and not list(tmp_path.glob(f"*{PACKED}"))
    going.finish()


def test_a_file_that_has_no_place_stops_it(tmp_path):
    run = record(tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    with pytest.raises(LabError, match=r"notes\.txt"):
        pack(run)
    assert (run / "notes.txt").exists() and (run / "run.json").exists()


@pytest.mark.parametrize("damage", ["cut off", "no gzip", "another file", "a list"])
def test_a_damaged_packed_run_is_one_sentence(tmp_path, damage):
    run = record(tmp_path / "run")
    pack(run)
    file = tmp_path / ("run" + PACKED)
    content = {
        "cut off": file.read_bytes()[:-20],
        "no gzip": b"plain",
        "another file": gzip.compress(b'{"step": 1}\n'),
        "a list": gzip.compress(json.dumps([1]).encode()),
    }[damage]
    file.write_bytes(content)
    with pytest.raises(LabError, match="run" + PACKED) as told_so:
        read_run(run)
    assert str(told_so.value).isprintable()
