"""Exports are read back with the other tools' own readers."""

import importlib.util
import json
import math

import pytest

from labkit.errors import LabError
from labkit.watch.export import export
from tests.watch.lines import TENSORS, lines, write

EVENTS = [
    {"time": "2026-11-21T10:00:30.000Z", "step": 12, "kind": "nonfinite", "message": "the loss is not finite"},
    {"time": "2026-11-21T10:00:40.000Z", "step": None, "kind": "failed", "message": "OSError"},
]


def needs(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed: make watch"
    )


@pytest.fixture
def run(tmp_path):
    steps = lines(20, ranks=2)
    steps[11]["loss"] = "NaN"
    return write(tmp_path / "run", steps, EVENTS, started="2026-11-21T10:00:00.000Z", config={"steps": 20, "lr": 0.1})


@needs("tensorboard")
def test_tensorboard_reads_every_number_back(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = export(run, "tensorboard", tmp_path / "tb")
    assert said.startswith("20 steps, 2 events for TensorBoard")
    read = EventAccumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    loss = read.Scalars("loss")
    assert [point.step for point in loss] == list(range(1, 21)) and math.isnan(loss[11].value)
    for point, line in zip(loss, steps):
        if line["step"] != 12:
            assert point.value == pytest.approx(line["loss"], rel=1e-6)
    assert [p.step for p in read.Scalars("heldout")] == [10, 20]
    tensor = TENSORS[2]
    assert [p.value for p in read.Scalars(f"amax/{tensor}")] == pytest.approx(
        [line["scales"][tensor]["amax"] for line in steps if "scales" in line], rel=1e-6
    )
    assert len(read.Scalars("rank_seconds/1")) == 20 and len(read.Scalars("grad_norm/layers.0")) == 4
    assert read.Scalars("memory/peak_bytes")[0].value == 5 << 30
    (event,) = read.Tensors("event/nonfinite/text_summary")
    assert event.step == 12 and event.tensor_proto.string_val == [b"the loss is not finite"]
    began = 1795255200.0  # 2026-11-21 10:00 UTC
    assert began < loss[0].wall_time < loss[-1].wall_time < began + 4 and event.wall_time == began + 30


@pytest.mark.thorough
@needs("wandb")
def test_wandb_reads_its_offline_run_back(run, tmp_path, monkeypatch):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "online")  # whatever the shell says, nothing goes out
    said = export(run, "wandb", tmp_path / "wb")
    assert said.startswith("20 steps, 2 events as an offline run")
    (file,) = (tmp_path / "wb").glob("wandb/offline-run-*/*.wandb")
    store, rows, config, summary = DataStore(), [], {}, {}
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        one = wandb_internal_pb2.Record()
        one.ParseFromString(data)
        if one.WhichOneof("record_type") == "history":
            rows.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in one.history.item})
        for item in one.run.config.update:
            config[item.key] = json.loads(item.value_json)
        for item in one.summary.update:
            summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [row["_step"] for row in rows] == list(range(1, 21)) and config["lr"] == 0.1
    for row, line in zip(rows, steps):
        assert row["grad_norm"] == pytest.approx(line["grad_norm"])
        if "scales" in line:
            assert row[f"scale/{TENSORS[0]}"] == pytest.approx(line["scales"][TENSORS[0]]["scale"])
    assert rows[11]["event/nonfinite"] == "the loss is not finite"
    assert any("OSError" in str(value) for value in summary.values())


@pytest.mark.parametrize(
    "make, to, shown",
    [
        (lambda f: write(f, lines(3)), "wandbb", "tensorboard or wandb, not 'wandbb'"),
        (lambda f: write(f, []), "tensorboard", "has no step yet"),
        (lambda f: write(f, [], kind="compare"), "tensorboard", "is a comparison: export one of its trainings"),
        (lambda f: f.mkdir(), "tensorboard", "there is no run in"),
    ],
)
def test_refusals(tmp_path, make, to, shown):
    make(tmp_path / "run")
    with pytest.raises(LabError, match=shown):
        export(tmp_path / "run", to)


def test_nothing_is_overwritten(tmp_path):
    run = write(tmp_path / "run", lines(3))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(LabError, match="exists already"):
        export(run, "tensorboard", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]
