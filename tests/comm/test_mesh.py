"""Meshes; FSDP2 on the device mesh, with ranks as processes, in the ledger if asked; threads say why not."""

import pytest
import torch
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.comm.ranks import run_ranks
from labkit.errors import LabError


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(rank):
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(rank))


# -- named dimensions -------------------------------------------------------------------------------------------------
def coordinates(group):
    mesh = Mesh(group, pp=2, dp=3, tp=2)
    shares = mesh.data_share, Mesh(group, dp=6, cp=2).data_share, Mesh(group, tp=12).data_share
    return [(g.name, g.rank, g.ranks) for g in (mesh["pp"], mesh["dp"], mesh["tp"])], shares


def test_the_last_dimension_varies_fastest():
    for r, (names, shares) in enumerate(run_ranks(coordinates, size=12, backend="threads", timeout=60)):
        pp, dp, tp = r // 6, r // 2 % 3, r % 2
        assert names == [
            ("pp", pp, (r % 6, r % 6 + 6)),
            ("dp", dp, tuple(pp * 6 + 2 * d + tp for d in range(3))),
            ("tp", tp, (r - tp, r - tp + 1)),
        ]
        assert shares == ((dp, 3), (r, 12), (0, 1))


def refusals(group):
    texts = []
    for sizes in ({"dp": 3}, {}, {"dp": 0}, {"dp": 2.0}, {"dp": True}):
        with pytest.raises(LabError) as caught:
            Mesh(group, **sizes)
        texts.append(str(caught.value))
    mesh = Mesh(group, dp=1, tp=2)
    with pytest.raises(LabError, match="has the dimensions dp, tp, and not 'pp'"):
        mesh["pp"]
    with pytest.raises(LabError, match="run_ranks.*processes"):
        _ = mesh.device_mesh
    return texts


def test_sizes_that_do_not_fit():
    texts = run_ranks(refusals, size=2, backend="threads", timeout=60)[0]
    assert texts[0] == "a mesh of dp=3 has 3 ranks, and the group has 2" and "no dimension" in texts[1]
    assert all("a whole number, at least 1" in text for text in texts[2:])


# -- what FSDP2 and DTensor send --------------------------------------------------------------------------------------
def shard_and_train(group, ledger):
    """3 steps on 2 ranks (FSDP2) or on 2 x 2 (HSDP: replicated along dp, sharded along tp)."""
    from torch.distributed.fsdp import fully_shard

    device_mesh = Mesh(group, ledger=ledger, dp=2, tp=2).device_mesh if group.size == 4 else group.device_mesh(ledger)
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=device_mesh)
    fully_shard(net, mesh=device_mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(batch(group.rank)).square().mean().backward()  # backward
        optimizer.step()
    before = len(group.ledger.events)
    return [p.full_tensor().detach() for p in net.parameters()], before


def trained_alone(size):
    """The parameters after the same three steps in one process, on the mean over all ranks' batches."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sum(net(batch(r)).square().mean() / size for r in range(size)).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("size", [2, 4])
def test_fsdp2_in_the_ledger(pools, at, size):
    plain, seen = pools(shard_and_train, False, size=size), pools(shard_and_train, True, size=size)
    alone = trained_alone(size)
    for rank in range(size):
        for a, b, want in zip(plain[rank][0], seen[rank][0], alone, strict=True):
            assert torch.equal(a, b)  # the same bits
            torch.testing.assert_close(a, want, rtol=1e-5, atol=1e-6)  # sums in another order
        quiet = [e.kind for e in plain.ledgers[rank].events]
        assert quiet == (["split", "split"] if size == 4 else [])
        ledger, before = seen.ledgers[rank], seen[rank][1]
        events = [e for e in ledger.events[:before] if e.kind not in ("split", "wait")]
        # Two layers, 576 and 272 bytes whole: gathered before forward and before backward, scattered after it; the
        # shards are then averaged over dp.
        step = [("all_gather", n) for n in (576, 272, 272, 576)]
        for n in (272, 576):
            step += [("reduce_scatter", n)] + ([("all_reduce", n // 2)] if size == 4 else [])
        assert [(e.kind, e.bytes) for e in events] == 3 * step
        inside = {"all_reduce": "dp"} if size == 4 else {}
        for e in events:
            assert e.group == inside.get(e.kind, "tp" if size == 4 else "world")
            assert e.dtype == "float32" and e.op == (None if e.kind == "all_gather" else "mean") and e.end is not None
            assert e.where.endswith(at(shard_and_train, "# backward"))
        waits = [e for e in ledger.events if e.kind == "wait"]
        assert {e.of for e in waits} == {e.index for e in ledger.events if e.kind not in ("split", "wait")}


def tensor_parallel(group, ledger):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = Mesh(group, ledger=ledger, dp=1, tp=2)
    net = parallelize_module(model(), mesh.device_mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    y = net(batch(0))
    y.square().mean().backward()
    return y.detach(), [p.grad.full_tensor() for p in net.parameters()]


def test_dtensor_in_the_ledger(pools):
    plain, seen = pools(tensor_parallel, False), pools(tensor_parallel, True)
    (y, grads), (its_y, its_grads) = plain[0], seen[0]
    assert torch.equal(y, its_y) and all(torch.equal(a, b) for a, b in zip(grads, its_grads, strict=True))
    for ledger in seen.ledgers:
        reduced = [e for e in ledger.events if e.kind == "all_reduce"]
        assert [(e.bytes, e.op, e.group) for e in reduced] == [(5 * 4 * 4, "sum", "tp")]  # y: [5, 4] of float32
    assert not [e for e in pools(tensor_parallel, False).ledgers[0].events if e.kind == "all_reduce"]  # and back


def waits_for_nobody(group):
    import torch.distributed as dist

    mesh = group.device_mesh(ledger=True)
    if group.rank == 0:
        dist.all_reduce(torch.ones(3), group=mesh.get_group())  # waits


def test_a_hang_of_torchs_own_call_is_reported(fails, at):
    a = fails(waits_for_nobody, backend="processes", size=2, timeout=60)
    assert a.guilty == 1 and a.certain and a.call.endswith(at(waits_for_nobody, "# waits")), str(a)
    assert [call.kind for call in a.ranks[0].calls] == ["all_reduce"]


def every_call(group):
    import torch.distributed as dist

    g = group.device_mesh(ledger=True).get_group()
    r, other, x = group.rank, 1 - group.rank, torch.arange(4.0)
    got = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(got, x[:2] + r, group=g)
    out = torch.zeros(2)
    dist.reduce_scatter(out, [x[:2], x[2:]], group=g)
    y = x + r
    dist.broadcast(y, 1, group=g)
    dist.barrier(group=g)
    if r == 0:
        dist.send(x, other, group=g)
    else:
        dist.recv(x, other, group=g)
    with dist._coalescing_manager(group=g):
        dist.all_reduce(out, group=g)
        dist.all_reduce(y, group=g)
    objects = [None, None]
    dist.all_gather_object(objects, f"rank {r}", group=g)
    return [t.tolist() for t in got], out.tolist(), y.tolist(), objects


def test_each_of_torchs_calls_is_noted(pools):
    results = pools(every_call)
    for r, found in enumerate(results):
        assert found == ([[0.0, 1.0], [1.0, 2.0]], [4.0, 8.0], [2.0, 4.0, 6.0, 8.0], ["rank 0", "rank 1"])
        events = [e for e in results.ledgers[r].events if e.kind != "wait"]
        assert [(e.kind, e.bytes, e.peer) for e in events][:7] == [
            ("all_gather", 16, None),
            ("reduce_scatter", 16, None),
            ("broadcast", 16, 1),
            ("barrier", 0, None),
            ("send" if r == 0 else "recv", 16, 1 - r),
            ("all_reduce", 8, None),
            ("all_reduce", 16, None),
        ]
        assert events[5].batch == events[6].batch != events[4].batch
