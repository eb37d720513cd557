"""`lab compare` with a speed part, on real ranks: windows, the budget, pausing and going on; all of it on a CPU."""

import statistics
import threading
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from labkit.compare import compare
from labkit.compare.budget import Budget
from labkit.compare.speed import Window
from labkit.record import meter
from labkit.record.measure import median_error
from labkit.record.meter import Meter, Sample
from labkit.record.read import read_run
from tests.compare.comparing import SPEED, lab_here, preset


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both parts, two ranks, two arms; read by several tests and changed by none."""
    folder = tmp_path_factory.mktemp("speed")
    done = lab_here(folder, "compare", "--preset", preset(folder, SPEED), "--out", "out", "--price-per-hour", 3.6)
    return folder, done


@pytest.mark.thorough
def test_a_window_is_what_it_says(finished):
    folder, done = finished
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for name in ("bf16", "fp8"):
        run = read_run(folder / "out" / "speed" / name)
        speed = run.run["results"]["speed"]
        assert run.status == "finished" and speed["warmup"] == 3 and speed["steps"] >= 5
        assert [s["step"] for s in run.steps] == list(range(1, 3 + speed["steps"] + 1)), "the window ends the run"
        assert speed["window_s"] == pytest.approx(sum(s["seconds"] for s in run.steps[3:]))
        assert speed["tokens_per_s"] == pytest.approx(4 * 16 / speed["step_p50"], rel=0.5)
        assert run.run["config"]["seq_len"] == 16 and not run.series("heldout")
        memory = speed["memory"]
        parts = sum(v for k, v in memory.items() if k != "peak")
        assert memory["optimizer"] >= 2 * memory["weights"] > 0 and parts == memory["peak"]
        assert speed["kernels"] is None, "a CPU has no device kernels to profile"


def loop_of(rank, device, size=1):
    """What a window sees of a training."""
    linear = torch.nn.Linear(2, 2)
    group = SimpleNamespace(rank=rank, size=size, device=device, all_reduce=lambda tensor: tensor)
    rest = {"model": linear, "optimizer": torch.optim.SGD(linear.parameters()), "_peak": lambda: 0, "stopped": ""}
    return SimpleNamespace(
        group=group, config=SimpleNamespace(batch_size=4, seq_len=16), seconds=[], step=0, record=None, **rest
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_reads_its_gpus_clock_from_the_windows_first_step_to_its_last(monkeypatch, rank):
    """A driver that is made up: what it says before and after the window is not in the record."""
    begun, read = [], threading.Event()

    def look() -> Sample:
        read.set()
        return Sample(1477, 698.0, 700.0, True)

    monkeypatch.setattr(meter, "of_gpu", lambda device: begun.append(device) or Meter(look, every=0.001))
    loop, window = loop_of(rank, torch.device("cpu")), Window(seconds=0.5, warmup=2, profile=0)
    for loop.step in range(1, 8):  # five steps of 0.1 s fill it
        loop.seconds.append(0.1)
        window.after_step(loop)
        assert loop.step > 1 or not begun, "compiling is not the window"
        assert rank or loop.step == 1 or read.wait(60)
    assert loop.stopped and len(begun) == (rank == 0)
    found = window.found["meter"]
    assert found is None if rank else found["clock_mhz"]["p50"] == 1477 and found["at_limit"] == found["samples"] >= 1
    assert not any(thread.name == "meter" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "device, least, seconds, steps, windows",
    [
        ("cuda", None, (0.1, 0.3), 20, 2),
        ("cuda", None, (0.1, 0.1), 20, 1),
        ("cpu", None, (0.1, 0.3), 20, 1),
        ("cuda", 1.0, (0.1, 0.1), 10, 1),  # known at once
        ("cuda", 0.3, (0.1, 0.1), 8, 1),  # of fewer steps nothing is known: 5, 6, 7, 8
        ("cuda", 1.0, (0.0997, 0.1003), 10, 1),
        ("cuda", 1.0, (0.099, 0.101), 20, 1),  # +-1 % stays, however often it is asked
        ("cuda", 1.0, (0.1, 0.3), 20, 2),
    ],
)
def test_a_window_ends_when_its_median_is_known_and_is_repeated_once_if_it_scatters(
    monkeypatch, device, least, seconds, steps, windows
):
    for name, value in (("reset_peak", None), ("shortages", 0), ("device_used_bytes", 0)):
        monkeypatch.setattr(f"labkit.record.measure.{name}", lambda device, value=value: value)
    monkeypatch.setattr("labkit.compare.speed.agreed_mean", lambda group, value: value)
    loop, window = loop_of(1, SimpleNamespace(type=device), 2), Window(seconds=2.0, warmup=2, profile=0, least=least)
    while not loop.stopped and loop.step < 99:
        loop.step += 1
        loop.seconds.append(0.1 if loop.step <= 2 else seconds[loop.step % 2])
        window.after_step(loop)
    assert window.found["windows"] == windows and loop.step == 2 + steps * windows
    assert window.found["window_s"] == pytest.approx(sum(loop.seconds[-steps:])), "the last one is what was measured"


def test_the_interval_of_a_median_holds_it_95_times_in_100():
    draws = 1 + 0.01 * torch.randn(2000, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    medians = [statistics.median(row) for row in draws.tolist()]
    held = sum(abs(m - 1) <= m * (median_error(row) or 0) for m, row in zip(medians, draws.tolist()))
    assert 0.93 * 2000 < held < 0.985 * 2000
    assert median_error([1.0] * 7) is None and median_error([1.0] * 8) == 0


def test_both_answers_stand_apart(finished):
    folder, done = finished
    results = read_run(folder / "out").comparison.results
    verdict, rows = results.speed.verdict, results.speed.arms
    assert list(rows) == ["bf16", "fp8"] and verdict.word in ("faster", "slower", "same")
    assert verdict.ratios["fp8"].baseline > 0
    row = rows["fp8"]
    assert (row.library, row.tokens_step, row.converted, rows["bf16"].converted) == ("torchao", 4 * 16 // 2, 14, 0)
    said = {"SPEED": verdict, f"SAFETY, {results.verdict.word.upper()}": results.verdict}
    assert all(f"{head}: {one.sentence}" in " ".join(done.stdout.split()) for head, one in said.items())
    page = (folder / "out" / "report.html").read_text()
    assert all(head in page for head in ("Speed: ", "Safety: ", "Peak memory of a rank, GiB", "Minutes and money"))
    (call,) = read_run(folder / "out").run["results"]["calls"]
    both = [(part, arm) for part in ("speed", "safety") for arm in ("bf16", "fp8")]
    assert [(item["part"], item["arm"]) for item in call["items"]] == both
    assert call["seconds"] >= sum(i["measured_s"] for i in call["items"]) > 0
    assert call["cost"] == pytest.approx(call["seconds"] / 3600 * 3.6)


def test_nothing_is_timed_twice_and_checkpoints_for_pausing_do_not_outlive_their_arm(finished):
    folder, _ = finished
    assert not list((folder / "out").rglob("checkpoints"))
    before = {p: p.stat().st_mtime_ns for p in (folder / "out").glob("*/*/steps.jsonl")}
    lab_here(folder, "compare", "--preset", preset(folder, SPEED), "--out", "out", "--part", "speed")
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "out").glob("*/*/steps.jsonl")}


class Spent(Budget):
    """Lets every arm start, though the hour was over long ago: so where an arm pauses does not depend on the clock."""

    deadline = 1.0

    def fits(self, item):
        return True


@pytest.mark.thorough
def test_a_spent_budget_pauses_an_arm_and_the_next_call_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    request = compare.Request(str(preset(tmp_path, SPEED)), ["bf16"], tmp_path / "out", part="safety")
    with monkeypatch.context() as patch:
        patch.setattr(compare, "Budget", Spent)
        assert compare.compare(request, Console(quiet=True)) == 3
    arm = read_run(tmp_path / "out").arms["bf16"]
    assert arm.status == "paused" and arm.run["results"]["paused"] and "paused" in [e["kind"] for e in arm.events]
    assert [s["step"] for s in arm.steps] == [1, 2, 3], "the clock is looked at for the first time after three steps"
    assert list((tmp_path / "out" / "arms" / "bf16" / "checkpoints").iterdir())
    assert read_run(tmp_path / "out").status == "paused"
    (item,) = read_run(tmp_path / "out").run["results"]["calls"][0]["items"]
    assert item["left"] and item["measured_s"] > 0
    assert compare.compare(request, Console(quiet=True)) == 0
    arm = read_run(tmp_path / "out").arms["bf16"]
    assert arm.status == "finished" and [s["step"] for s in arm.steps] == list(range(1, 9)), (
        "no step twice, none missing"
    )
    assert arm.run["results"]["resumed_from"] == 3 and not (tmp_path / "out" / "arms" / "bf16" / "checkpoints").exists()
    assert len(read_run(tmp_path / "out").run["results"]["calls"]) == 2


def test_an_arm_that_does_not_fit_is_not_started(tmp_path):
    text = SPEED.replace("startup_seconds = 1", "startup_seconds = 3000")
    done = lab_here(tmp_path, "compare", "--preset", preset(tmp_path, text), "--out", "out", "--budget-minutes", 1)
    out = tmp_path / "out"
    assert done.returncode == 0 and not (out / "speed").exists() and not (out / "arms").exists()
    assert lab_here(tmp_path, "status", "out").returncode == 3, "there a script sees that something is left"
