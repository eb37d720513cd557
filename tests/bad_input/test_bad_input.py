"""Bad input gets one clear sentence and a non-zero exit, and nothing is lost. Each test is what a user would type."""

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from labkit.compare import bundle, scaling
from labkit.compare.budget import Budget
from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.record import packed
from labkit.record.read import read_run
from tests.compare.comparing import ALONE, MICRO, environment, lab, lab_here, one_sentence, preset


@pytest.mark.parametrize(
    "change, words",
    [
        (("steps = 8", "stepps = 8"), ("stepps", "did you mean 'steps'")),
        (("steps = 8", 'steps = "eight"'), ("steps", "whole number")),
        (("batch_size = 4", "batch_size = 3"), ("batch_size 3", "2 ranks")),
        (("d_ffn = 64", "d_ffn = 72"), ("multiples of 16", "layers.0.ffn.w1 (32 -> 72)")),
        (('backend = "torchao"', 'backend = "torchoa"'), ("torchoa", "did you mean 'torchao'")),
        (('recipe = "tensorwise"', 'recipe = "tensorwide"'), ("tensorwide", "did you mean 'tensorwise'")),
        (('recipe = "tensorwise"', 'recipe = "tensorwise", amax_epsilon = 1e-9'), ("no amax_epsilon to choose",)),
        (("steps = 8", "steps = 8\nrecovery.rollback_after = 3"), ("rollback_after", "checkpoint_every = 0")),
        (("steps = 8", 'steps = 8\nmixed_precision = "fp8"'), ("mixed_precision", "leave it out")),
        (('role = "baseline"', 'role = "candidate"'), ("exactly one arm", "baseline")),
        (('title = "micro"', 'title = "micro'), ("not valid TOML",)),
    ],
)
def test_preset_with_a_mistake(tmp_path, change, words):
    assert change[0] in MICRO
    # --arms fp8 asks for the arm by name, so that what it cannot do is an error and not a skipped arm
    arms = ("--arms", "bf16,fp8") if "baseline" not in change[0] and "title" not in change[0] else ()
    toml = preset(tmp_path, MICRO.replace(*change))
    one_sentence(lab_here(tmp_path, "compare", "--preset", toml, "--out", "out", *arms), *words)
    assert not (tmp_path / "out").exists(), "refused before anything started"


def test_a_mistake_as_a_process_of_its_own(tmp_path):
    """What the others do in this process is what the shell gets."""
    toml = preset(tmp_path, MICRO.replace("steps = 8", "stepps = 8"))
    done = lab(tmp_path, "compare", "--preset", toml, "--out", "out")
    one_sentence(done, "stepps", "did you mean 'steps'")
    assert done.stderr.count("\n") == 1 and not done.stdout and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "typed, words",
    [
        (("--preset", "cpu-tniy"), ("cpu-tniy", "cpu-tiny")),
        (("--preset", "nowhere.toml"), ("nowhere.toml",)),
        (("--preset", "cpu-tiny", "--arms", "bf61"), ("bf61", "bf16")),
        (("--preset", "cpu-tiny", "--set", "train.steps"), ("KEY=VALUE",)),
        (("--preset", "cpu-tiny", "--part", "both"), ("speed or safety", "both")),
        (("--preset", "cpu-tiny", "--part", "speed"), ("cpu-tiny", "no [speed]")),
        (("--preset", "cpu-tiny", "--budget-minutes", "-1"), ("--budget-minutes", "above 0")),
        (("--preset", "gpu-check"), ("CUDA", "lab doctor")),
    ],
)
def test_command_line_with_a_mistake(tmp_path, typed, words):
    import torch

    if "gpu-check" in typed and torch.cuda.is_available():
        typed = ("--preset", "gpu-check", "--set", "world_size=4096")
        words = ("4096",)
    one_sentence(lab_here(tmp_path, "compare", *typed), *words)
    assert not list(tmp_path.iterdir()), "refused before anything started"


MOE = dict(vocab_size=64, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_ffn=32, max_seq_len=32)


@pytest.mark.parametrize(
    "call",
    [
        *(partial(Budget, **given) for given in ({"minutes": 0}, {"price": 0}, {"price": float("nan")})),
        *(partial(scaling.parse, counts) for counts in ("1,two", "0,1", "")),
        *(partial(ModelConfig, **MOE, experts=e, topk=k) for e, k in ((1, 1), (4, 0), (4, 5), (0, 2))),
        partial(ModelConfig, **MOE, experts=4, topk=2, balance=-0.1),
        partial(bundle.pack, Path("nowhere")),
        partial(packed.pack, Path("nowhere")),
    ],
)
def test_what_means_nothing_is_refused(call):
    with pytest.raises(LabError):
        call()


def test_a_missing_backend_is_reported_before_anything_starts(tmp_path):
    """Transformer Engine without a GPU or without its package: why, in words, whatever its import raised."""
    wanting = MICRO.replace('backend = "torchao", recipe = "tensorwise"', 'backend = "te", recipe = "delayed"')
    toml = preset(tmp_path, wanting)
    refused = lab_here(tmp_path, "compare", "--preset", toml, "--out", "out", "--arms", "bf16,fp8")
    one_sentence(refused, "fp8", "cannot run")
    assert not (tmp_path / "out").exists()


def test_a_missing_backend_skips_its_arm_where_it_was_not_asked_for_by_name(tmp_path):
    wanting = ALONE.replace('backend = "torchao", recipe = "tensorwise"', 'backend = "te", recipe = "delayed"')
    toml = preset(tmp_path, wanting)
    done = lab_here(tmp_path, "compare", "--preset", toml, "--out", "out", "--set", "train.steps=2")
    arms = read_run(tmp_path / "out").run["results"]["arms"]
    assert (arms["fp8"]["status"], arms["bf16"]["status"]) == ("skipped", "finished"), done.stdout


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    one_sentence(lab_here(tmp_path, "compare", "--preset", preset(tmp_path), "--out", "out"), "no run")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"
    one_sentence(lab_here(tmp_path, "report", "out"), "out")


@pytest.mark.thorough
def test_full_disk_is_one_sentence_and_keeps_what_was_recorded(tmp_path):
    """A limit on the size of a file stands for a full disk: writing beyond it fails in the same place."""
    long = preset(tmp_path, ALONE.replace("steps = 8", "steps = 400").replace("probe_every = 4", "probe_every = 1"))
    warm = lab_here(tmp_path, "compare", "--preset", long, "--out", "warm", "--arms", "bf16", "--set", "train.steps=1")
    assert read_run(tmp_path / "warm").arms["bf16"].steps, warm.stderr  # the corpus is in the cache now
    limit = 60_000
    words = ["compare", "--preset", str(long), "--out", "out", "--arms", "bf16"]
    done = subprocess.run(
        [sys.executable, "-m", "labkit", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode not in (0, -25), (done.returncode, done.stderr)
    said = " ".join((done.stdout + done.stderr).split())
    assert "disk is full" in said and "Traceback" not in said, said[-2000:]
    arm = read_run(tmp_path / "out").arms["bf16"]
    assert arm.truncated == 0 and len(arm.steps) >= 3
    assert [line["step"] for line in arm.steps] == list(range(1, len(arm.steps) + 1))
