"""The race: what counts as an entry, what it is worth, and that it is the same on every machine."""

import pytest
import torch

import week13_allreduce
from labkit.checks import race as racing
from labkit.checks.runner import Reply
from labkit.checks.tasks import load_week
from labkit.checks.verdict import NOT_ATTEMPTED, PASSED
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Link, Topology
from week13_allreduce import collectives, cost_model
from week13_allreduce.stretch import fastest

WEEK = load_week(week13_allreduce.__path__[0])
RACE = racing.race_of(WEEK)


class Threads:
    """A runner that calls `entry(x, group, wires)` on threads."""

    def __init__(self, entry):
        self.entry = entry

    def run(self, job):
        graph = job.kwargs["graph"]
        links = {name: Link(bandwidth, latency) for name, bandwidth, latency in graph["links"]}
        wires = Topology(graph["size"], links, {(a, b): path for a, b, path in graph["routes"]})
        x = [one.clone() for (one,) in job.inputs]
        ledgers = run_ranks(
            lambda group: self.entry(x[group.rank], group, wires), size=len(x), backend="threads", timeout=60.0
        ).ledgers
        return Reply(PASSED, [None] * len(x), [(one,) for one in x], ledgers)

    def close(self):
        pass


def run(entry, seed=3):
    return racing.run(WEEK, Threads(entry), seed)


@pytest.fixture(scope="module")
def plain():
    return run(lambda x, group, wires: collectives.ring_all_reduce(x, group))


def test_the_plain_ring_is_par(plain):
    assert plain.entered and plain.score == pytest.approx(1.0)
    assert [lap.track for lap in plain.laps] == list(RACE.TRACKS)
    assert RACE.par(Topology.switch(8, 5e-6, 50e9), 1 << 22) == pytest.approx(
        cost_model.ring_all_reduce_cost(8).time(1 << 22, 5e-6, 1 / 50e9), rel=1e-6
    )


def test_the_solution_beats_par_on_every_track_whatever_the_numbers():
    first = run(fastest.fastest_all_reduce)
    assert all(lap.seconds < lap.par for lap in first.laps) and first.score > 2
    assert run(fastest.fastest_all_reduce, seed=4) == first


def broken(name):
    def entry(x, group, wires):
        if name == "library":
            group.all_reduce(x)
        elif name == "bf16":  # half the bytes, nearly the sum
            low = x.to(torch.bfloat16)
            collectives.ring_all_reduce(low, group)
            x.copy_(low)
        elif name == "short":  # right on its own, but the second half stays behind
            collectives.ring_all_reduce(x[: x.numel() // 2], group)
        elif name == "rank 0 differs":
            collectives.ring_all_reduce(x, group)
            x[0] *= 1 + 2.0**-23 * (group.rank == 0)

    return entry


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["library", "nothing", "bf16", "short", "rank 0 differs"])
def test_what_breaks_a_rule_has_no_score(name):
    result = run(broken(name))
    assert result.entered and result.score is None
    assert all(lap.seconds is None and lap.why for lap in result.laps)


def test_too_few_bytes_are_no_sum():
    """Right numbers that were never sent: these ranks share memory, and signal with one number each."""
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def entry(x, group, wires):
        N, r = group.size, group.rank
        kept[x.numel() * 100 + N, r] = x.clone()
        for s in range(1, N):
            group.sendrecv(x[:1].clone(), dst=(r + s) % N, src=(r - s) % N)
        x.copy_(torch.stack([kept[x.numel() * 100 + N, k] for k in range(N)]).sum(0))

    result = run(entry)
    assert result.score is None and all("a sum needs" in lap.why for lap in result.laps)


def test_an_unwritten_entry_does_not_take_part():
    class Blank(Threads):
        def run(self, job):
            return Reply(NOT_ATTEMPTED, text="not attempted yet: Task 13.13: the race")

    result = racing.run(WEEK, Blank(None), 3)
    assert not result.entered and len(result.laps) == 1 and "Task 13.13" in result.laps[0].why


def test_ones_own_table(plain, tmp_path):
    for name in ("ring", "ring", "ring again"):
        racing.keep(tmp_path, WEEK, plain, name)
    lines = racing.kept(tmp_path, WEEK)
    assert [line["name"] for line in lines] == ["ring", "ring again"]
    assert lines[0]["laps"] == {lap.track: lap.seconds for lap in plain.laps}
