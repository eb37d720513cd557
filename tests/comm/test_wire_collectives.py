"""Collectives and spans of computing on the virtual wire, against formulas. Times in us, on a switch with alpha = 2 us
and 1000 bytes per us, exact to a billionth."""

import json

import pytest
import torch

from labkit.comm.ledger import GroupId, Ledger
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Span, replay
from tests.comm.programs import US, programs, refused, switch

ALPHA, BETA = 2.0, 1e-3  # us, us a byte


def exactly(us):
    return pytest.approx(us * US, rel=1e-9)


def piece(n, N):
    """One step of a ring over N ranks with n bytes."""
    return ALPHA + -(-n // N) * BETA


COST = {
    "all_reduce": lambda n, N: 2 * (N - 1) * piece(n, N),
    "all_gather": lambda n, N: (N - 1) * piece(n, N),
    "reduce_scatter": lambda n, N: (N - 1) * piece(n, N),
    "broadcast": lambda n, N: 2 * (N - 1) * piece(n, N),
    "barrier": lambda n, N: 0.0,
}


@pytest.mark.parametrize("N", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", COST)
@pytest.mark.parametrize("n", [0, 84_000, 10_001])
def test_the_stated_cost_is_exact(kind, N, n):
    for src in range(N) if kind == "broadcast" else [None]:
        more = {"peer": src} if kind == "broadcast" else {}
        result = replay(programs(*[[(kind, n, dict(more))]] * N), switch(N))
        assert result.time == exactly(COST[kind](n, N))
        assert all(t.kind == kind and t.group == "world" for t in result.transfers)
        sent = {"all_reduce": 2 * N * (N - 1), "broadcast": N * (N - 1), "barrier": 0}.get(kind, N * (N - 1))
        assert sum(t.bytes for t in result.transfers) == sent * -(-n // N)


def job(group):
    tp = group.split([[0, 1], [2, 3]], "tp")
    tp.all_gather(torch.zeros(1000))
    group.reduce_scatter(torch.zeros(4000))
    tp.broadcast(torch.zeros(500), src=1)
    group.barrier()


def test_a_real_run_replays_on_the_ranks_of_its_groups():
    ledgers = run_ranks(job, size=4, backend="threads", timeout=30).ledgers
    result = replay([Ledger.from_json(json.dumps(ledger.to_json())) for ledger in ledgers], switch(4))
    want = COST["all_gather"](8000, 2) + COST["reduce_scatter"](16_000, 4) + COST["broadcast"](2000, 2)
    assert result.time == exactly(want)
    inside = {(t.src, t.dst) for t in result.transfers if t.group == "tp"}
    assert inside == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert {t.src for t in result.transfers if t.kind == "broadcast"} == {1, 3}  # src=1 of each part


# ---- computing


def test_a_span_takes_what_it_says():
    result = replay(programs([("compute", 5, {"label": "forward"}), ("barrier", 0)], [("barrier", 0)]), switch(2))
    assert result.time == exactly(5) and result.spans == (Span(0, "forward", 0.0, 5e-6),)


def backward(overlap, layers=3, compute=10.0, n=4000):
    """Compute a layer's gradients, then reduce them: at once, or beside the next layer's computing."""
    steps = []
    for layer in range(layers):
        steps.append(("compute", compute, {"label": f"layer {layer}"}))
        steps.append(("all_reduce", n, {"name": layer}) if overlap else ("all_reduce", n))
    return steps + ([("wait", layer) for layer in range(layers)] if overlap else [])


@pytest.mark.parametrize("compute, n", [(10.0, 4000), (30.0, 4000), (8.0, 4000), (1.0, 4000)])
def test_overlap_saves_what_theory_says(compute, n):
    N, layers = 4, 3
    step = COST["all_reduce"](n, N)  # 18 us
    alone = replay(programs(*[backward(False, layers, compute, n)] * N), switch(N))
    beside = replay(programs(*[backward(True, layers, compute, n)] * N), switch(N))
    assert alone.time == exactly(layers * (compute + step))
    # A pipeline of two stages: the slower one runs all the time, the other only once more.
    assert beside.time == exactly(compute + step + (layers - 1) * max(compute, step))
    assert alone.time - beside.time == exactly((layers - 1) * min(compute, step))
    assert [s.label for s in beside.spans if s.rank == 0] == ["layer 0", "layer 1", "layer 2"]


def test_a_wait_ends_when_its_own_collective_does():
    # Two of 18 us, posted at once: the first is complete at 18, the second at 36; the span between the waits fits in.
    steps = [("all_reduce", 4000, {"name": "a"}), ("all_reduce", 4000, {"name": "b"}), ("wait", "a"), ("compute", 5)]
    result = replay(programs(*[[*steps, ("wait", "b")]] * 4), switch(4))
    assert [span.begin for span in result.spans] == [exactly(18)] * 4 and result.time == exactly(36)


def test_the_collectives_of_two_groups_run_side_by_side():
    # On cables of their own between all pairs: rows and columns do not share a link.
    rows, columns = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    groups = [GroupId("tp", row) for row in rows] + [GroupId("dp", column) for column in columns]
    cables = Topology.from_bandwidth([[1e9] * 4] * 4, alpha=ALPHA * US)
    both = [("all_reduce", 4000, {"name": 1, "group": "tp"}), ("all_reduce", 8000, {"group": "dp"}), ("wait", 1)]
    assert replay(programs(*[both] * 4, groups=groups), cables).time == exactly(COST["all_reduce"](8000, 2))
    # On the switch the two groups share each rank's link up: their messages take turns, in pairs.
    shared = replay(programs(*[both] * 4, groups=groups), switch(4)).time
    assert shared == exactly(COST["all_reduce"](4000, 2) + COST["all_reduce"](8000, 2))


def test_messages_of_a_collective_do_not_meet_those_beside_it():
    def program(rank):
        return [("isend", 1 - rank, 500, "s"), ("all_reduce", 4000), ("recv", 1 - rank, 500), ("wait", "s")]

    result = replay(programs(program(0), program(1)), switch(2))
    assert sorted(t.bytes for t in result.transfers if t.kind == "send") == [500, 500]
    assert sorted(t.bytes for t in result.transfers if t.kind == "all_reduce") == [2000] * 4


def test_a_late_rank_delays_its_group_and_nobody_else():
    groups = [GroupId("tp", (0, 1)), GroupId("tp", (2, 3))]
    reduce = ("all_reduce", 2000, {"group": "tp"})
    result = replay(programs([("compute", 7), reduce], [reduce], [reduce], [reduce], groups=groups), switch(4))
    one = COST["all_reduce"](2000, 2)
    assert list(result.ranks) == [exactly(7 + one), exactly(7 + one), exactly(one), exactly(one)]


# ---- what cannot be replayed


def test_the_group_that_is_not_complete_is_named():
    text = refused(programs([("all_reduce", 8, {"group": "tp"})], [], [], groups=[GroupId("tp", (0, 1))]))
    assert 'all_reduce in group "tp" (ranks 0 and 1) (rank0.py:1)' in text and "rank 1 is not there" in text


def test_spans_that_cannot_be_replayed():
    ledger = Ledger(0, 1, start=0.0)
    span = ledger.begin("compute", blocking=False, label="x")
    assert "span 'x' () has no end" in refused([ledger])
    ledger.finish(ledger.begin("barrier"))
    ledger.finish(span)
    assert "calls barrier () inside its span of computing 'x'" in refused([ledger])


def measured(group):
    with group.compute("measured"):
        torch.ones(100).sum()
    group.compute("stated", seconds=2e-3)
    group.barrier()


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_spans_of_a_real_run(backend):
    ledgers = run_ranks(measured, size=2, backend=backend, timeout=60).ledgers
    first, second, barrier = ledgers[1].events
    assert (first.kind, first.label, first.seconds, first.seq) == ("compute", "measured", None, 0)
    assert (second.label, second.seconds) == ("stated", 2e-3) and first.end > first.begin and barrier.seq == 0
    assert first.where.endswith(".py:" + first.where.rpartition(":")[2])
    result = replay(ledgers, switch(2))
    assert result.time == pytest.approx(2e-3 + max(e.events[0].end - e.events[0].begin for e in ledgers))
