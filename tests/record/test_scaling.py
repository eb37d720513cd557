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
from labkit.record.scaling_each import against_each, time_each, visible  # noqa: E402

SPEED = MICRO.replace("[train]", '[speed]\narms = ["bf16"]\nseconds = 0.1\nwarmup = 3\n[train]', 1)


def test_each_rank_keeps_its_work_and_nothing_is_measured_twice(tmp_path, monkeypatch):
    """Two ranks, one, and two lone ones at the same time; then the same command finds all of it done."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    said, out = io.StringIO(), tmp_path / "out"
    given = {"arms": ["bf16"], "out": out, "each": True, "console": Console(file=said, width=300)}
    toml = str(preset(tmp_path, SPEED))
    assert scaling.scaling(toml, "2,1", **given) == 0
    rows, lone = scaling.rows_of(out), scaling.rows_of(out / "each")
    assert [(row["ranks"], row["tokens_step"]) for row in rows] == [(1, 4 * 32), (2, 4 * 32)]
    assert [(row["folder"], row["ranks"], row["tokens_step"]) for row in lone] == [("0", 1, 4 * 32), ("1", 1, 4 * 32)]
    for folder, ranks in ((out / "1", 1), (out / "2", 2), (out / "each" / "0", 1), (out / "each" / "1", 1)):
        assert read_run(folder / "speed" / "bf16").run["config"]["batch_size"] == 4 * ranks
    began, ended = zip(*((run["started"], run["finished"]) for run in
                         (read_run(out / "each" / name).run for name in "01")))
    assert max(began) < min(ended), "at the same time"
    assert rows[0]["share"] == 1 and rows[1]["share"] == pytest.approx(rows[1]["rate"] / 2 / rows[0]["rate"])
    share = 100 * rows[1]["each"] / ((lone[0]["rate"] + lone[1]["rate"]) / 2)
    sentence = f"BF16: 2 GPUs together train {share:.1f} % of what they train each alone"
    assert sentence in said.getvalue() and sentence in scaling.markdown(out)

    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    said.truncate(0)
    assert scaling.scaling(toml, "1,2", **given) == 0
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert f"{rows[1]['rate']:,.0f}" in said.getvalue()
    assert scaling.markdown(out).splitlines()[2] == "| " + " | ".join(scaling.cells(rows[0])) + " |"


def record(out: Path, ranks: int, rate: float, tokens: int = 4096, window: float = 60, folder: str = "") -> None:
    arm = {"label": "BF16", "ranks": ranks, "tokens_per_s": rate, "tokens_step": tokens, "seq_len": 1024,
           "step_p50": tokens * ranks / rate, "memory": {"peak": 2 ** 30}}
    place = out / (folder or str(ranks))
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"kind": "compare", "config": {"speed": {"seconds": window}},
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


# ---- every GPU alone, all at once

def test_the_mean_the_slowest_and_the_gpus_that_took_part(tmp_path):
    """Four alone, timed together by twos and by fours: two take GPUs 0 and 1, whatever the others do."""
    record(tmp_path, 2, 190)
    record(tmp_path, 4, 360)
    for gpu, rate in enumerate((101, 99, 100, 80)):
        record(tmp_path / "each", 1, rate, folder=str(gpu))
    two, four = against_each(tmp_path)
    assert "2 GPUs together train 95.0 % of what they train each alone, at once, and 96.0 % of what the slowest" in two
    assert "does, GPU 1 (99 tokens/s; the fastest 101)" in two
    assert "4 GPUs together train 94.7 %" in four and "112.5 % of what the slowest does, GPU 3 (80" in four
    record(tmp_path, 8, 700)
    assert len(against_each(tmp_path)) == 2, "eight were not timed alone"


def test_another_window_is_no_yardstick(tmp_path):
    record(tmp_path, 2, 190)
    for gpu in "01":
        record(tmp_path / "each", 1, 100, window=15, folder=gpu)
    (told,) = against_each(tmp_path)
    assert told.startswith("These shares are no weak scaling: bf16 was timed for 15 and 60 s,")


def test_a_gpu_that_fails_is_told_in_its_own_words(tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "each" / "1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")                    # GPU 1's place is taken by something else
    with pytest.raises(LabError, match="GPU [01] alone failed .status 2.: lab: .*each/1"):
        time_each(str(preset(tmp_path, SPEED)), 2, batch=4, arms=["bf16"], out=tmp_path, settings=[], cuda=False,
                  budget_minutes=None, console=Console(file=io.StringIO()))


def test_which_gpu_each_process_sees(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible(3) == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7,GPU-ab")
    assert visible(2) == ["5", "7"] and visible(3) == ["5", "7", "GPU-ab"]


def test_each_process_sees_one_gpu_and_has_the_rest_of_the_budget(tmp_path, monkeypatch):
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*"\nexit $((CUDA_VISIBLE_DEVICES == 6 ? 3 : 0))\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    status = time_each("h100", 2, batch=20, arms=["bf16"], out=tmp_path, settings=["speed.seconds=9"], cuda=True,
                       budget_minutes=7.25, console=Console(file=io.StringIO()))
    assert status == 3, "one of them has something left"
    for i, gpu in enumerate("46"):
        said = (tmp_path / "each" / f"{i}.log").read_text()
        assert said.startswith(f"{gpu} -m labkit compare") and said.rstrip().endswith(f"--out {tmp_path}/each/{i}")
        for words in ("--part speed", "--arms bf16", "--budget-minutes 7.25", "speed.seconds=9", "world_size=1"):
            assert words in said


def test_each_needs_two(tmp_path):
    with pytest.raises(LabError, match="--each tells what GPUs lose together"):
        scaling.scaling(str(preset(tmp_path, SPEED)), "1", each=True, out=tmp_path / "out")


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
