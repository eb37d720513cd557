"""Links, ways and bottlenecks, against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from labkit.comm.topology import Link, Topology
from labkit.errors import LabError

US = 1e-6
GB = 1e9


def test_switch():
    t = Topology.switch(4, alpha=2 * US, bandwidth=1 * GB)
    assert t.path(0, 3) == ("0.up", "3.down") and t.path(2, 2) == ()
    assert t.alpha(0, 3) == pytest.approx(2 * US) and t.bandwidth(0, 3) == GB
    assert t.seconds(0, 3, 4000) == pytest.approx(6 * US)  # 2 us + 4000 B / (1000 B/us)
    assert t.seconds(1, 1, 10**9) == 0.0
    assert len(t.links) == 8  # full duplex: two links for each rank


def test_shared_root_is_one_link_for_everybody():
    t = Topology.shared_root(3, alpha=4 * US, bandwidth=1 * GB, root_bandwidth=0.5 * GB)
    assert all("root" in t.path(a, b) for a, b in itertools.permutations(range(3), 2))
    assert t.alpha(0, 2) == pytest.approx(4 * US) and t.bandwidth(0, 2) == 0.5 * GB
    # Three messages on the root link, each at 0.5 GB/s: a sixth of a GB/s for each.
    assert t.bottleneck([0, 1, 2]).bandwidth == pytest.approx(GB / 6)
    assert t.bottleneck([0, 1, 2]).link == "root"


def two_nodes() -> Topology:
    return Topology.two_level(
        2, 2, inner_alpha=1 * US, inner_bandwidth=1 * GB, outer_alpha=3 * US, outer_bandwidth=0.25 * GB
    )


def test_two_level():
    t = two_nodes()
    assert t.path(0, 1) == ("0.up", "1.down")
    assert t.path(1, 2) == ("1.up", "node0.out", "node1.in", "2.down")
    assert (t.alpha(0, 1), t.alpha(1, 2)) == (pytest.approx(1 * US), pytest.approx(4 * US))
    assert (t.bandwidth(0, 1), t.bandwidth(3, 0)) == (GB, 0.25 * GB)


def test_two_level_ring_order():
    t = two_nodes()
    # 0 1 | 2 3: one edge leaves each node, it has the card for itself.
    good = t.bottleneck([0, 1, 2, 3])
    assert good.bandwidth == pytest.approx(0.25 * GB)
    assert good.link in ("node0.out", "node1.in", "node1.out", "node0.in") and good.edges in (((1, 2),), ((3, 0),))
    # 0 2 1 3: each edge changes the node, two share each card.
    bad = t.bottleneck([0, 2, 1, 3])
    assert bad.bandwidth == pytest.approx(0.125 * GB) and set(bad.edges) == {(0, 2), (1, 3)}


MATRIX = [[0, 50, 25, 10], [50, 0, 10, 25], [25, 10, 0, 50], [10, 25, 50, 0]]  # GB/s: two fast pairs


def test_graph_and_its_best_ring():
    t = Topology.from_bandwidth([[b * GB for b in row] for row in MATRIX], alpha=5 * US)
    assert t.path(1, 3) == ("1->3",) and t.seconds(1, 3, 25_000) == pytest.approx(6 * US)
    # By hand, the three rings of four ranks: 0-1-2-3 has edges 50 10 50 10; 0-1-3-2 has 50 25 50 25; 0-2-1-3 has 25 10
    # 25 10.
    by_hand = {(0, 1, 2, 3): 10, (0, 1, 3, 2): 25, (0, 2, 1, 3): 10}
    for order, gb in by_hand.items():
        assert t.bottleneck(order).bandwidth == pytest.approx(gb * GB)
        assert t.bottleneck(order[::-1]).bandwidth == pytest.approx(gb * GB)  # this matrix is symmetric
    best = max(itertools.permutations(range(4)), key=lambda order: t.bottleneck(order).bandwidth)
    assert t.bottleneck(best).bandwidth == pytest.approx(25 * GB)
    assert t.matrix() == [[b * GB for b in row] for row in MATRIX]


def test_directions_differ():
    t = Topology.from_bandwidth([[0, 8, 1], [1, 0, 8], [8, 1, 0]])
    assert t.bottleneck([0, 1, 2]).bandwidth == 8 and t.bottleneck([2, 1, 0]).bandwidth == 1


def test_a_missing_cable():
    t = Topology.from_bandwidth([[0, 4, 0], [4, 0, 4], [4, 4, 0]])
    assert not t.connected(0, 2) and t.connected(2, 0) and t.matrix()[0][2] == 0.0
    with pytest.raises(LabError, match="no way from rank 0 to rank 2"):
        t.path(0, 2)
    missing = t.bottleneck([1, 0, 2])
    assert missing.bandwidth == 0.0 and missing.edges == ((0, 2),)
    assert t.bottleneck([2, 0, 1]).bandwidth == 4.0


def test_matrix_from_torch():
    import torch

    t = Topology.from_bandwidth(torch.tensor([[0.0, 2.0], [4.0, 0.0]]))
    assert t.bandwidth(0, 1) == 2.0 and t.bandwidth(1, 0) == 4.0


def test_one_rank_has_no_bottleneck():
    t = Topology.switch(1, 0.0, 1.0)
    assert t.bottleneck([0]).bandwidth == math.inf and t.bottleneck([0]).edges == ()


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 2, 3], [1, 2, 3]])
def test_an_order_that_is_none(order):
    with pytest.raises(LabError, match="each of the ranks 0 to 2 once"):
        Topology.switch(3, 0.0, 1.0).bottleneck(order)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Topology.switch(0, 0, 1), "at least 1 rank"),
        (lambda: Topology.switch(2, 0, 0), "bandwidth above 0"),
        (lambda: Topology.switch(2, -1, 1), "latency of at least 0"),
        (lambda: Topology.switch(2, 0, math.nan), "bandwidth above 0"),
        (lambda: Topology.from_bandwidth([[0, 1], [1, 0], [1, 1]]), "square"),
        (lambda: Topology.from_bandwidth([[0, -1], [1, 0]]), "from rank 0 to rank 1 is -1"),
        (lambda: Topology.from_bandwidth([[0, math.inf], [1, 0]]), "finite"),
        (lambda: Topology(2, {}, {(0, 1): ["x"]}), "'x', which does not exist"),
        (lambda: Topology(2, {"x": Link(1)}, {(0, 2): ["x"]}), "leaves the 2 ranks"),
    ],
)
def test_bad_input_is_said(make, words):
    with pytest.raises(LabError, match=words):
        make()
