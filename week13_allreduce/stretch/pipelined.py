"""The ring that keeps its wires busy: slices, and both directions (task 13.12, stretch, no points).

The ring of task 13.4 alternates: a chunk travels, then it is added, then the next one travels. While it adds, the wire
idles; while the wire works, the adders idle. On the virtual wire nobody notices, since adding is free there. On a GPU
it is a measurable part of the time: 2.2 of 20.1 ms for 4 GiB on four H200 (results/FINDINGS.md).

Slices. Cut every chunk into S slices and let each slice walk the ring on its own. Slice k of step t+1 needs slice k of
step t, and nothing else. So all S slices of a step are sent one after another, and slice k is added while slices k+1,
..., S-1 and then slice 0 of the next step are on the wire:

    wire      | t,0 | t,1 | t,2 | t,3 | t+1,0 | t+1,1 | ...
    adders          | t,0 | t,1 | t,2 | t,3   | t+1,0 | ...

S times as many messages, each paying its alpha, and each smaller: too many slices are worse than none.

Two directions. A wire is full duplex, and where neighbours have cables of their own, a ring that only goes right leaves
half of them dark. So the left half of x walks right, lane d = +1, and the right half walks left, lane d = -1, with r+1
and r-1 exchanged: at reduce step t lane d sends chunk r - d(t+1) to r+d and combines what comes from r-d into chunk
r - d(t+2); at gather step u it sends chunk r - du and stores chunk r - d(u+1). Both lanes of a step go into one
`group.batch`. On a switch, where a rank has one wire for both neighbours, this gains nothing on paper.

Overlap on a GPU. `batch` does not make the CPU wait there: it queues the messages, and the *current stream* waits for
them. An addition queued on that stream would hold up the next message behind it. So the additions go to a second
stream, `Adders` below: wait for the message, add, tell the first stream when done. On a CPU there is no second stream
and nothing overlaps; the result is the same.

What it gave. Less than the picture above promises, and the reasons are the lesson (measured in results/FINDINGS.md, by
given/anatomy.py). When slice k arrives, its addition and the next message's kernel want the same multiprocessors, and
who comes first takes all: start with TORCH_NCCL_HIGH_PRIORITY=1, or nothing overlaps. They also want the same memory,
so each slows the other down. And NCCL gives a smaller message fewer channels, that is, less of the wire; two directions
get twice the channels, which helps where they are short. NCCL's own kernel adds a number on its way from the wire in to
the wire out: no second stream, no memory in between, and no message that is too small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit.comm.group import Recv, Send
from week13_allreduce.collectives import combine_, finish_


class Adders:
    """A place for additions beside the messages (given): a stream of its own on a GPU, nothing special on a CPU."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def now(self) -> Any:
        """A mark behind what the current stream has been given so far."""
        return torch.cuda.current_stream().record_event() if self.stream else None

    def add(self, after: Any, work: Callable[[], None]) -> Any:
        """Do `work` once the mark `after` is reached; returns the mark of its end."""
        if self.stream is None:
            return work()
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(after)
            work()
            return self.stream.record_event()

    def wait(self, end: Any) -> None:
        """Let the current stream, and so the messages queued next, wait for the mark `end`."""
        if self.stream:
            torch.cuda.current_stream().wait_event(end)


def pipelined_ring_all_reduce(
    x_L: torch.Tensor, group, op: str = "sum", slices: int = 2, directions: int = 2
) -> torch.Tensor:
    """Task 13.12. All-reduce in place over two opposite rings, `slices` slices a chunk. Arguments as `ring_all_reduce`.

    directions: 2, or 1 for the ring to the right alone, which then carries all of x. Any length and any N. The order of
    additions differs from the ring's: sums of whole numbers agree exactly, others up to rounding; all ranks still end
    with the same bits.
    """
    ### BEGIN SOLUTION 13.12 pipelined, two-directional ring
    N, r, adders = group.size, group.rank, Adders(x_L.device)
    lanes = [
        (d, [chunk.tensor_split(slices) for chunk in half.tensor_split(N)])
        for d, half in zip((+1, -1), x_L.tensor_split(directions))
    ]

    def exchange(t: int, k: int) -> list[torch.Tensor]:
        """Step t of slice k on all lanes; returns what arrived, lane by lane."""
        parts = []
        for d, part in lanes:
            u = t - (N - 1)  # the gather step, from 0 on
            if u < 0:
                sent, into = part[(r - d * (t + 1)) % N][k], {"like": part[(r - d * (t + 2)) % N][k]}
            else:
                sent, into = part[(r - d * u) % N][k], {"out": part[(r - d * (u + 1)) % N][k]}
            parts += [Send(sent, (r + d) % N), Recv((r - d) % N, **into)]
        return group.batch(parts)[1::2]  # a Send gives None

    def fold(t: int, k: int, arrived: list[torch.Tensor]) -> None:
        for (d, part), addend in zip(lanes, arrived):
            acc = combine_(part[(r - d * (t + 2)) % N][k], addend, op)
            if t == N - 2:
                finish_(acc, op, N)

    steps = 2 * (N - 1)
    inbox = [(exchange(0, k), adders.now()) for k in range(slices)] if steps else []
    for t in range(steps):
        for k in range(slices):
            arrived, mark = inbox[k]
            if t < N - 1:
                adders.wait(adders.add(mark, partial(fold, t, k, arrived)))
            if t + 1 < steps:
                inbox[k] = exchange(t + 1, k), adders.now()
    return x_L
    ### END SOLUTION
