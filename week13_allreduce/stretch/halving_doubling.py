"""All-reduce by halving and doubling: few steps *and* little traffic (task 13.9, stretch, no points).

For N a power of two. Reduce-scatter by halving: at distance d = N/2, N/4, ..., 1 rank r pairs with r XOR d. The two
own the same range of chunks; each sends the half that the other one keeps, and adds what comes to its own half. The
rank whose bit d is 0 keeps the lower half, so that after log2 N rounds rank r owns exactly chunk r. All-gather by
doubling: the same pairs in reverse order, d = 1, 2, ..., N/2; each sends all it has, and the ranges double. N = 4,
the range of chunks [first, end) that a rank owns:

    d          rank 0    rank 1    rank 2    rank 3
              [0,4)     [0,4)     [0,4)     [0,4)
    2  0-2 1-3 [0,2)     [0,2)     [2,4)     [2,4)
    1  0-1 2-3 [0,1)     [1,2)     [2,3)     [3,4)

2 log2 N messages, and 2 (N-1)/N of the vector: as few steps as a tree, as few bytes as the ring (Rabenseifner 2004;
Thakur et al. 2005, section 4.5). So why does anyone use rings? Look at who talks to whom: a ring's hops can be laid
along a machine's wires, while here, in the round with the most bytes, every rank talks to the far half of the machine
at once. On a full switch that is free. Try it on `Topology.two_level`.
"""

from __future__ import annotations

import torch

from week13_allreduce.collectives import combine_, finish_
from week13_allreduce.cost_model import Cost


def halving_doubling_cost(N: int) -> Cost:
    """Cost of `halving_doubling_all_reduce` on a switch; N a power of two."""
    ### BEGIN SOLUTION 13.9 halving-doubling cost
    return Cost(messages=2 * (N.bit_length() - 1), share=2 * (N - 1) / N)
    ### END SOLUTION


def halving_doubling_all_reduce(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.9. In place. Arguments as `collectives.ring_all_reduce`; ValueError if N is no power of two.

    Neighbouring chunks of `x_L.tensor_split(N)` lie side by side in memory: a range of them is one slice of x_L, one
    message.
    """
    ### BEGIN SOLUTION 13.9 halving-doubling all-reduce
    N, r = group.size, group.rank
    if N & (N - 1):
        raise ValueError(f"halving and doubling needs a power of two, not {N} ranks")
    borders = [0]
    for chunk in x_L.tensor_split(N):
        borders.append(borders[-1] + chunk.numel())

    def part(first: int, end: int) -> torch.Tensor:
        return x_L[borders[first] : borders[end]]

    first, end, d = 0, N, N // 2
    while d:
        middle = first + d
        keep, give = ((first, middle), (middle, end)) if not r & d else ((middle, end), (first, middle))
        combine_(part(*keep), group.sendrecv(part(*give), dst=r ^ d, src=r ^ d, like=part(*keep)), op)
        (first, end), d = keep, d // 2
    finish_(part(first, end), op, N)
    d = 1
    while d < N:
        theirs = (first + d, end + d) if not r & d else (first - d, end - d)
        group.sendrecv(part(first, end), dst=r ^ d, src=r ^ d, out=part(*theirs))
        first, end, d = min(first, theirs[0]), max(end, theirs[1]), d * 2
    return x_L
    ### END SOLUTION
