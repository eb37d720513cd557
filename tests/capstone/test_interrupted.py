"""The study that pauses and kills a run: both happen once, when they are to, and the run ends all the same."""

import json
import subprocess
import sys

import pytest

from labkit.record.read import read_run
from tests.judged import ROOT

TINY = """parts = "mine"
mixed_precision = "fp8"
rest = "fp32"
model = "tiny"
steps = 150
seq_len = 64
batch_size = 4
warmup_steps = 10
eval_every = 50
checkpoint_every = 20
[parallel]
dp = 1
[data]
source = "python"
max_bytes = 1_000_000
"""


def study(*words, **more):
    argv = [sys.executable, "-m", "studies.interrupted", *map(str, words)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, **more)


@pytest.mark.thorough
def test_a_run_is_paused_and_killed_once_and_ends(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "runs" / "tiny"
    ended = study(tmp_path / "tiny.toml", "--out", out, "--pause", 0.2, "--kill", 0.4)
    assert ended.returncode == 0, ended.stderr
    kept = json.loads(out.with_name("tiny.interrupted.json").read_text())
    assert kept["ended"]["status"] == 0 and 30 <= kept["paused"]["step"] < 150 and 60 <= kept["killed"]["step"] < 150
    run = read_run(out)
    assert [line["step"] for line in run.steps] == list(range(1, 151)) and run.run["status"] == "finished"
    pause, kill = (event for event in run.events if event["kind"] == "resume")
    # A kill while a step's checkpoint is being written costs the whole interval since the one before.
    assert pause["dropped_steps"] == 0 <= kill["dropped_steps"] <= 20
    again = study(tmp_path / "tiny.toml", "--out", out)
    assert again.returncode == 2 and again.stderr.strip() == (
        f"interrupted: {out} holds a run: choose another folder with --out"
    )
