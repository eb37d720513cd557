"""The meter of storages, against sizes that are known."""

import sys

import torch

from labkit.comm.ranks import run_ranks
from week14_fsdp.given.freed import NoFreedMemory
from week14_fsdp.given.meter import StorageMeter, owned
from week14_fsdp.scenarios import Watch

KIB = 1024


def test_it_counts_what_is_alive_and_nothing_twice():
    with StorageMeter() as meter:
        a = torch.zeros(KIB)  # 4 KiB
        view = a.view(2, -1)
        b = a + 1
        assert meter.held() == 8 * KIB
        del b
        assert meter.held() == 4 * KIB and view.numel() == KIB
    assert meter.peak == 8 * KIB


def test_a_storage_that_shrinks_in_place():
    with StorageMeter() as meter:
        a = torch.zeros(KIB)
        a.untyped_storage().resize_(0)
        assert meter.held() == 0
        a.untyped_storage().resize_(4 * KIB)
        assert meter.held() == 4 * KIB


def test_what_autograd_alone_holds_is_counted():
    """No Python object refers to what exp keeps for the backward."""
    w = torch.randn(64, 64, requires_grad=True)
    with StorageMeter(without=[w]) as meter:
        y = (w * 2).exp().sum()
        assert 64 * 64 * 4 <= meter.held() < 2 * 64 * 64 * 4
        y.backward()
        del y
        assert meter.held() == 64 * 64 * 4, "w's gradient stays"


class Keeps:
    def __init__(self, weight):
        self.weight, self.parts = weight, {weight: [torch.zeros(10)[:2], (torch.zeros(5),)]}
        self.again = self.parts


def test_what_an_object_owns():
    weight = torch.zeros(100)
    assert owned(Keeps(weight)).storages == 4 * (100 + 10 + 5), "a view owns all of its storage; nothing counts twice"
    assert owned(Keeps(weight), without=[weight[:3]]) == (4 * (10 + 5), 4 * (2 + 5)), "and uses its own part of it"


def imported_under_the_meter(group):
    before = set(sys.modules)
    with StorageMeter(), Watch([], []), NoFreedMemory():
        (torch.ones(3, requires_grad=True) * 2).sum().backward()
    return sorted(name for name in set(sys.modules) - before if name.startswith("torch._dynamo"))


def test_a_meter_does_not_load_the_compiler():
    """Torch wraps a dispatch mode for it by default: 800 modules, in every rank of every case of 14.4."""
    assert run_ranks(imported_under_the_meter, size=1, timeout=60)[0] == []


def held_by_one_of(group):
    """The peak of a rank whose collectives carry 4 KiB, and whose neighbours' do, too."""
    x = torch.ones(group.size, KIB)
    out = torch.empty(1, KIB)
    with StorageMeter() as meter:
        for _ in range(5):
            group.reduce_scatter(x, out=out, async_op=True).wait()
            group.all_gather(out, out=x, async_op=True).wait()
        torch.zeros(1)
    return meter.peak


def test_ranks_on_threads_do_not_see_one_another():
    """The last rank to come computes a collective for all: its meter must not count the others' tensors."""
    for _ in range(5):
        for peak in run_ranks(held_by_one_of, size=4, backend="threads", timeout=60):
            assert peak <= 4 * (4 + 1) * KIB + 64, "its own input and result, and a number"
