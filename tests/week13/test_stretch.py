"""The stretch solutions on the wire: their costs are what is replayed, and each pays where its docstring says so. That
they are right is what week13_allreduce/test_stretch.py checks."""

import pytest

from labkit.comm.topology import Topology
from week13_allreduce import collectives
from week13_allreduce.given import experiments
from week13_allreduce.stretch import halving_doubling, hierarchical, pipelined, tree

ALPHA, BANDWIDTH = 5e-6, 50e9


@pytest.mark.parametrize("N", [2, 3, 4, 7, 8])
def test_costs_are_what_the_wire_replays(N):
    wire, nbytes = Topology.switch(N, ALPHA, BANDWIDTH), 4 * 840 * N
    pairs = [(tree.tree_all_reduce, tree.tree_all_reduce_cost)]
    if N & (N - 1) == 0:
        pairs.append((halving_doubling.halving_doubling_all_reduce, halving_doubling.halving_doubling_cost))
    for function, cost in pairs:
        time = experiments.on_wire(function, wire, nbytes).time
        assert time == pytest.approx(cost(N).time(nbytes, ALPHA, 1 / BANDWIDTH), rel=1e-9)


def test_two_directions_use_cables_that_one_leaves_dark():
    cables = Topology.from_bandwidth([[25e9] * 4] * 4, alpha=0.0)
    one = experiments.on_wire(collectives.ring_all_reduce, cables, 1 << 24).time
    both = experiments.on_wire(pipelined.pipelined_ring_all_reduce, cables, 1 << 24).time
    assert both == pytest.approx(one / 2, rel=1e-6)


def test_hierarchical_beats_the_flat_ring_between_nodes():
    wire = Topology.two_level(4, 4, inner_alpha=1e-6, inner_bandwidth=400e9, outer_alpha=20e-6, outer_bandwidth=25e9)
    flat = experiments.on_wire(collectives.ring_all_reduce, wire, 1 << 14).time
    two = experiments.on_wire(hierarchical.hierarchical_all_reduce, wire, 1 << 14, per_node=4).time
    assert two < flat
