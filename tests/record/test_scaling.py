"""`lab scaling` on real ranks: the same work for each, one record a count, a table from the records, nothing twice."""
from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from comparing import MICRO, environment, preset  # noqa: E402

from rich.console import Console  # noqa: E402

from labkit.errors import LabError  # noqa: E402
from labkit.record import scaling  # noqa: E402
from labkit.record.read import read_run  # noqa: E402

SPEED = MICRO.replace("[train]", '[speed]\narms = ["bf16"]\nseconds = 0.1\nwarmup = 3\n[train]', 1)


def test_each_rank_keeps_its_work_and_nothing_is_measured_twice(tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    said, out = io.StringIO(), tmp_path / "out"
    given = {"arms": ["bf16"], "out": out, "console": Console(file=said, width=200)}
    toml = str(preset(tmp_path, SPEED))
    assert scaling.scaling(toml, "2,1", **given) == 0
    rows = scaling.rows_of(out)
    assert [(row["ranks"], row["tokens_step"]) for row in rows] == [(1, 4 * 32), (2, 4 * 32)]
    for row in rows:
        config = read_run(out / str(row["ranks"]) / "speed" / "bf16").run["config"]
        assert config["batch_size"] == 4 * row["ranks"]
    assert rows[0]["share"] == 1 and rows[1]["share"] == pytest.approx(rows[1]["rate"] / 2 / rows[0]["rate"])
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    said.truncate(0)
    assert scaling.scaling(toml, "1,2", **given) == 0
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert f"{rows[1]['rate']:,.0f}" in said.getvalue()
    assert scaling.markdown(out).splitlines()[2] == "| " + " | ".join(scaling.cells(rows[0])) + " |"


def record(out: Path, ranks: int, rate: float, tokens: int = 4096, window: float = 60) -> None:
    arm = {"label": "BF16", "ranks": ranks, "tokens_per_s": rate, "tokens_step": tokens, "seq_len": 1024,
           "step_p50": tokens * ranks / rate, "memory": {"peak": 2 ** 30}}
    folder = out / str(ranks)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"kind": "compare", "config": {"speed": {"seconds": window}},
                                                 "results": {"speed": {"arms": {"bf16": arm}}}}))


def test_the_share_is_of_the_fewest_and_in_order(tmp_path):
    record(tmp_path, 16, 1440)
    record(tmp_path, 2, 200)
    record(tmp_path, 4, 380)
    assert [line.split(" | ")[1:5] for line in scaling.markdown(tmp_path).splitlines()[2:]] == [
        ["2", "200", "100", "100.0"], ["4", "380", "95", "95.0"], ["16", "1,440", "90", "90.0"]]


def test_unequal_work_is_no_weak_scaling(tmp_path):
    record(tmp_path, 1, 100)
    record(tmp_path, 2, 190, tokens=2048)
    with pytest.raises(LabError, match="no weak scaling: in bf16 a GPU had 2,048 tokens of 1,024 and 4,096"):
        scaling.markdown(tmp_path)


def test_unequal_windows_are_no_weak_scaling(tmp_path):
    record(tmp_path, 1, 100)
    record(tmp_path, 2, 198, window=15)
    with pytest.raises(LabError, match="no weak scaling: bf16 was timed for 15 and 60 s, and a GPU slows as it warms"):
        scaling.markdown(tmp_path)


@pytest.mark.parametrize("counts, told", [("1,two", "got '1,two'"), ("0,1", "got '0,1'"), ("", "got ''")])
def test_wrong_counts_are_one_sentence(counts, told):
    with pytest.raises(LabError, match=told):
        scaling.parse(counts)


def test_more_gpus_than_there_are_is_told_before_anything_starts(tmp_path):
    with pytest.raises(LabError, match="needs a CUDA GPU"):
        scaling.scaling("h100", "1,2", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(LabError, match="holds no records of lab scaling"):
        scaling.markdown(tmp_path)
