"""All-reduce, by hand: how N ranks add up their gradients (tasks 13.2, 13.3 and 13.4).

The problem. N ranks each hold a vector x of L numbers (gradients of the same weights, from different data). Afterwards
every rank must hold the sum. Whoever adds must first receive, so the question is only who sends what to whom.

Through one rank. Everybody sends x to rank 0, rank 0 adds and sends the sum back: `naive_all_reduce` below. Right,
short, and the wire into rank 0 carries (N-1) L numbers while the other wires mostly idle. The time grows like N-1.

Around a ring. Cut x into N chunks, chunk c with `x.tensor_split(N)[c]`. Rank r only ever sends to its right neighbour
r+1 and receives from its left neighbour r-1 (modulo N). Two laps:

  1. reduce-scatter, N-1 steps. A chunk travels right and collects one addend at every stop:

         chunk c:  starts on rank c+1,  goes to c+2, c+3, ...  and ends on rank c, complete.

     So at step s (0 .. N-2) rank r sends chunk r-s-1 and adds what arrives from the left to its own chunk r-s-2.
     N = 4, "2<-" means "this step rank r receives chunk 2 and adds it to its own":

         step      rank 0       rank 1       rank 2       rank 3
           0      sends 3      sends 0      sends 1      sends 2
                   2<-          3<-          0<-          1<-
           1      sends 2      sends 3      sends 0      sends 1
                   1<-          2<-          3<-          0<-
           2      sends 1      sends 2      sends 3      sends 0
                   0<- done     1<- done     2<- done     3<- done

     Each row sends what the row above it just completed. That is the invariant to hold on to: after step s, rank r's
     copy of chunk r-s-2 is the sum over the s+2 ranks r-s-1, ..., r. At s = N-2 that is chunk r over all ranks.

  2. all-gather, N-1 steps. The same walk with copies instead of sums: at step s rank r sends chunk r-s, which is
     complete, and stores what arrives from the left as chunk r-s-1.

Every wire carries one chunk in every step, so nobody idles, and a rank sends 2 (N-1)/N L numbers in all: less than
2 L whatever N is, and no algorithm sends less (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", section 3). What the ring pays with is steps: 2 (N-1) of them, one after another.
`cost_model.py` says when that is a good trade.

Ragged lengths. `tensor_split` gives the first L mod N chunks one number more; for L < N the last chunks are empty and
are sent all the same, so that every rank makes the same calls. Never compute chunk borders yourself. The chunk you
receive may be one number longer or shorter than the one you send: tell `sendrecv` by `like=` (or `out=`), which must
be the chunk you receive. labkit/comm/group.py says what `sendrecv`, `like=` and `out=` do, in 30 lines.

The rounding point. What travels and what is kept has x's dtype. Every stop adds two numbers and rounds the sum once
to that dtype (bfloat16 on torch and in NCCL: the addition itself runs in fp32). A complete chunk was therefore
rounded N-1 times, in the order c+1, c+2, ..., c; "mean" divides once, at the end, on the rank that completed the
chunk. All ranks then copy the same bits, so they agree exactly: replicas that train on the result cannot drift apart.
An fp32 accumulator would round once, and would send twice the bytes.

Legend: N ranks, r this rank, L numbers, C = ceil(L/N) the largest chunk. x_L is one-dimensional.
"""

from __future__ import annotations

import torch

OPS = ("sum", "mean", "max")


def combine_(acc: torch.Tensor, other: torch.Tensor, op: str) -> torch.Tensor:
    """Fold `other` into `acc`, in place (given). "mean" adds here; it divides once, at the end, in `finish_`."""
    if op == "max":
        return torch.maximum(acc, other, out=acc)
    if op in ("sum", "mean"):
        return acc.add_(other)
    raise ValueError(f"op must be one of {', '.join(OPS)}, not {op!r}")


def finish_(acc: torch.Tensor, op: str, N: int) -> torch.Tensor:
    """What remains when all N addends are in `acc`, in place (given): one division for mean, else nothing."""
    return acc.div_(N) if op == "mean" else acc


def naive_all_reduce(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """All-reduce through rank 0: the worked example. In place, returns x_L.

    2 (N-1) messages of L numbers pass rank 0's wire, one after another.
    """
    N, r = group.size, group.rank
    if r == 0:
        for peer in range(1, N):
            combine_(x_L, group.recv(peer, like=x_L), op)  # a fresh tensor arrives, is added, is forgotten
        finish_(x_L, op, N)
        for peer in range(1, N):
            group.send(x_L, peer)
    else:
        group.send(x_L, 0)
        group.recv(0, out=x_L)  # out= fills the caller's own tensor: in place
    return x_L


def one_shot_all_reduce(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """All-reduce in which everybody sends everything to everybody: the second worked example. In place, returns x_L.

    N-1 steps of L numbers. At step s rank r sends to r+s and receives from r-s, both posted together by `sendrecv`: if
    all ranks first sent and then received, each would wait for a receiver that is itself still sending. Everybody adds
    in rank order, so the results agree to the last bit.
    """
    N, r = group.size, group.rank
    addend = {r: x_L.clone()}
    for s in range(1, N):
        addend[(r - s) % N] = group.sendrecv(x_L, dst=(r + s) % N, src=(r - s) % N, like=x_L)
    x_L.copy_(addend[0])
    for peer in range(1, N):
        combine_(x_L, addend[peer], op)
    return finish_(x_L, op, N)


def ring_reduce_scatter(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.2. Reduce x over the ranks; return chunk r of the result.

    Step s: send chunk r-s-1 right; combine what comes from the left into chunk r-s-2. N-1 steps, at most (N-1) C
    numbers sent.

    Args:
        x_L: one-dimensional, fp32 or bf16, any length L >= 0, also shorter than the ring. It is the workspace:
            afterwards chunk r of it holds the result, and the other chunks mean nothing.
        group: the ranks (`rank`, `size`, `sendrecv`). Point-to-point calls only: no library collective.
        op: "sum", "mean" or "max".

    Returns:
        Chunk r: `x_L.tensor_split(N)[r]`, the same memory, x's dtype; complete over all ranks.
    """
    ### BEGIN SOLUTION 13.2 ring reduce-scatter
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    chunk = x_L.tensor_split(N)
    for s in range(N - 1):
        acc = chunk[(r - s - 2) % N]
        combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)
    return finish_(chunk[r], op, N)
    ### END SOLUTION


def ring_all_gather(shard: torch.Tensor, group, numel: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Task 13.3. Join the ranks' shards to one vector of `numel` numbers, the same on every rank.

    Step s: send chunk r-s right; store what comes from the left as chunk r-s-1. N-1 steps, at most (N-1) C numbers
    sent.

    Args:
        shard: this rank's chunk r of the result, one-dimensional: as long as `tensor_split(N)[r]` of `numel` numbers.
        group: the ranks. Point-to-point calls only.
        numel: L, the length of the joined vector. Ragged lengths need it: ranks cannot guess it from their own shard.
        out: where to put the result, `numel` numbers of shard's dtype; by default a new tensor. `shard` may be chunk
            r of `out` itself (in task 13.4 it is): store it before anything else is written to `out`.

    Returns:
        `out`: rank 0's shard first, rank N-1's last.
    """
    ### BEGIN SOLUTION 13.3 ring all-gather
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    out = shard.new_empty(numel) if out is None else out
    chunk = out.tensor_split(N)
    chunk[r].copy_(shard)
    for s in range(N - 1):
        group.sendrecv(chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N])
    return out
    ### END SOLUTION


def ring_all_reduce(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.4. Reduce x over the ranks and leave the result on every rank, in place.

    Both laps of the ring: 2 (N-1) steps, at most 2 (N-1) C numbers sent.

    Args:
        x_L: one-dimensional, fp32 or bf16, any length. Overwritten with the result, which is the same bits on every
            rank.
        group: the ranks. Point-to-point calls only.
        op: "sum", "mean" or "max".

    Returns:
        x_L itself: the caller's tensor, not a copy of it.
    """
    ### BEGIN SOLUTION 13.4 ring all-reduce
    shard = ring_reduce_scatter(x_L, group, op)
    return ring_all_gather(shard, group, x_L.numel(), out=x_L)
    ### END SOLUTION
