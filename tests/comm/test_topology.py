"""Links and ways, against numbers worked out by hand."""

import math

import pytest
import torch

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


def test_two_level():
    inner, outer = {"inner_alpha": US, "inner_bandwidth": GB}, {"outer_alpha": 3 * US, "outer_bandwidth": 0.25 * GB}
    t = Topology.two_level(2, 2, **inner, **outer)
    assert t.path(0, 1) == ("0.up", "1.down")
    assert t.path(1, 2) == ("1.up", "node0.out", "node1.in", "2.down")
    assert (t.alpha(0, 1), t.alpha(1, 2)) == (pytest.approx(1 * US), pytest.approx(4 * US))
    assert (t.bandwidth(0, 1), t.bandwidth(3, 0)) == (GB, 0.25 * GB)


MATRIX = [[0, 50, 25, 10], [50, 0, 10, 25], [25, 10, 0, 50], [10, 25, 50, 0]]  # GB/s: two fast pairs


def test_a_graph():
    t = Topology.from_bandwidth([[b * GB for b in row] for row in MATRIX], alpha=5 * US)
    assert t.path(1, 3) == ("1->3",) and t.seconds(1, 3, 25_000) == pytest.approx(6 * US)
    assert [[t.bandwidth(a, b) if a != b else 0 for b in range(4)] for a in range(4)] == [
        [b * GB for b in row] for row in MATRIX
    ]


def test_a_missing_cable_in_a_tensor():
    t = Topology.from_bandwidth(torch.tensor([[0, 4, 0], [2, 0, 4], [4, 4, 0]]))
    assert not t.connected(0, 2) and t.connected(2, 0) and (t.bandwidth(0, 1), t.bandwidth(1, 0)) == (4.0, 2.0)
    with pytest.raises(LabError, match="no way from rank 0 to rank 2"):
        t.path(0, 2)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Topology.switch(0, 0, 1), "at least 1 rank"),
        (lambda: Topology.switch(2, 0, 0), "bandwidth above 0"),
        (lambda: Topology.switch(2, -1, 1), "latency of at least 0"),
        (lambda: Topology.switch(2, 0, math.nan), "bandwidth above 0"),
        (lambda: Topology.from_bandwidth([[0, 1], [1, 0], [1, 1]]), "square"),
        (lambda: Topology.from_bandwidth([[0, -1], [1, 0]]), "0->1 needs a bandwidth above 0"),
        (lambda: Topology.from_bandwidth([[0, math.inf], [1, 0]]), "0->1 needs a bandwidth above 0"),
        (lambda: Topology(2, {}, {(0, 1): ["x"]}), "'x', which does not exist"),
        (lambda: Topology(2, {"x": Link(1)}, {(0, 2): ["x"]}), "leaves the 2 ranks"),
    ],
)
def test_bad_input_is_said(make, words):
    with pytest.raises(LabError, match=words):
        make()
