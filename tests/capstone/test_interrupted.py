"""The study that pauses and kills a run: both happen once, when they are to, and the run ends all the same."""

import json

import pytest

from labkit.errors import LabError
from labkit.record.read import read_run
from studies.interrupted import main

TINY = """parts = "mine"
mixed_precision = "fp8"
rest = "fp32"
model = "tiny"
steps = 60
seq_len = 64
batch_size = 4
warmup_steps = 10
eval_every = 0
checkpoint_every = 10
[parallel]
dp = 1
[data]
source = "python"
max_bytes = 1_000_000
"""


@pytest.mark.timeout(480)  # four starts of torch: two minutes where all cores are busy
@pytest.mark.thorough
def test_a_run_is_paused_and_killed_once_and_ends(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "runs" / "tiny"
    assert main([str(tmp_path / "tiny.toml"), "--out", str(out), "--pause", "0.2", "--kill", "0.4:0"]) == 0
    kept = json.loads(out.with_name("tiny.interrupted.json").read_text())
    (paused,), (killed,) = kept["pauses"], kept["kills"]
    assert 12 <= paused["step"] < 60 and 24 <= killed["step"] < 60 and killed["rank"] == 0
    assert kept["torchrun"] == 0 and kept["status"] == "finished" and kept["each step once"] is True
    run = read_run(out)
    assert [line["step"] for line in run.steps] == list(range(1, 61))
    pause, kill = (event for event in run.events if event["kind"] == "resume")
    # A kill while a step's checkpoint is being written costs the whole interval since the one before.
    assert pause["dropped_steps"] == 0 <= kill["dropped_steps"] <= 10
    assert (paused["from"], killed["from"]) == (pause["step"], kill["step"])
    with pytest.raises(LabError, match=f"{out} holds a run: choose another folder with --out"):
        main([str(tmp_path / "tiny.toml"), "--out", str(out)])
