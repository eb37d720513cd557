"""FSDP2 on the group's device mesh, with ranks as processes; threads say why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit.comm.ranks import run_ranks
from labkit.errors import LabError


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(rank):
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(rank))


def train(group):
    from torch.distributed.fsdp import fully_shard

    mesh = group.device_mesh()
    assert mesh is group.device_mesh() and mesh.size() == group.size
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    local = sum(p.to_local().numel() for p in net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(batch(group.rank)).square().mean().backward()
        optimizer.step()
    full = group.all_reduce(torch.tensor(float(local)))  # the group still works beside it
    return [p.full_tensor().detach() for p in net.parameters()], local, full.item()


def test_fully_shard(helper):
    results = run_ranks(train, size=2, backend="processes", timeout=120)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sum(net(batch(r)).square().mean() / 2 for r in range(2)).backward()
        optimizer.step()
    total = sum(p.numel() for p in net.parameters())
    for parameters, local, summed in results:
        assert local < total and summed == total  # it was really sharded
        for got, want in zip(parameters, net.parameters()):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)  # sums in another order
    assert [e.kind for e in results.ledgers[0].events] == ["all_reduce"]  # what FSDP2 moves is not in the ledger


def test_threads_have_no_mesh():
    def ask(group):
        with pytest.raises(LabError, match="use run_ranks.*processes.*torchrun"):
            group.device_mesh()

    run_ranks(ask, size=2, backend="threads")
