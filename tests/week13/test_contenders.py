"""How the benchmark times a GPU, on a simulated one: who waits for whom, what a hiccup does. The ring's variants."""

import types

import pytest
import torch

from labkit.comm.ranks import run_ranks
from week13_allreduce.given import contenders


class Machine:
    """A CPU that queues and a GPU that works through its queue, on a clock of their own (seconds)."""

    def __init__(self, monkeypatch, queue, work, hiccup_at=None):
        self.cpu = self.gpu = 0.0
        self.queue, self.work, self.hiccup_at, self.calls, self.pool = queue, work, hiccup_at, 0, 0
        self.ends = []  # of calls: when the GPU is done with each
        machine = self

        class Stopwatch:
            def __init__(self, device):
                pass

            def start(self):
                self.begin = max(machine.gpu, machine.cpu)

            def lap(self):
                machine.cpu = end = max(machine.gpu, machine.cpu)
                return end - self.begin

        monkeypatch.setattr(contenders, "Stopwatch", Stopwatch)
        monkeypatch.setattr(contenders, "time", types.SimpleNamespace(perf_counter=lambda: self.cpu))
        monkeypatch.setattr(contenders, "_mallocs", lambda device: self.pool)
        monkeypatch.setattr(torch.cuda, "_sleep", self.hold)
        tensor = torch.tensor
        monkeypatch.setattr(torch, "tensor", lambda *args, device=None, **more: tensor(*args, **more))
        self.group = types.SimpleNamespace(
            size=4, device=torch.device("cuda", 0), barrier=self.barrier, all_reduce=lambda value, op: value
        )

    def hold(self, cycles):
        self.gpu = max(self.gpu, self.cpu) + cycles / contenders.CYCLES

    def barrier(self):
        self.cpu = self.gpu = max(self.cpu, self.gpu)

    def run(self):
        self.calls += 1
        self.cpu += self.queue + (10e-3 if self.calls == self.hiccup_at else 0)
        self.ends = [end for end in self.ends if end > self.cpu]
        if len(self.ends) + 1 > self.pool:  # nobody's memory is free yet: the pool must grow
            self.pool += 1
        self.gpu = max(self.gpu, self.cpu) + self.work
        self.ends.append(self.gpu)

    def timed(self, budget=0.3):
        return contenders.timed(self.run, lambda: None, self.group, budget)


def test_seconds_are_what_a_caller_gets_and_the_longer_of_queueing_and_working(monkeypatch):
    row = Machine(monkeypatch, queue=100e-6, work=10e-6).timed()
    # The untimed call gives the GPU a small lead, which is spread over the loop.
    assert row["seconds"] == pytest.approx(100e-6, rel=0.1) and row["queue"] == pytest.approx(100e-6)
    assert row["gpu"] == pytest.approx(10e-6) and row["iterations"] == 20
    row = Machine(monkeypatch, queue=50e-6, work=1e-3).timed()
    assert row["seconds"] == row["gpu"] == pytest.approx(1e-3) and row["queue"] == pytest.approx(50e-6)


@pytest.mark.parametrize("at", [30, 60, 100])
def test_one_hiccup_moves_nothing(monkeypatch, at):
    row = Machine(monkeypatch, queue=30e-6, work=40e-6, hiccup_at=at).timed()
    assert row["seconds"] == pytest.approx(40e-6, rel=1e-6)


@pytest.mark.parametrize("queue, work, hiccup_at", [(100e-6, 10e-6, None), (50e-6, 20e-3, None), (100e-6, 150e-6, 15)])
def test_the_pool_has_grown_before_anything_is_timed(monkeypatch, queue, work, hiccup_at):
    """Also where the CPU was late in the loop that is thrown away, and so had fewer calls in flight there."""
    assert Machine(monkeypatch, queue, work, hiccup_at).timed()["mallocs"] == 0


def test_long_calls_are_few(monkeypatch):
    machine = Machine(monkeypatch, queue=50e-6, work=80e-3)
    row = machine.timed(0.1)
    assert row["iterations"] == 2 and machine.pool <= 4


@pytest.mark.parametrize("name", ["sliced", "two_way", "pipelined"])
def test_every_variant_of_the_ring_is_right(name):
    function = contenders.load(contenders.CONTENDERS["all_reduce"][name].path)

    def job(group):
        x = torch.arange(103.0) + group.rank
        assert function(x, group, "sum") is x
        return x, {event.peer for event in group.ledger.events if event.kind == "send"}

    results = run_ranks(job, size=4, backend="threads")
    for rank, (x, peers) in enumerate(results):
        assert torch.equal(x, 4 * torch.arange(103.0) + 6)
        assert peers == ({(rank + 1) % 4} if name == "sliced" else {(rank + 1) % 4, (rank - 1) % 4})
