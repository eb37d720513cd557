"""`lab scaling` on real ranks: the same work for each, one record a count, a table from the records, nothing twice."""

import io
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from labkit.compare import background, scaling
from labkit.compare.compare import Request
from labkit.compare.preset import load_preset
from labkit.compare.scaling import against_each, place, time_each, visible
from labkit.errors import LabError
from labkit.record.clean import jsonable
from labkit.record.read import read_run
from labkit.record.run import RunRecord
from tests.compare.comparing import MICRO, environment, preset

SPEED = MICRO.replace("[train]", '[speed]\narms = ["bf16"]\nseconds = 0.1\nwarmup = 3\n[train]', 1)


@pytest.mark.thorough
def test_each_rank_keeps_its_work_and_nothing_is_measured_twice(tmp_path, monkeypatch):
    """Two ranks, one, and two lone ones at the same time; then the same command finds all of it done."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    said, out = io.StringIO(), tmp_path / "out"
    given = {"each": True, "console": Console(file=said, width=300)}
    request = Request(str(preset(tmp_path, SPEED)), ["bf16"], out)
    assert scaling.scaling(request, "2,1", **given) == 0
    rows, lone = scaling.points_of(out), scaling.points_of(out / "each", "run")
    assert [(row.timed.ranks, row.timed.tokens_step) for row in rows] == [(1, 4 * 32), (2, 4 * 32)]
    assert [(row.folder, row.timed.ranks, row.timed.tokens_step) for row in lone] == [
        ("0", 1, 4 * 32),
        ("1", 1, 4 * 32),
    ]
    for folder, ranks in ((out / "1", 1), (out / "2", 2), (place(out, 0), 1), (place(out, 1), 1)):
        assert read_run(folder / "speed" / "bf16").run["config"]["batch_size"] == 4 * ranks
    assert rows[0].share == 1 and rows[1].share == pytest.approx(rows[1].timed.of_one / rows[0].timed.of_one)
    share = 100 * rows[1].timed.of_one / ((lone[0].timed.of_one + lone[1].timed.of_one) / 2)
    sentence = f"BF16: 2 GPUs together train {share:.1f} % of what they train each alone"
    assert sentence in said.getvalue() and sentence in scaling.markdown(out)

    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    said.truncate(0)
    assert scaling.scaling(request, "1,2", **given) == 0
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert f"{rows[1].timed.tokens_per_s:,.0f}" in said.getvalue()
    first = [column.cell(rows[0]) for column in scaling.COLUMNS]
    assert scaling.markdown(out).splitlines()[2] == "| " + " | ".join(first) + " |"

    # Another question in the same folder is not answered with these numbers.
    for setting, name in (("speed.seconds=0.2", "speed.seconds"), ("train.accumulation=2", "train.accumulation")):
        with pytest.raises(LabError, match=f"holds a run with other settings .*{name}.*another folder with --out"):
            scaling.scaling(replace(request, settings=[setting]), "2", **given)


def record(out: Path, ranks: int, rate: float, tokens: int = 4096, window: float = 60, folder: str = "") -> None:
    arm = {"label": "BF16", "ranks": ranks, "tokens_per_s": rate, "tokens_step": tokens, "seq_len": 1024}
    arm |= {"step_p50": tokens * ranks / rate, "memory": {"peak": 2**30}}
    place, config = out / (folder or str(ranks)), {"speed": {"seconds": window}}
    place.mkdir(parents=True)
    run = {"kind": "compare", "config": config, "results": {"speed": {"arms": {"bf16": arm}}}}
    (place / "run.json").write_text(json.dumps(run))


def test_the_share_is_of_the_fewest_and_in_order(tmp_path):
    record(tmp_path, 16, 1440)
    record(tmp_path, 2, 200)
    record(tmp_path, 4, 380)
    assert [line.split(" | ")[1:5] for line in scaling.markdown(tmp_path).splitlines()[2:]] == [
        ["2", "200", "100", "100.0"],
        ["4", "380", "95", "95.0"],
        ["16", "1,440", "90", "90.0"],
    ]


def test_unequal_work_is_no_weak_scaling(tmp_path):
    record(tmp_path, 1, 100)
    record(tmp_path, 2, 190, tokens=2048)
    with pytest.raises(LabError, match="no weak scaling: in bf16 a GPU had 2,048 tokens of 1,024 a step and 4,096"):
        scaling.markdown(tmp_path)
    with pytest.raises(LabError, match="holds no records of lab scaling"):
        scaling.markdown(tmp_path / "none")


# ---- every GPU alone, all at once


def test_the_mean_the_slowest_and_the_gpus_that_took_part(tmp_path):
    """Four alone, timed together by twos and by fours: two take GPUs 0 and 1, whatever the others do."""
    record(tmp_path, 2, 190)
    record(tmp_path, 4, 360)
    for gpu, rate in enumerate((101, 99, 100, 80)):
        record(tmp_path / "each", 1, rate, folder=f"{gpu}/run")
    two, four = against_each(tmp_path)
    assert re.findall(r"([\d.]+) %", two) == ["95.0", "96.0"] and re.findall(r"([\d.]+) %", four) == ["94.7", "112.5"]
    slowest = [re.search(r"GPU (\d) \((\d+) .* fastest (\d+)\)", line).groups() for line in (two, four)]
    assert slowest == [("1", "99", "101"), ("3", "80", "101")]
    record(tmp_path, 8, 700)
    assert len(against_each(tmp_path)) == 2, "eight were not timed alone"


def test_another_window_is_no_baseline(tmp_path):
    record(tmp_path, 2, 190)
    for gpu in "01":
        record(tmp_path / "each", 1, 100, window=15, folder=f"{gpu}/run")
    (shown,) = against_each(tmp_path)
    assert shown.startswith("These shares are no weak scaling: in bf16 a GPU had a window of 15 s and a window of 60 s")


def stand_in(folder: Path, monkeypatch, script: str) -> None:
    """In place of the comparisons: this shell script, on a machine that shows GPUs 4 and 6."""
    python = folder / "python"
    python.write_text("#!/bin/sh" + script + "\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")


def test_a_gpu_that_fails_is_shown_in_its_own_words_and_the_others_end(tmp_path, monkeypatch):
    script = """
        echo $$ > "$(dirname "$0")/$CUDA_VISIBLE_DEVICES.pid"
        [ "$CUDA_VISIBLE_DEVICES" = 4 ] && exec sleep 600
        echo "lab: no luck"
        exit 2"""
    stand_in(tmp_path, monkeypatch, script)
    request = Request("h100", ["bf16"], settings=["world_size=1"])
    with pytest.raises(LabError, match="GPU 6 alone failed .status 2.: lab: no luck"):
        time_each(request, [place(tmp_path, 0), place(tmp_path, 1)], cuda=True, console=Console(quiet=True))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "4.pid").read_text()), 0)


def test_which_gpu_each_process_sees(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible(3) == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7,GPU-ab")
    assert visible(2) == ["5", "7"] and visible(3) == ["5", "7", "GPU-ab"]


def test_each_process_sees_one_gpu_and_has_the_rest_of_the_budget(tmp_path, monkeypatch):
    """Without GPUs it has its share of the cores."""
    stand_in(tmp_path, monkeypatch, '\necho "$CUDA_VISIBLE_DEVICES $* $OMP_NUM_THREADS"')
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    lone = [place(tmp_path / "cpu", i) for i in (0, 1)]
    time_each(Request("cpu-tiny", ["bf16"]), lone, cuda=False, console=Console(quiet=True))
    assert [folder.with_name(background.LOG).read_text().split()[-1] for folder in lone] == ["3", "3"]
    request = Request("h100", ["bf16"], settings=["speed.seconds=9", "world_size=1"], budget_minutes=7.25)
    status = time_each(request, [place(tmp_path, i) for i in (0, 1)], cuda=True, console=Console(quiet=True))
    assert status == 3, "their budgets ended in order, and they left no result"
    for i, gpu in enumerate("46"):
        said = place(tmp_path, i).with_name(background.LOG).read_text()
        words = "-m labkit compare --preset h100 --arms bf16 --set speed.seconds=9 --set world_size=1 --part speed"
        assert said.startswith(f"{gpu} {words} --budget-minutes 7.25 --out {place(tmp_path, i)}")


def test_lone_trainings_are_not_each_others_company(tmp_path):
    """On a GPU a comparison refuses to start beside one that goes on; each of these has a GPU of its own."""
    for i in (0, 1):
        RunRecord.create(place(tmp_path, i), kind="compare", config={}, seeds={}).close()
    with RunRecord.open(place(tmp_path, 0)):
        assert background.going(place(tmp_path, 0))
        background.refuse_company(place(tmp_path, 1))


def test_each_arm_keeps_its_own_work():
    """An arm that makes its step of several micro-batches keeps that, whatever the baseline does."""
    whole = load_preset("h100", ["arms.te-delayed.train.accumulation=4"])
    for ranks in (1, 4):
        given = load_preset("h100", ["arms.te-delayed.train.accumulation=4", *scaling.same_work(whole, 139.8, ranks)])
        batches = [given.speed_config(arm, 139.8, ranks).batch_size for arm in ("bf16", "te-delayed")]
        assert batches == [20 * ranks, 80 * ranks] and given.world_size == ranks


def test_a_variant_that_cannot_run_here_is_left_out_and_the_baseline_is_refused(tmp_path, monkeypatch):
    te = '[arms.te]\nlabel = "TE"\nrole = "candidate"\ntrain.precision = { backend = "te", recipe = "current" }\n'
    given = load_preset(str(preset(tmp_path, SPEED.replace('["bf16"]', '["bf16", "te"]') + te)))
    assert scaling.runnable(given, None, Console(file=io.StringIO())) == ["bf16"]  # no CPU runs TE

    def refuse(*_):
        raise LabError("none")

    monkeypatch.setattr(scaling, "check_arm", refuse)
    with pytest.raises(LabError, match="none"):
        scaling.runnable(given, None, Console(file=io.StringIO()))


def test_other_nccl_settings_are_another_question(tmp_path, monkeypatch):
    given = load_preset("h100")
    record = RunRecord.create(tmp_path, kind="compare", config=jsonable(given.model_dump()), seeds={})
    record.close()
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    scaling.refuse_other(tmp_path, given)
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    with pytest.raises(LabError, match="other settings .NCCL_MAX_CTAS.: choose another folder"):
        scaling.refuse_other(tmp_path, given)


def test_more_gpus_than_there_are_is_shown_before_anything_starts(tmp_path):
    with pytest.raises(LabError, match="needs a CUDA GPU"):
        scaling.scaling(Request("h100", out=tmp_path / "out"), "1,2")
    assert not (tmp_path / "out").exists()
