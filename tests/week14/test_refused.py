"""What nobody can train: each is one sentence, and nothing is left hanging."""

import pytest
import torch
from torch import nn

from labkit.comm.autopsy import RanksFailed
from labkit.comm.ranks import run_ranks
from week14_fsdp import ddp, fsdp, zero
from week14_fsdp.given import experiments
from week14_fsdp.given.tiny import Tiny

WEIGHTS = experiments.weights(3, hidden=7, width=5)
FROZEN = nn.Linear(2, 2)
FROZEN.bias.requires_grad_(False)
MIXED = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2).bfloat16())]

REFUSED = {
    "data parallel, no parameter": (lambda g: ddp.DataParallel(nn.ReLU(), g), "nothing to train"),
    "data parallel, all frozen": (
        lambda g: ddp.DataParallel(nn.Linear(2, 2).requires_grad_(False), g),
        "no parameter that wants a gradient",
    ),
    "ZeRO-1, no parameter": (lambda g: zero.ShardedAdamW([], g), "no parameter to step"),
    "FSDP, no parameter": (lambda g: fsdp.FlatParameter([], g), "this block has none"),
    "FSDP, a frozen one": (lambda g: fsdp.FlatParameter(list(FROZEN.parameters()), g), "frozen parameter"),
    "FSDP, two dtypes": (lambda g: fsdp.FlatParameter(MIXED, g), "one dtype"),
    "FSDP, a parameter of two blocks": (
        lambda g: fsdp.FSDP(model := Tiny(WEIGHTS, g), [model.blocks[0], model.blocks[0]], g),
        "used by another part",
    ),
}


def attempt(group, which):
    try:
        REFUSED[which][0](group)
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("which", REFUSED)
def test_a_sentence_says_why(which):
    for sentence in run_ranks(attempt, which, size=2, backend="threads", timeout=60):
        assert REFUSED[which][1] in sentence and "\n" not in sentence


def test_a_frozen_parameter_is_left_alone_by_data_parallel():
    def job(group):
        module = nn.Linear(2, 2)
        module.bias.requires_grad_(False)
        parallel = ddp.DataParallel(module, group)
        module(torch.ones(1, 2)).sum().backward()
        parallel.finish()
        return module.bias.grad is None and module.weight.grad is not None

    assert all(run_ranks(job, size=2, backend="threads", timeout=60))


def raises_in_the_middle(group):
    """Rank 1's forward raises after block 0, which has run; the next one's gather is under way."""
    model = Tiny(WEIGHTS, group)
    fsdp.FSDP(model, model.blocks, group)
    tokens, targets = experiments.batch(group.rank)
    model(tokens, targets, [0, 99, 2] if group.rank == 1 else None).backward()


def test_one_rank_raises_between_gather_and_free():
    """The others wait for a message that never comes; they are ended, and the error says whose fault it is."""
    # On processes: what ends a thread is an exception that may strike wherever it is, in pytest's own hooks as well.
    with pytest.raises(RanksFailed, match="Rank 1 raised IndexError"):
        run_ranks(raises_in_the_middle, size=3, backend="processes", timeout=600)
