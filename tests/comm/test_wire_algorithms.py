"""The virtual wire against alpha-beta theory: all-reduce algorithms run by real ranks, replayed on a switch, on one
shared root link, on two levels. Times are in us and worked out in the comments, never by the code under test.

The wires: alpha us for a message, 1000 bytes per us (beta = 0.001 us per byte), unless said otherwise.
"""

import pytest
import torch

from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Replay, replay
from tests.comm.programs import US, switch

# ---- the algorithms, on real tensors


def naive(group, x):
    """Everyone sends to rank 0, which adds and sends back: one message after the other."""
    if group.rank:
        group.send(x, dst=0)
        x.copy_(group.recv(0, like=x))
    else:
        for r in range(1, group.size):
            x += group.recv(r, like=x)
        for r in range(1, group.size):
            group.send(x, dst=r)
    return x


def ring(group, x, order=None):
    """Reduce-scatter, then all-gather, around the ring `order`."""
    n, order = group.size, list(order or range(group.size))
    r = order.index(group.rank)
    right, left, chunk = order[(r + 1) % n], order[(r - 1) % n], x.tensor_split(n)
    for s in range(n - 1):
        mine = chunk[(r - s - 2) % n]
        mine += group.sendrecv(chunk[(r - s - 1) % n], dst=right, src=left, like=mine)
    for s in range(n - 1):
        mine = chunk[(r - s - 1) % n]
        mine.copy_(group.sendrecv(chunk[(r - s) % n], dst=right, src=left, like=mine))
    return x


def binary_tree(group, x):
    """Rank r's children are 2r+1 and 2r+2: add up to the root, then send down."""
    r, n = group.rank, group.size
    children = [child for child in (2 * r + 1, 2 * r + 2) if child < n]
    for child in children:
        x += group.recv(child, like=x)
    if r:
        group.send(x, dst=(r - 1) // 2)
        x.copy_(group.recv((r - 1) // 2, like=x))
    for child in children:
        group.send(x, dst=child)
    return x


def run(algorithm, size: int, n_bytes: int, topology: Topology, *args) -> Replay:
    """Run it on ranks, see that it does reduce, and replay its ledgers. `n_bytes` of float32."""

    def rank(group):
        return algorithm(group, torch.full((n_bytes // 4,), float(group.rank + 1)), *args)

    results = run_ranks(rank, size=size, backend="threads", timeout=30)
    total = size * (size + 1) // 2  # 1 + 2 + ... + size, exact in float32
    assert all(torch.equal(x, torch.full((n_bytes // 4,), float(total))) for x in results)
    return replay(results.ledgers, topology)


def us(result: Replay):
    return pytest.approx(result.time / US, rel=1e-9)  # the wire rounds to attoseconds, the rest is float division


# ---- on a switch


def test_naive_on_a_switch():
    # 4 ranks, 4000 bytes: one message takes 2 + 4 = 6. Three into rank 0 one by one, three back: 6 x 6.
    result = run(naive, 4, 4000, switch(4, 2))
    assert us(result) == 36
    # Rank 0's two links do all the work, half the time each; rank 1's link up carries one message of the six.
    assert result.links["0.down"].utilisation == pytest.approx(0.5) and result.busiest() in ("0.down", "0.up")
    assert result.links["1.up"].utilisation == pytest.approx(1 / 6)
    assert [t.src for t in result.transfers] == [1, 2, 3, 0, 0, 0]
    # Rank 3 has something on the wire for 12 of its 36.
    assert result.waiting[3] == pytest.approx(24 * US) and result.waiting[0] == 0.0


def test_ring_on_a_switch():
    # Chunks of 1000 bytes: 2 + 1 = 3 a step, 2 x 3 steps, everybody at once.
    result = run(ring, 4, 4000, switch(4, 2))
    assert us(result) == 18
    assert all(use.utilisation == pytest.approx(1.0) for use in result.links.values())
    assert result.waiting == (0.0,) * 4 and len(result.transfers) == 24
    assert result.bytes == 2 * 3 * 4000  # 2 (N-1)/N n from each of N ranks


def test_binary_tree_on_a_switch():
    # 7 ranks: 0 over 1 and 2 over 3 4 5 6. Message: 2 + 4 = 6.
    # Up: 3 -> 1 and 5 -> 2 until 6; 4 -> 1 and 6 -> 2 until 12; 1 -> 0 until 18; 2 -> 0 until 24.
    # Down: 0 -> 1 until 30; 0 -> 2 and 1 -> 3 until 36; 1 -> 4 and 2 -> 5 until 42; 2 -> 6 until 48.
    result = run(binary_tree, 7, 4000, switch(7, 2))
    assert us(result) == 48
    assert [pytest.approx(end / US) for end in result.ranks] == [36, 42, 48, 36, 42, 42, 48]


def test_short_and_ragged_vectors_on_a_ring():
    # 12 bytes on 4 ranks: chunks of 4 4 4 0 bytes. A step with 4 bytes takes 2.004, one with none 2. In step s only the
    # edge s -> s+1 carries the empty chunk, and a rank is as slow as the slower of its two edges: all six steps take
    # 2.004.
    assert us(run(ring, 4, 12, switch(4, 2))) == 12.024
    assert us(run(ring, 1, 12, switch(1, 2))) == 0


# ---- one shared root link: the ring's simultaneous messages queue up


@pytest.mark.parametrize(
    "n_bytes, t_naive, t_ring",
    [
        (4_000, 36, 72),  # naive 6 (2 + 4); ring 24 messages, one after the other: 24 (2 + 1)
        (400_000, 2412, 2448),  # naive 6 (2 + 400); ring 24 (2 + 100): the same bytes cross, with 18 latencies more
    ],
)
def test_a_shared_root_link_takes_the_rings_advantage(n_bytes, t_naive, t_ring):
    # The root link is never idle: while any step-s message is missing, one of them is ready.
    topology = Topology.shared_root(4, 2 * US, 1e9)
    slow = run(naive, 4, n_bytes, topology)
    fast = run(ring, 4, n_bytes, topology)
    assert us(slow) == t_naive and us(fast) == t_ring
    assert slow.links["root"].utilisation == pytest.approx(1.0) and fast.links["root"].utilisation == pytest.approx(1.0)
    assert fast.busiest() == "root"


# ---- two levels: 2 nodes of 2 ranks; inside 1 us and 1000 bytes/us, across 1 + 3 us and 250 bytes/us

TWO = Topology.two_level(2, 2, inner_alpha=1 * US, inner_bandwidth=1e9, outer_alpha=3 * US, outer_bandwidth=0.25e9)


def test_tree_on_two_levels():
    # 0 over 1 and 2, 1 over 3. Up: 3 -> 1 until 20; 1 -> 0 until 25; 2 -> 0 until 45. Down: 0 -> 1 until 50; then 0 ->
    # 2 and 1 -> 3 both need node 0's card: 0 -> 2 until 70, 1 -> 3 until 90.
    result = run(binary_tree, 4, 4000, TWO)
    assert us(result) == 90
    assert [(t.src, t.dst) for t in result.transfers][-2:] == [(0, 2), (1, 3)]
    assert result.links["node0.out"].utilisation == pytest.approx(40 / 90)


def test_a_ring_in_good_order_on_two_levels():
    # Chunks of 1000 bytes: inside 1 + 1 = 2, across 4 + 4 = 8. The two edges across set the pace: 6 x 8.
    result = run(ring, 4, 4000, TWO)
    assert us(result) == 48
    assert result.links["node0.out"].utilisation == pytest.approx(1.0)
    assert result.links["1.down"].utilisation == pytest.approx(0.25)  # 2 of every 8


def test_a_ring_in_bad_order_on_two_levels():
    # 0 2 1 3: every edge crosses, two share each card. In each step each card carries two chunks of 8: 6 x 16.
    assert us(run(ring, 4, 4000, TWO, (0, 2, 1, 3))) == 96


# ---- a measured graph: choose the order by its bottleneck

GRAPH = Topology.from_bandwidth(
    [[b * 1e9 for b in row] for row in [[0, 50, 25, 10], [50, 0, 10, 25], [25, 10, 0, 50], [10, 25, 50, 0]]]
)


@pytest.mark.parametrize("order, step", [((0, 1, 2, 3), 100), ((0, 1, 3, 2), 40), ((0, 2, 1, 3), 100)])
def test_a_rings_pace_is_its_slowest_edge(order, step):
    # Chunks of 1 MB without latency; the slowest edge has 10, 25, 10 GB/s: 100, 40, 100 us a step, 6 steps.
    assert us(run(ring, 4, 4_000_000, GRAPH, order)) == 6 * step
