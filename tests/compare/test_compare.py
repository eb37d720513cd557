"""`lab compare` from the first arm to the verdict, on two real ranks: what it leaves, and that it goes on."""

import json
import os
import signal
import time

import pytest

from labkit.record.read import read_run
from tests.compare.comparing import MICRO, lab, lab_here, preset, start
from tests.gated import Gate

REPEATED = MICRO.replace("[train]", "[repeat]\nbaseline = 2\ncandidate = 2\nmore = 0\n[train]", 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole comparison, read by several tests and changed by none."""
    folder = tmp_path_factory.mktemp("compare")
    done = lab(folder, "compare", "--preset", preset(folder, REPEATED), "--out", "out")
    return folder, done


def test_every_arm_has_its_record_and_the_verdict_its_reasons(finished):
    folder, done = finished
    assert done.returncode in (0, 1), done.stderr  # 8 steps prove nothing about FP8: any verdict will do here
    run = read_run(folder / "out")
    assert run.status == "finished" and list(run.arms) == ["bf16", "bf16-2", "fp8", "fp8-2", "broken"]
    for arm in run.arms.values():
        assert arm.status == "finished" and [s["step"] for s in arm.steps] == list(range(1, 9))
        assert [step for step, _ in arm.series("heldout")] == [2, 4, 6, 8]
    verdict = run.run["results"]["verdict"]
    assert verdict["word"] in ("pass", "fail", "undecided", "no-power")
    assert verdict["sentence"] in " ".join(done.stdout.split())
    assert set(verdict["arms"]) == set(run.arms) and verdict["arms"]["fp8"]["runs"] == 2


def test_what_really_ran_is_shown_from_evidence(finished):
    arms = read_run(finished[0] / "out").arms
    kinds = {name: arm.run["results"]["evidence"]["module_types"] for name, arm in arms.items()}
    assert kinds["bf16"] == {"torch.nn.modules.linear.Linear": 15}
    assert {kind.rpartition(".")[2]: count for kind, count in kinds["fp8"].items()}["Float8Linear"] == 14, kinds["fp8"]
    assert arms["fp8"].run["conversion"]["skipped"].keys() == {"head"}
    results = read_run(finished[0] / "out").run["results"]["arms"]
    assert (results["fp8"]["converted"], results["fp8"]["skipped"]) == (14, 1)
    assert results["fp8"]["sqnr"]["db"] < results["bf16"]["sqnr"]["db"] - 10, "FP8 keeps 4 bits less than bf16: 24 dB"


def test_arms_start_from_the_same_weights_and_see_the_same_data(finished):
    """Only the first training loss can show it: it is that of the first weights on the first batch."""
    arms = read_run(finished[0] / "out").arms
    first = {name: arm.steps[0]["loss"] for name, arm in arms.items()}
    assert first["bf16-2"] == pytest.approx(first["bf16"], rel=1e-4) and first["bf16-2"] != first["bf16"]
    assert first["fp8"] == pytest.approx(first["bf16"], rel=2e-3), "FP8 rounding moves a fresh model's loss by less"
    assert len({arm.run["corpus"]["hash"] for arm in arms.values()}) == 1


def test_report_and_table_are_there(finished):
    folder, done = finished
    page = (folder / "out" / "report.html").read_text()
    assert page.count("<img ") == len(list((folder / "out" / "figures").glob("*.svg"))) > 0
    for label in ("BF16", "FP8", "broken", "loss gap %"):
        assert label in done.stdout
    (folder / "out" / "report.html").unlink()
    assert lab_here(folder, "report", "out").returncode == 0
    assert (folder / "out" / "report.html").read_text() == page, "it tells of the finished run"


def test_a_finished_comparison_is_shown_and_not_trained_again(finished):
    folder, _ = finished
    before = {p: p.stat().st_mtime_ns for p in (folder / "out" / "arms").rglob("steps.jsonl")}
    again = lab_here(folder, "compare", "--preset", preset(folder, REPEATED), "--out", "out")
    assert "Nothing left to train" in again.stdout and read_run(folder / "out").status == "finished"
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "out" / "arms").rglob("steps.jsonl")}


@pytest.mark.thorough
def test_interrupted_it_keeps_what_it_has_and_goes_on(tmp_path):
    """Ctrl-C in the second arm: exit 130, no rank left; the second call keeps the first arm and finishes the rest."""
    slow = MICRO.replace("world_size = 2", "world_size = 1").replace("eval_every = 2", "eval_every = 20")
    slow = slow.replace("steps = 8", "steps = 60").replace("probe_every = 4", "probe_every = 1000")
    words = ("compare", "--preset", preset(tmp_path, slow), "--out", "out", "--arms", "bf16,fp8")
    gate = Gate(tmp_path / "gate", "fp8", 1)  # the second arm ends by nothing else than the signal
    running = start(tmp_path, *words, **gate.environment)
    second = tmp_path / "out" / "arms" / "fp8" / "steps.jsonl"
    deadline = time.monotonic() + 150
    while not (second.exists() and second.stat().st_size) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    output = running.communicate(timeout=60)[0]
    assert running.returncode == 130 and "goes on with the arms it has" in output and "Traceback" not in output, output
    first = read_run(tmp_path / "out")
    assert first.status == "interrupted" and first.arms["bf16"].status == "finished"
    began = first.arms["bf16"].run["started"]
    done = lab_here(tmp_path, *words)
    after = read_run(tmp_path / "out")
    assert after.arms["bf16"].run["started"] == began, "the finished arm was not trained again"
    assert after.arms["fp8"].status == "finished", done.stdout + done.stderr
    assert [s["step"] for s in after.arms["fp8"].steps] == list(range(1, 61)), "no step stands twice"


def test_fresh_moves_the_old_run_aside(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text(json.dumps({"kind": "compare", "config": {}, "status": "finished"}))
    words = ("compare", "--preset", preset(tmp_path), "--out", "out", "--arms", "bf16", "--set", "train.steps=2")
    assert lab_here(tmp_path, *words, "--fresh").returncode in (0, 1)  # two steps may teach nothing
    assert json.loads((tmp_path / "out.1" / "run.json").read_text())["config"] == {}
    assert read_run(out).arms["bf16"].status == "finished"
