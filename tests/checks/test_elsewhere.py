"""Which tensors count as lying on the group's device, on a machine where all lie on the CPU."""

import pytest
import torch

from labkit.checks.elsewhere import Elsewhere
from labkit.comm.ranks import run_ranks

RIGHT = {
    "made there": lambda device: torch.tensor([1.0], device=device),
    "moved there": lambda device: torch.tensor([1.0]).to(device),
    "moved there by name": lambda device: torch.ones(1).to(str(device), torch.float64),
    "moved to what is there": lambda device: torch.ones(1).to(torch.ones(1, device=device)),
    "computed from what is there": lambda device: torch.ones(2, device=device)[:1] * 3 / 2,
    "made like what is there": lambda device: torch.ones(2, device=device).new_full((1,), 3.0),
    "changed in place": lambda device: torch.zeros(1, device=device).copy_(torch.ones(1)),
    "made under the device": lambda device: made_under(device),
}
WRONG = {
    "made anywhere": lambda device: torch.tensor([1.0]),
    "computed from it": lambda device: torch.ones(1).double() / 3,
    "one of two": lambda device: torch.ones(1, device=device) + torch.ones(1),
    "another dtype": lambda device: torch.ones(1).to(torch.float64),
    "moved to another": lambda device: torch.ones(1).to(torch.zeros(1)),
    "before the move": lambda device: [x := torch.ones(1), x.clone().to(device)][0],
}


def made_under(device):
    with torch.device(device):
        return torch.ones(1)


def astray(make):
    def work(group):
        watched = Elsewhere(group)
        with watched:
            watched.all_reduce(make(watched.device))
            watched.barrier()
        assert (watched.rank, watched.size) == (0, 1)
        return watched.astray

    return run_ranks(work, size=1, backend="threads", timeout=60)[0]


@pytest.mark.parametrize("how", [*RIGHT, *WRONG])
def test_what_lies_on_the_groups_device_and_what_elsewhere(how):
    met = ["add"] * (how == "one of two") + ["all_reduce"]
    assert astray({**RIGHT, **WRONG}[how]) == ([] if how in RIGHT else met)
