"""A comparison small enough for tests: two micro decoders on two ranks, a few steps, text from this repository."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.compare.preset import Preset, load_preset
from labkit.record.run import RunRecord
from tests import warm

ROOT = Path(__file__).parents[2]

MICRO = f"""
title = "micro"
device = "cpu"
world_size = 2
check = true
[train]
model = {{ vocab_size = 300, d_model = 32, n_layers = 2, n_heads = 2, n_kv_heads = 1, d_ffn = 64, max_seq_len = 32 }}
steps = 8
seq_len = 32
batch_size = 4
lr = 2e-2
eval_every = 2
eval_batches = 1
probe_every = 4
data = {{ source = ["{ROOT / "labkit" / "train"}"], vocab_size = 300, heldout_fraction = 0.2 }}
[arms.bf16]
label = "BF16"
role = "baseline"
train.precision = {{ backend = "bf16" }}
[arms.fp8]
label = "FP8"
role = "candidate"
train.precision = {{ backend = "torchao", recipe = "tensorwise" }}
[arms.broken]
label = "broken"
role = "broken"
train.precision = {{ backend = "broken-unscaled" }}
"""
PAIR = MICRO[: MICRO.index("[arms.broken]")]  # the arms that a speed part needs
ALONE = PAIR.replace("world_size = 2", "world_size = 1")
TIMED = """
startup_seconds = 1
[speed]
arms = ["bf16", "fp8"]
seconds = 0.4
warmup = 3
train = { seq_len = 16 }
[train]
checkpoint_every = 1000"""
SPEED = PAIR.replace("[train]", TIMED, 1)

TINY = """
[train]
model = { vocab_size = 300, d_model = 32, n_layers = 1, n_heads = 2, n_kv_heads = 1, d_ffn = 64, max_seq_len = 32 }
seq_len = 32
batch_size = 4
"""  # what of a training nobody trains: a preset's arms are judged by losses that a test makes up
BASELINE = '[arms.bf16]\nlabel = "BF16"\nrole = "baseline"\n'
BROKEN = '[arms.broken]\nlabel = "broken"\nrole = "broken"\ntrain.precision = { backend = "broken-unscaled" }\n'


def training(folder: Path, losses: dict[int, float], status: str = "finished", **about: Any) -> Path:
    """The record of a training with these losses at its steps, held out as well."""
    record = RunRecord.create(folder, **{"kind": "train", "command": "c", "hardware": {"gpus": []}, **about})
    for step, loss in losses.items():
        record.step(step=step, loss=loss, heldout=loss)
    record.event("note", message="a word")
    if status != "running":
        record.finish(status)
    record.close()
    return folder


def preset(folder: Path, text: str = MICRO) -> Path:
    path = folder / "micro.toml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str, *settings: str) -> Preset:
    return load_preset(str(preset(folder, text)), settings)


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "LABKIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def lab(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """`lab words...` in `folder`, in a process of its own."""
    return warm.run("labkit.cli:main", words, cwd=folder, env=environment(folder))


def lab_here(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """The same in this process, which has imported torch already: a refusal costs milliseconds and not seconds."""
    said, errors, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["lab", *map(str, words)])
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            try:
                main([*map(str, words)])
            except SystemExit as end:
                status = end.code or 0
    return subprocess.CompletedProcess(words, status, said.getvalue(), errors.getvalue())


def start(folder: Path, *words: object, **more: str) -> subprocess.Popen:
    """The same, left running; `more` stands in its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "labkit", *map(str, words)],
        cwd=folder,
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def one_sentence(done: subprocess.CompletedProcess, *shown: str) -> None:
    """A refusal: non-zero exit, one line on stderr that says `shown`, no traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    lines = [line for line in done.stderr.splitlines() if line.startswith("lab: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    for word in shown:
        assert word in lines[0], lines[0]
