"""One's own ring under one's own data parallel (task 14.8, stretch, no points).

Week 13's ring is a loop of `sendrecv`: post, wait, add, 2 (N-1) times. Under 14.2 it gives the right gradients and
hides nothing: the hook that lets a bucket leave would stand still until the bucket has been all the way round, and the
backward with it. NCCL's ring does not stand still, because it has thread blocks of its own. A Python program with one
thread has none. What it has is moments: hooks, in which it may post a step, and come back for it later.

**A ring that one can leave.** A generator is a loop that stops in its middle and keeps its place:

    ring = ring_in_steps(x, group)
    next(ring)          posts step 0: isend of a chunk, irecv of another
    next(ring)          waits for step 0, adds, posts step 1
    ...                 until it is over: then x holds the sum

Between two `next` one message is under way, and the backward computes. The schedule of chunks is week 13's: N-1 steps
in which what comes is added, N-1 in which it is stored (13.2, 13.3).

**Who calls next?** Whoever comes by. When a bucket leaves (14.2 asks for an all-reduce), every ring that is under way
takes a step; so a ring of 2 (N-1) steps needs as many later buckets to be over before `finish()`. What is left then is
driven to its end there, and nothing hides it: with N = 64 the ring is longer than the backward. (Hence trees, and
engines of their own.)

**Order.** Messages between two ranks have no names: the n-th send meets the n-th receive. Buckets leave in one order on
all ranks, rings step in the order in which they began, and so every rank posts the same messages in the same order,
even where graphs differ.

Legend: N ranks, r this rank, L numbers; chunk c is `x_L.tensor_split(N)[c]`, empty ones are sent all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


def ring_blocking(x_L: torch.Tensor, group) -> torch.Tensor:
    """The sum over the ranks, in place, by one-shot steps that wait: the worked example. Right, and in nobody's shadow:
    13.1 says what it costs."""
    N, r = group.size, group.rank
    mine = x_L.clone()
    for s in range(1, N):
        x_L += group.sendrecv(mine, dst=(r + s) % N, src=(r - s) % N, like=mine)
    return x_L


def ring_in_steps(x_L: torch.Tensor, group) -> Iterator[None]:
    """Task 14.8. Sum x over the ranks, in place, around a ring. Each `next` waits for the step that is under way, if
    any, and posts the following one, both directions at once and neither waited for; the last one waits and ends.

    2 (N-1) steps of one chunk to the right neighbour: at most 2 (N-1) ceil(L/N) numbers. Point-to-point calls only."""
    ### BEGIN SOLUTION 14.8 a ring that one can leave
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    chunk = x_L.tensor_split(N)
    for s in range(2 * (N - 1)):
        adding = s < N - 1
        # As in 13.2 and 13.3: send chunk r-s-1 (first lap) or r-s (second, s from 0 again); one less comes.
        c = (r - s - 1) % N if adding else (r - s + N - 1) % N
        into = chunk[(c - 1) % N]
        coming, going = group.irecv(left, like=into), group.isend(chunk[c], right)
        yield
        came = coming.wait()
        going.wait()
        if adding:
            into += came
        else:
            into.copy_(came)
    ### END SOLUTION


class Ring:
    """Task 14.8. What `DataParallel` takes for a group, with rings of this file in the place of the library's
    all-reduce.

        parallel = DataParallel(model, Ring(group))
    """

    def __init__(self, group) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self.under_way: list[Iterator[None]] = []  # rings that have begun and not ended, the oldest first

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", async_op: bool = False):
        """Begin to reduce a vector over the ranks, in place. First every ring under way takes a step, the oldest first;
        then this one takes its first.

        op: "sum" or "mean". Returns a `Turn`, or with async_op=False the tensor, reduced."""
        ### BEGIN SOLUTION 14.8 everybody takes a step
        for ring in list(self.under_way):
            self.step(ring)
        ring = ring_in_steps(tensor, self.group)
        self.under_way.append(ring)
        self.step(ring)
        turn = Turn(self, ring, tensor, op)
        return turn if async_op else turn.wait()
        ### END SOLUTION

    def step(self, ring: Iterator[None]) -> bool:
        """Let a ring take a step (given). False if it is over."""
        if ring not in self.under_way:
            return False
        try:
            next(ring)
        except StopIteration:
            self.under_way.remove(ring)
            return False
        return True


class Turn:
    """What `Ring.all_reduce(async_op=True)` gives. `wait()` gives the tensor, which until then is the ring's."""

    def __init__(self, rings: Ring, ring: Iterator[None], tensor: torch.Tensor, op: str) -> None:
        self.rings, self.ring, self.tensor, self.op = rings, ring, tensor, op

    def wait(self) -> torch.Tensor:
        """Drive the ring to its end; then a mean is divided, once."""
        ### BEGIN SOLUTION 14.8 to the end
        while self.rings.step(self.ring):
            pass
        if self.op == "mean":
            self.tensor.div_(self.rings.size)
            self.op = "sum"  # a second wait() finds it done
        return self.tensor
        ### END SOLUTION
