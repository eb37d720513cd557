"""Two trainers in one folder, and a disk on which nothing can be saved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        with pytest.raises(LabError) as refused, sole_trainer(tmp_path / "run"):
            pass
        assert "\n" not in str(refused.value) and str(tmp_path / "run") in str(refused.value)
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


def test_a_run_without_its_last_checkpoint_is_no_success(tmp_path):
    (tmp_path / "text").mkdir()
    for name in "abcd":
        (tmp_path / "text" / f"{name}.py").write_text("".join(f"{name}_{k} = {k} * {k + 1}\n" for k in range(2000)))
    shape = 'steps = 3\nseq_len = 16\nbatch_size = 2\neval_every = 0\ncheckpoint_every = 1\nmixed_precision = "fp32"\n'
    sizes = "vocab_size = 300\nd_model = 64\nn_layers = 1\nn_heads = 2\nn_kv_heads = 2\nd_ffn = 64\nmax_seq_len = 16\n"
    (tmp_path / "a.toml").write_text(
        f'{shape}parts = "mine"\nrest = "fp32"\n[model]\n{sizes}[data]\nsource = ["{tmp_path}/text"]\n'
    )
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
