"""The entry point: what is refused, both ways' losses, a run whose rank is killed, one that is asked to end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from capstone.running.config import CapstoneConfig, degrees, precision_of, read, setup_of
from labkit.errors import LabError
from tests.gated import Gate

ROOT = Path(__file__).parents[2]


def written(path: Path, tp: int = 1, steps: int = 4, **changes: object) -> Path:
    values = dict(model="tiny", steps=steps, seq_len=32, batch_size=8, eval_every=0, checkpoint_every=0, rest="fp32")
    values |= {"mixed_precision": "fp32", "parts": "mine", **changes}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join([*lines, f"[parallel]\ntp = {tp}\n"]))
    return path


def losses(run: Path) -> dict[int, float]:
    """By step; every step once."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return {line["step"]: line["loss"] for line in lines}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def train(*words: object, ranks: int | None = None) -> subprocess.CompletedProcess:
    count = [] if ranks is None else ["--ranks", str(ranks)]
    command = [sys.executable, "-m", "capstone.train", *map(str, words), *count]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200)


# ---- the configuration


def test_what_lab_plan_writes_is_read(tmp_path):
    (tmp_path / "plan.toml").write_text(
        "batch_size = 16\n[parallel]\ndp = 2\ntp = 2\npp = 1\nvp = 1\ncp = 1\nep = 1\nzero = 3\nmicro_batch = 2\n"
        'recompute = false\nprecision = "fp8"\n'
    )
    config = degrees(read(tmp_path / "plan.toml"), 4)
    assert precision_of(config) == "fp8" and config.accumulation == 4
    setup = setup_of(config)
    assert (setup.dp, setup.tp, setup.pp, setup.zero, setup.micro) == (2, 2, 1, 3, 4)


SMALL = dict(vocab_size=512, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=128, max_seq_len=256)
FP8_TP = {"parallel": {"tp": 2}, "parts": "torch", "mixed_precision": "fp8"}


@pytest.mark.parametrize(
    "values, ranks, words",
    [
        ({"parallel": {"dp": 2, "tp": 2}}, 8, "a mesh of 4 ranks, and 8 are here"),
        ({"parallel": {"cp": 2}}, 2, "cp = 2"),
        ({"parallel": {"ep": 2}}, 2, "ep = 2"),
        (FP8_TP, 2, "torchao tensorwise and TP do not go together"),
        ({"parallel": {"pp": 2}, "parts": "torch"}, 2, "no pipeline here"),
        ({"parallel": {"micro_batch": 3}}, 2, "batch_size = 8 is not a multiple"),
        ({"batch_size": 6, "accumulation": 1}, 4, "cannot be cut"),
        ({"compile": True}, 1, "neither compiles"),
        ({"parallel": {"tp": 3}}, 3, "query heads cannot be split over tp = 3 ranks"),
        ({"parallel": {"tp": 3}, "parts": "torch"}, 3, "n_heads = .* cannot be split over 3"),
        ({"parallel": {"tp": 4}, "model": {**SMALL, "n_kv_heads": 3, "n_heads": 12}}, 4, "one must divide the other"),
        ({"parallel": {"tp": 2}, "model": {**SMALL, "experts": 4, "topk": 2}}, 2, "experts are not cut"),
        ({"parallel": {"tp": 2}, "model": {**SMALL, "d_ffn": 129}}, 2, "129 features"),
        ({"parallel": {"pp": 3}, "model": SMALL}, 3, "2 blocks cannot be 3 stages"),
        ({"precision": {"backend": "te"}}, 1, "your own linears"),
    ],
)
def test_what_does_not_go_is_one_sentence(values, ranks, words):
    with pytest.raises(LabError, match=f"^.*{words}.*$"):
        degrees(CapstoneConfig(**values), ranks)


def test_a_typo_names_the_nearest_key_and_two_precisions_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text("[parallel]\ntpp = 2\n")
    with pytest.raises(LabError, match="'tpp' is not a known key"):
        read(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('mixed_precision = "bf16"\n[parallel]\nprecision = "fp8"\n')
    with pytest.raises(LabError, match="leave one of the two out"):
        read(tmp_path / "b.toml")


# ---- runs


@pytest.mark.thorough
def test_both_ways_are_one_training_and_another_run_is_refused(tmp_path):
    """On dp2 x tp2: torch's sums are taken in other orders, each rounded by 2^-24. Observed: 1e-7 after 6 steps."""
    found = {}
    for parts in ("mine", "torch"):
        done = train(written(tmp_path / f"{parts}.toml", parts=parts, tp=2), "--out", tmp_path / parts, ranks=4)
        assert done.returncode == 0, done.stderr
        found[parts] = losses(tmp_path / parts)
        record = json.loads((tmp_path / parts / "run.json").read_text())
        assert record["status"] == "finished" and record["mesh"]["dp"] == 2 and record["parts"] == parts
    assert found["mine"] == pytest.approx(found["torch"], rel=1e-5)
    before = (tmp_path / "mine" / "steps.jsonl").read_bytes()
    done = train(written(tmp_path / "mine.toml", mixed_precision="fp8"), "--out", tmp_path / "mine", ranks=2)
    assert done.returncode == 2 and "holds another run" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "mine" / "steps.jsonl").read_bytes() == before


@pytest.mark.thorough
def test_fp8_is_what_ran(tmp_path):
    done = train(written(tmp_path / "a.toml", mixed_precision="fp8", tp=2, steps=2), "--out", tmp_path / "a", ranks=2)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["evidence"]["module_types"] == {"AgreedLinear": 28, "Linear": 1} and record["stand_ins"] == {}
    assert len(record["conversion"]["converted"]) == 28
    # What was typed, though the rank that writes was forked.
    assert record["command"].startswith("python -m capstone.train") and record["command"].endswith("--ranks 2")


def wait_for(run: Path, lines: int, process: subprocess.Popen) -> None:
    file, until = run / "steps.jsonl", time.monotonic() + 150
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert process.poll() is None and time.monotonic() < until, "the run did not get so far"
        time.sleep(0.02)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_sigterm_under_torchrun_pauses_and_no_step_is_lost(tmp_path):
    """The losses are an undisturbed run's, bit for bit: the mesh is the same. (Killed ranks: test_restarts.py.)"""
    config = written(tmp_path / "a.toml", mixed_precision="fp8", steps=40, checkpoint_every=5)
    assert train(config, "--out", tmp_path / "whole", ranks=2).returncode == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "2", "-m", "capstone.train", str(config), "--out", str(tmp_path / "asked")]
    gate = Gate(tmp_path / "gate", "asked", 3)
    own = {**environment(), **gate.environment, "TMPDIR": str(tmp_path)}  # torchrun leaves its workers' logs there
    process = subprocess.Popen(command, cwd=ROOT, env=own)
    wait_for(tmp_path / "asked", 3, process)
    for pid in (*ranks_of(process.pid), process.pid):  # torchrun last: what it passes on comes when it comes
        os.kill(pid, signal.SIGTERM)
    gate.open()
    # The cluster's files stand on these two: a pod that paused comes again, and the record says why it ended.
    assert process.wait(timeout=100) == 1
    assert json.loads((tmp_path / "asked" / "run.json").read_text())["status"] == "paused"
    assert train(config, "--out", tmp_path / "asked", ranks=2).returncode == 0
    assert losses(tmp_path / "asked") == losses(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("parts, number", [("mine", signal.SIGINT), ("torch", signal.SIGTERM)])
def test_the_starter_of_the_ranks_passes_on_that_it_is_to_end(tmp_path, parts, number):
    """Once, and once more behind the checkpoint: the run is paused each time, and loses no step."""
    config, out = written(tmp_path / "a.toml", parts=parts, steps=100_000, checkpoint_every=50_000), tmp_path / "run"
    command = [sys.executable, "-m", "capstone.train", str(config), "--out", str(out), "--ranks", "2"]
    for least in (3, None):
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
        wait_for(out, least or len(losses(out)) + 2, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=100)
        assert process.returncode == 3 and "asked to stop: the ranks save a checkpoint" in said, said
        assert json.loads((out / "run.json").read_text())["status"] == "paused"
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert [kind for kind in kinds if kind in ("paused", "loaded")] == ["paused", "loaded", "paused"]
    assert losses(out)


def ranks_of(pid: int) -> list[int]:
    """The process's descendants without children of their own, the youngest last."""
    below = psutil.Process(pid).children(recursive=True)
    return sorted(p.pid for p in below if not p.children())
