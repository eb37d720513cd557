"""Whoever reads a freed weight finds out: a check and a notebook outlive it. What is broken here ends a process, so it
runs in ranks that are processes."""

import re
import shutil

import pytest
import torch

from labkit.checks import load_week, run_checks
from labkit.checks.runner import LocalRunner
from labkit.comm.autopsy import RanksFailed
from labkit.comm.ranks import run_ranks
from tests.judged import ROOT
from week14_fsdp import fsdp
from week14_fsdp.given import experiments
from week14_fsdp.given.freed import NoFreedMemory

READS = {
    "sum": lambda w, x: w.sum(),
    "a product with a number": lambda w, x: w * 2,
    "clone": lambda w, x: w.clone(),
    "copy_, out of it": lambda w, x: x.copy_(w),
    "copy_, into it": lambda w, x: w.copy_(x),
    "mm": lambda w, x: x @ w,
}


def freed():
    w = torch.ones(3, 3)
    w.untyped_storage().resize_(0)
    return w


def read_in_backward():
    """Autograd alone holds the weight that is gone when its turn comes."""
    w, x = torch.ones(3, 3).requires_grad_(), torch.ones(3, 3, requires_grad=True)
    y = (x * w).sum()
    w.data.untyped_storage().resize_(0)
    y.backward()


def read_it(group):
    """What each reader reports, by name."""
    sentences, readers = {}, {name: lambda read=read: read(freed(), torch.ones(3, 3)) for name, read in READS.items()}
    for name, read in {**readers, "a backward": read_in_backward}.items():
        sentences[name] = "nothing"
        try:
            with NoFreedMemory():
                read()
        except RuntimeError as error:
            sentences[name] = str(error)
    return sentences


def test_every_reader_is_shown():
    (sentences,) = run_ranks(read_it, size=1, timeout=60)
    assert len(sentences) == len(READS) + 1
    for name, sentence in sentences.items():
        assert re.search(r"reads a weight of shape \[3, 3\] whose memory is freed", sentence), (name, sentence)


def in_the_notebook(group):
    """As a notebook's cell runs it: ranks on threads, of this process."""
    try:
        experiments.sawtooth(lambda model, group: Early(model, model.blocks, group), blocks=3)
    except RanksFailed as failed:
        return str(failed)
    return "nothing"


class Early(fsdp.FSDP):
    """Frees a block's memory when its backward begins, and leaves the parameters looking there."""

    def before_backward(self, i: int) -> None:
        super().before_backward(i)
        self.blocks[i].full.untyped_storage().resize_(0)


def test_a_notebooks_kernel_outlives_it():
    (said,) = run_ranks(in_the_notebook, size=1, timeout=120)
    assert "memory is freed" in said


@pytest.mark.thorough
def test_a_check_tells_it(tmp_path):
    """The recomputation under checkpointing frees what the backward is about to use."""
    week = load_week(ROOT / "week14_fsdp")
    shutil.copytree(week.folder, tmp_path / week.package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    path = tmp_path / week.package / "fsdp.py"
    before, right = "if not self.backward and i + 1 <", path.read_text()
    assert right.count(before) == 1
    path.write_text(right.replace(before, "if i + 1 <"))
    with LocalRunner(tmp_path) as runner:
        outcome = run_checks(["14.4"], weeks=[week], runner=runner, seed=5, deadline=60.0)
    failed = [case for case in outcome.cases if case.verdict != "passed"]
    assert failed and all("SIG" not in case.text for case in failed)
    assert any("memory is freed" in case.text for case in failed), [case.text for case in failed]
