"""How a run ends: two trainers in one folder, a disk on which nothing can be saved, a SIGTERM at a chosen line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from capstone import train
from labkit.comm.ranks import run_ranks
from labkit.errors import LabError
from labkit.record.run import RunRecord, read_run, sole_trainer

ROOT = Path(__file__).parents[2]


def test_one_process_trains_in_a_folder(tmp_path):
    """Whatever writes there in turn: the lock is the trainer's, and goes with it."""
    holds = (
        "import sys; from pathlib import Path; from labkit.record.run import sole_trainer\n"
        "with sole_trainer(Path(sys.argv[1])): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holds, str(tmp_path / "run")]
    other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(LabError, match=f"^.*{tmp_path}/run.*$"), sole_trainer(tmp_path / "run"):
            pass
    finally:
        other.kill()
        other.wait()
    with sole_trainer(tmp_path / "run"):
        record = RunRecord.create(tmp_path / "run", kind="train", hardware={})
        RunRecord(tmp_path / "run").event("hung")  # another object of the same run
        record.finish()
    with sole_trainer(tmp_path / "run"):
        pass


def test_run_json_says_how_a_run_ended_though_no_file_can_be_made(tmp_path, monkeypatch):
    record = RunRecord.create(tmp_path / "run", kind="train", hardware={})

    def full(target, content):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("labkit.record.run.replace_file", full)
    with pytest.raises(ValueError, match="it broke"), record:
        raise ValueError("it broke")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert read_run(tmp_path / "run").events[-1]["kind"] == "failed"


@pytest.fixture
def values(tmp_path):
    """Settings of a short run on a text of its own."""
    (tmp_path / "text").mkdir()
    for name in "abcd":
        (tmp_path / "text" / f"{name}.py").write_text("".join(f"{name}_{k} = {k} * {k + 1}\n" for k in range(2000)))
    model = dict(vocab_size=300, d_model=64, n_layers=1, n_heads=2, n_kv_heads=2, d_ffn=64, max_seq_len=16)
    short = dict(steps=3, seq_len=16, batch_size=2, eval_every=0, mixed_precision="fp32", rest="fp32")
    return {**short, "model": model, "data": {"source": [str(tmp_path / "text")]}}


def test_a_run_without_its_last_checkpoint_is_no_success(tmp_path, values):
    tables = {key: values.pop(key) for key in ("model", "data")}
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in {**values, "checkpoint_every": 1, "parts": "mine"}.items()
    ]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    (tmp_path / "a.toml").write_text("\n".join(lines))
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").write_text("in the way")
    own = {**os.environ, "OMP_NUM_THREADS": "1", "LABKIT_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "capstone.train", str(tmp_path / "a.toml"), "--out", str(run), "--ranks", "1"]
    done = subprocess.run(words, cwd=ROOT, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    said = [line for line in done.stderr.splitlines() if "could not be written" in line]
    assert [step for step in (1, 2, 3) if any(f"step {step} " in line for line in said[:3])] == [1, 2, 3]
    assert "there is no earlier one" in said[-1]
    record = read_run(run)
    assert record.status == "failed" and [line["step"] for line in record.steps] == [1, 2, 3]


# ---- asked to end


def job(group, values: dict, out: str, line: str) -> dict:
    """A training that gets a SIGTERM behind the first call of this method of its record."""
    method, came = getattr(RunRecord, line), []

    def then(self, *args, **fields):
        method(self, *args, **fields)
        if not came:
            came.append(1)
            signal.raise_signal(signal.SIGTERM)

    setattr(RunRecord, line, then)
    return train.job(group, values, out)


@pytest.mark.parametrize("parts", ["mine", "torch"])
@pytest.mark.parametrize(
    "line, status, steps", [("_write_run", "paused", 1), ("step", "paused", 2), ("results", "finished", 3)]
)
def test_run_json_says_how_it_ended(tmp_path, values, parts, line, status, steps):
    out, settings = tmp_path / "run", {**values, "checkpoint_every": 50, "parts": parts}
    summary = run_ranks(job, settings, str(out), line, size=1, backend="processes", timeout=None)[0]
    record = json.loads((out / "run.json").read_text())
    assert (record["status"], summary["paused"], summary["steps"]) == (status, status == "paused", steps)
    assert (out / "checkpoints" / f"step-{steps:08d}").is_dir()
