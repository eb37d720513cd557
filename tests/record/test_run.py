"""The run folder survives what happens to runs: SIGKILL at any moment, a full disk, resume, NaN, sharing."""

import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.record.clean import clean_command, scrub, typed_command
from labkit.record.run import RunRecord, is_alive, read_run, versions

ROOT = Path(__file__).parents[2]


def new(path, **more):
    more = {"kind": "train", "command": "lab train", "config": {}, "seeds": {"data": 1}, "hardware": {}, **more}
    return RunRecord.create(path, **more)


@dataclass
class Spec:
    scale: float


def test_what_is_written_is_read_back(tmp_path):
    with new(tmp_path / "r", config={"lr": 0.1}, corpus={"hash": "ab"}) as record:
        record.step(step=0, loss=2.5, scales={"w": {"scale": 1.0}})
        record.event("checkpoint", step=0, message="saved")
        record.update(world={"size": 2})
        record.results(final=2.5)
        record.results(other=1, names={2, 1}, sizes=np.arange(2), at=Path("x/y"), spec=Spec(np.float32(0.5)))
    data = read_run(tmp_path / "r")
    assert data.steps == [{"step": 0, "loss": 2.5, "scales": {"w": {"scale": 1.0}}}]
    (event,) = data.events
    assert event["kind"] == "checkpoint" and event["step"] == 0 and event["time"].endswith("Z")
    assert data.run["status"] == "finished" and data.run["finished"] and data.run["started"]
    assert data.run["config"] == {"lr": 0.1} and data.run["corpus"] == {"hash": "ab"}
    assert data.run["world"] == {"size": 2}
    plain = {"names": [1, 2], "sizes": [0, 1], "at": "x/y", "spec": {"scale": 0.5}}
    assert data.run["results"] == {"final": 2.5, "other": 1, **plain}
    assert data.run["versions"]["python"] and data.truncated == 0
    assert data.series("loss") == [(0, 2.5)]


# ---- kill -9

WRITER = """
import os, sys
from labkit.record.run import RunRecord
path, first, wide = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
record = (RunRecord.open(path, resume_from=first) if os.path.exists(path + "/run.json") else
          RunRecord.create(path, kind="train", command="lab train", config={}, seeds={}, hardware={}))
scales = {f"layers.{i}.w": {"scale": 1.0 / (i + 1), "amax": float("inf")} for i in range(wide)}
os.write(1, b"start\\n")
for step in range(first, 1000000):
    record.step(step=step, loss=1.0 / (step + 1), scales=scales)
    os.write(1, b"%d\\n" % step)                       # printed after the line is written
    if step % 7 == 0:
        record.update(progress=step)
        record.event("checkpoint", step=step)
"""


@pytest.mark.thorough
def test_kill_9_at_any_moment_loses_at_most_the_line_being_written(tmp_path):
    # One folder, killed and resumed again and again. Wide lines (some 100 KiB) are written page by page, so that a kill
    # can really tear them; narrow ones make the rewriting of run.json the likelier victim.
    path, draw, first = tmp_path / "r", random.Random(13), 0
    for _ in range(24):
        wide = draw.choice([1, 2000])
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first), str(wide)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert writer.stdout.readline() == b"start\n"
        time.sleep(draw.uniform(0, 0.06))
        writer.send_signal(signal.SIGKILL)
        shown = writer.stdout.read().split()
        writer.wait()
        data = read_run(path)  # never raises
        written = [line["step"] for line in data.steps]
        last = int(shown[-1]) if shown else first - 1
        assert written == list(range(len(written))), "a step is missing or stands twice"
        assert len(written) - 1 in (last, last + 1), "a step that was reported as written is not there"
        assert data.truncated <= 2  # one line in each of the two files
        assert data.run["status"] == "running" and data.status == "interrupted"
        first = max(0, len(written) - draw.randrange(3))
    assert first > 0


def test_a_torn_last_line_is_counted_then_cut_off_when_the_run_is_resumed(tmp_path):
    new(tmp_path / "r").close()
    steps = tmp_path / "r" / "steps.jsonl"
    steps.write_bytes(b'{"step": 0, "loss": 1}\n{"step": 1, "lo')
    data = read_run(tmp_path / "r")
    assert [s["step"] for s in data.steps] == [0] and data.truncated == 1
    with RunRecord.open(tmp_path / "r") as record:
        record.step(step=1, loss=2.0)
    data = read_run(tmp_path / "r")
    assert [s["step"] for s in data.steps] == [0, 1] and data.truncated == 0


def test_a_last_line_that_only_lacks_its_newline_is_kept(tmp_path):
    new(tmp_path / "r").close()
    (tmp_path / "r" / "steps.jsonl").write_bytes(b'{"step": 0}\n{"step": 1}')
    with RunRecord.open(tmp_path / "r") as record:
        record.step(step=2)
    assert [s["step"] for s in read_run(tmp_path / "r").steps] == [0, 1, 2]


@pytest.mark.parametrize("tail", [b"", b'{"step": 9, "lo'])
def test_resume_drops_the_steps_that_will_be_written_again(tmp_path, tail):
    record = new(tmp_path / "r")
    for step in range(6):
        record.step(step=step, loss=float(step))
    record.event("nonfinite", step=5)
    record.finish("interrupted")
    with open(tmp_path / "r" / "steps.jsonl", "ab") as file:
        file.write(tail)
    with RunRecord.open(tmp_path / "r", resume_from=4) as record:
        record.step(step=4, loss=40.0)
        assert read_run(tmp_path / "r").run["status"] == "running"
    data = read_run(tmp_path / "r")
    assert [s["loss"] for s in data.steps] == [0, 1, 2, 3, 40]
    assert [e["kind"] for e in data.events] == ["nonfinite", "resume"] and data.events[1]["dropped_steps"] == 2


# ---- numbers that JSON does not have


def test_nonfinite_numbers_are_valid_json_and_come_back(tmp_path):
    with new(tmp_path / "r") as record:
        record.step(step=0, loss=math.nan, grad_norm=math.inf, scales={"w": {"amax": -math.inf}})
        record.event("nonfinite", step=0, message="NaN", loss=math.nan)
        record.results(final=math.nan)
    for name in ("run.json", "steps.jsonl", "events.jsonl"):

        def refuse(word, name=name):
            raise AssertionError(f"{name} holds {word}, which is not JSON")

        text = (tmp_path / "r" / name).read_text()
        for line in [text] if name == "run.json" else text.splitlines():
            json.loads(line, parse_constant=refuse)
    data = read_run(tmp_path / "r")
    assert math.isnan(data.steps[0]["loss"]) and data.steps[0]["grad_norm"] == math.inf
    assert data.steps[0]["scales"]["w"]["amax"] == -math.inf
    assert data.events[0]["message"] == "NaN" and math.isnan(data.events[0]["loss"])
    assert math.isnan(data.run["results"]["final"])


# ---- disk, ranks, processes

FULL = """
import resource, sys
from labkit.errors import LabError
from labkit.record.run import RunRecord
record = RunRecord.create(sys.argv[1], kind="train", command="c", config={}, seeds={}, hardware={})
# From here on the kernel refuses like a full disk, part-way in a write.
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    for step in range(10000):
        record.step(step=step, loss=1.0, pad="x" * 700)
except LabError as error:
    print(error)
    raise SystemExit(2)
"""


def test_a_full_disk_is_one_sentence_and_the_record_stays_readable(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "r")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("the disk is full: could not write") and "Free some space" in done.stdout
    assert done.stdout.count("\n") == 1 and done.stderr == ""
    data = read_run(tmp_path / "r")
    assert data.truncated == 0 and len(data.steps) > 20
    assert [line["step"] for line in data.steps] == list(range(len(data.steps)))


def test_a_record_can_be_sent_to_a_rank_process(tmp_path):
    record = new(tmp_path / "r")
    record.step(step=0)
    there = pickle.loads(pickle.dumps(record))
    there.step(step=1)
    record.update(first=True)
    there.update(there=True)
    record.update(here=True)  # must not undo what the other one wrote
    data = read_run(tmp_path / "r")
    assert len(data.steps) == 2 and data.run["there"] and data.run["here"]


def test_alive_says_whether_a_writer_lives(tmp_path):
    record = new(tmp_path / "r")
    assert is_alive(tmp_path / "r") and read_run(tmp_path / "r").status == "running"
    record.close()
    assert is_alive(tmp_path / "r") is False and read_run(tmp_path / "r").status == "interrupted"


@pytest.mark.parametrize("error, status", [(KeyboardInterrupt(), "interrupted"), (ValueError("shape"), "failed")])
def test_a_block_that_ends_by_an_error_says_so(tmp_path, error, status):
    with pytest.raises(type(error)), new(tmp_path / "r"):
        raise error
    data = read_run(tmp_path / "r")
    assert data.status == status and data.events[-1]["kind"] == status and data.run["finished"]


def test_wrong_folders_get_one_sentence(tmp_path):
    with pytest.raises(LabError, match="no run in"):
        read_run(tmp_path / "nothing")
    with pytest.raises(LabError, match="no run in"):
        RunRecord.open(tmp_path / "nothing")
    new(tmp_path / "r").close()
    with pytest.raises(LabError, match="already holds a run"):
        new(tmp_path / "r")
    (tmp_path / "r" / "run.json").write_text("{")
    with pytest.raises(LabError, match="not valid JSON"):
        read_run(tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="could not write"):
        new(tmp_path / "file" / "r")


def test_arms_are_read_in_the_order_they_were_run(tmp_path):
    with new(tmp_path / "c", kind="compare") as record:
        for name in ("twin", "fp8", "bf16"):
            new(tmp_path / "c" / "arms" / name).finish()
        (tmp_path / "c" / "arms" / "half").mkdir()  # made, killed before its run.json
        record.results(arms={"bf16": {}, "twin": {}, "absent": {}})
    assert list(read_run(tmp_path / "c").arms) == ["bf16", "twin", "fp8"]


# ---- nothing private


def test_no_private_thing_enters_a_record(tmp_path, monkeypatch):
    home = tmp_path / "home" / "ada"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-17.cluster")
    from labkit.record import clean

    clean._places.cache_clear()
    command = ["lab", "compare", "--out", f"{home}/runs/demo", "--hf-token", "abc123", "--data=/data/deep/x"]
    config = {"files": [f"{home}/corpus/a.py", "/opt/lib/python3/os.py"], "hf_token": "abc123", "token": "abc123"}
    with new(tmp_path / "r", command=command, config={**config, "tokens": 12, "tokens_per_s": 3.0}) as record:
        record.event(
            "failed",
            message=f"at {home}/x.py:3 on gpu-17.cluster, see /var/log/deep/slurm.log, key hf_abcdefghijklmnop",
        )
        record.step(step=0, note=f"{os.getcwd()}/runs/x")
    clean._places.cache_clear()
    text = "".join(p.read_text() for p in (tmp_path / "r").glob("*.json*"))
    for private in (str(home), "ada", "abc123", "gpu-17", "/opt/", "/var/", "/data/", os.getcwd(), "hf_abc"):
        assert private not in text, f"{private} is in the record"
    data = read_run(tmp_path / "r")
    assert data.run["command"] == "lab compare --out ~/runs/demo --hf-token <hidden> --data=.../x"
    assert data.run["config"]["tokens"] == 12 and data.run["config"]["tokens_per_s"] == 3.0
    assert data.events[0]["message"].startswith("at ~/x.py:3 on <host>, see .../slurm.log, key <hidden>")
    assert data.steps[0]["note"] == "./runs/x"


def test_ordinary_text_is_left_alone():
    text = (
        "14,003 tok/s/GPU https://arxiv.org/abs/1910.02054 and/or layers.0.ffn.w1 GB/s runs/demo record/run.py:12 ../x"
    )
    assert scrub(text) == text


@pytest.mark.parametrize(
    "argv, typed",
    [
        (["/v/bin/python3.11", "/v/bin/lab", "compare", "--preset", "cpu-tiny"], "lab compare --preset cpu-tiny"),
        (["/usr/bin/python3", "-m", "labkit", "report"], "python -m labkit report"),
        (["python", "train.py", "a b"], "python train.py 'a b'"),
    ],
)
def test_the_command_is_the_one_that_was_typed(argv, typed):
    assert typed_command(argv) == typed


@pytest.mark.parametrize(
    "command, kept",
    [
        ("WANDB_API_KEY=xyz lab train", "WANDB_API_KEY=<hidden> lab train"),
        ("lab x --api-key 'a b' --tokens 5", "lab x --api-key <hidden> --tokens 5"),
    ],
)
def test_secrets_in_a_command_are_hidden(command, kept):
    assert clean_command(command) == kept


def test_versions_name_what_messages_between_gpus_depend_on(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("NCCL_MAX_CTAS", "")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("NCCL_HOSTID", "somebody's machine")
    cuda = SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9)))
    gpu = SimpleNamespace(__version__="2.11.0", version=SimpleNamespace(cuda="13.0"), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    found = versions()
    assert found["nccl"] == "2.28.9" and found["cuda"] == "13.0" and found["torch"] == "2.11.0"
    assert {name: value for name, value in found.items() if name.startswith("NCCL")} == {"NCCL_NVLS_ENABLE": "0"}
    assert found["PYTORCH_ALLOC_CONF"] == "expandable_segments:True", "what fits depends on it"
