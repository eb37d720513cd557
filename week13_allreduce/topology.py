"""Which ring? Choosing the order of the ranks on real wires (task 13.6).

"Ring" says that every rank has a right neighbour; it does not say who. On a switch it does not matter. On most
machines it does: two GPUs may share a fast bridge, the next two a PCIe switch, and the traffic between two sockets
squeezes through one link, however many pairs cross it. The ring goes at the speed of its slowest hop, since every
step waits for all hops.

A hop a -> b occupies every link on `topology.path(a, b)`. All N hops of a ring are busy at the same time, so hops
that use the same link (links are directed: there and back are two) divide its bandwidth among them:

    ring_bandwidth = min over links l of   bandwidth(l) / (number of the ring's hops on l)        [bytes/s]

Example: two sockets with two GPUs each, 0 1 | 2 3, a link of 10 GB/s each way between the sockets, 20 GB/s inside.
The ring 0 1 2 3 crosses once each way (1 -> 2 and 3 -> 0): 10 GB/s. The ring 0 2 1 3 crosses twice each way: 5 GB/s,
half the speed, same algorithm, same machine. NCCL solves this problem (and harder ones) when it starts:
`NCCL_DEBUG=INFO` prints the rings it chose.

(Real links interleave packets. The virtual wire sends one message at a time and agrees whenever a shared link is no
faster than the other links on the way, as in this example.)

There are (N-1)! rings. Up to N = 8 that is 5040 and you may try them all. A search that extends a ring hop by hop and
turns back as soon as the part already built is no better than the best ring known goes further: adding a hop never
makes a ring faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch

from labkit.comm.topology import Topology


class InOrder:
    """The ranks of `group` renumbered along `order` (given): pass it to your collectives in the group's place.

    `rank` is this rank's position in `order`; `send`, `recv` and `sendrecv` take positions and reach the ranks there.
    The chunk a rank ends with is its position's: position p ends with chunk p. `order` may leave ranks out: a ring of
    some of them.
    """

    def __init__(self, group, order: Sequence[int]):
        self.group, self.order = group, list(order)
        self.rank, self.size, self.device = self.order.index(group.rank), len(self.order), group.device
        self.ledger = group.ledger

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.group.send(tensor, self.order[dst])

    def recv(self, src: int, **into) -> torch.Tensor:
        return self.group.recv(self.order[src], **into)

    def sendrecv(self, tensor: torch.Tensor, dst: int, src: int, **into) -> torch.Tensor:
        return self.group.sendrecv(tensor, dst=self.order[dst], src=self.order[src], **into)


def hops(order: Sequence[int]) -> list[tuple[int, int]]:
    """The hops (from, to) of the closed ring `order` (given): [0, 2, 1] -> [(0, 2), (2, 1), (1, 0)]; [0] -> []."""
    return [(a, order[(i + 1) % len(order)]) for i, a in enumerate(order)] if len(order) > 1 else []


def alone(hop: tuple[int, int], topology: Topology) -> float:
    """Bandwidth, bytes/s, of one hop (from, to) when nobody else sends: its slowest link. The worked example."""
    return min(topology.links[name].bandwidth for name in topology.path(*hop))


def bottleneck(used: Sequence[tuple[int, int]], topology: Topology) -> float:
    """Task 13.6. Bandwidth in bytes/s of these hops when all of them are busy and the slowest sets the pace.

    Args:
        used: hops (from, to), each between two different ranks; a closed ring's, or the part of a ring built so far.
        topology: `links` {name: Link(bandwidth, latency)}, `path(a, b)` -> names of the links from a to b.

    Returns:
        min over the links in use of bandwidth / number of hops on it; `math.inf` without hops.
    """
    ### BEGIN SOLUTION 13.6 bottleneck of a set of hops
    # min over links l of  bandwidth(l) / (number of hops whose path has l)       bytes/s
    on_link = Counter(name for a, b in used for name in topology.path(a, b))
    return min((topology.links[name].bandwidth / count for name, count in on_link.items()), default=math.inf)
    ### END SOLUTION


def ring_bandwidth(order: Sequence[int], topology: Topology) -> float:
    """Bandwidth in bytes/s of the closed ring `order` (given); `math.inf` for a ring of one rank, which has no hops."""
    return bottleneck(hops(order), topology)


def best_ring(topology: Topology) -> list[int]:
    """Task 13.6. An order of all ranks, beginning with 0, whose `ring_bandwidth` no other order beats.

    The ranks are 0 .. topology.size - 1. Among equals take any. Within 5 seconds for 8 ranks.
    """
    ### BEGIN SOLUTION 13.6 choose a ring by its bottleneck
    # Depth first over orders 0, a, b, ...; a part that is no better than the best closed ring cannot become better.
    N = topology.size
    best, best_bandwidth = list(range(N)), ring_bandwidth(range(N), topology)

    def extend(order: list[int]) -> None:
        nonlocal best, best_bandwidth
        closed = len(order) == N
        bandwidth = bottleneck(hops(order) if closed else list(pairwise(order)), topology)
        if bandwidth <= best_bandwidth:  # more hops only make it slower: turn back
            return
        if closed:
            best, best_bandwidth = order, bandwidth
            return
        for rank in range(N):
            if rank not in order:
                extend([*order, rank])

    extend([0])
    return best
    ### END SOLUTION
