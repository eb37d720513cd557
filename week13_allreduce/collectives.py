"""All-reduce, by hand: how N ranks add up their gradients (tasks 13.2, 13.3 and 13.4).

The problem. N ranks each hold a vector x of L numbers (gradients of the same weights, from different data). Afterwards
every rank must hold the sum. Whoever adds must first receive, so the question is only who sends what to whom.

Through one rank. Everybody sends x to rank 0, rank 0 adds and sends the sum back: `naive_all_reduce` below. Right,
short, and the wire into rank 0 carries (N-1) L numbers while the other wires mostly idle. The time grows like N-1.

Around a ring. Cut x into N chunks, chunk c with `x.tensor_split(N)[c]`. Rank r only ever sends to its right neighbour
r+1 and receives from its left neighbour r-1 (modulo N). Two laps:

  1. reduce-scatter. At the end rank r holds chunk r, complete. A chunk travels right and collects one addend at every
     stop, and all N chunks travel at the same time, each rank passing on another one. Which rank passes on which chunk
     at which step is the schedule, and you find it: with pencil and the grid in section 3 of the notebook, for four
     ranks, before you write a line. What the schedule must keep:

         Each rank sends the chunk that it added to in the step before. After step s = 0, 1, 2, ... a rank's copy of
         the chunk that it just received is the sum over s+2 ranks: itself and the s+1 to its left.

     Proof, by induction on s. In step 0 a chunk arrives that holds its sender's addend alone; with the receiver's own
     these are two. If it holds after step s, the rank to the right receives in step s+1 the sum over s+2 ranks that lie
     to its left, one after another, and adds its own: s+3. No addend comes twice while s+2 <= N. So a chunk is complete
     after N-1 steps and not before: it has walked N-1 places to the right, to the left neighbour of its first rank.

     That decides everything: you know where each chunk must end, so you know where it starts.

  2. all-gather. The same walk with copies instead of sums: what a rank passes on is complete, and whoever receives it
     stores it. It begins with the chunk that the first lap left complete on each rank.

Every wire carries one chunk in every step, so nobody idles, and a rank sends 2 (N-1)/N L numbers in all: less than
2 L whatever N is. If only ranks add, no algorithm sends less: every number's N addends need N-1
messages to come together, and its sum N-1 more to reach everybody (Patarasuk and Yuan 2009, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", section 3). A switch that adds on the way does: each rank then
sends L and receives L (NVLS, SHARP; see "What NCCL does instead" in the notebook). What the ring pays with is steps:
2 (N-1) of them, one after another. `cost_model.py` says when that is a good trade.

Ragged lengths. `tensor_split` gives the first L mod N chunks one number more; for L < N the last chunks are empty and
are sent all the same, so that every rank makes the same calls. Never compute chunk borders yourself. The chunk you
receive may be one number longer or shorter than the one you send: tell `sendrecv` by `like=` (or `out=`), which must
be the chunk you receive. labkit/comm/group.py says what `sendrecv`, `like=` and `out=` do, in 30 lines.

The rounding point. What travels and what is kept has x's dtype. Every stop adds two numbers and rounds the sum once
to that dtype (bfloat16 on torch and in NCCL: the addition itself runs in fp32). A complete chunk was therefore
rounded N-1 times, in the order of its stops; "mean" divides once, at the end, on the rank that completed the chunk.
All ranks then copy the same bits, so they agree exactly: replicas that train on the result cannot drift apart. An
fp32 accumulator would round once, and would send twice the bytes.

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

    N-1 steps. In each: one chunk to the right neighbour, one from the left, which is folded into this rank's own copy
    of it. At most (N-1) C numbers sent.

    Args:
        x_L: one-dimensional, fp32 or bf16, any length L >= 0, also shorter than the ring. It is the workspace:
            afterwards chunk r of it holds the result, and the other chunks mean nothing.
        group: the ranks (`rank`, `size`, `sendrecv`). Point-to-point calls only: no library collective.
        op: "sum", "mean" or "max".

    Returns:
        Chunk r: `x_L.tensor_split(N)[r]`, the same memory, x's dtype; complete over all ranks.
    """
    ### BEGIN SOLUTION 13.2 ring reduce-scatter
    # Chunk c ends on rank c after N-1 hops to the right, so it starts on rank c+1. At step s it is sent by rank c+1+s:
    #     rank r sends chunk r-s-1, and receives what rank r-1 sends: chunk r-s-2        indices modulo N
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    chunk = x_L.tensor_split(N)  # N views of x_L: [C] or [C-1] each
    for s in range(N - 1):
        acc = chunk[(r - s - 2) % N]
        # x_r[c] += x_(r-s-1)[c] + ... + x_(r-1)[c], c = r-s-2      [C] from the left, s+1 addends in it; now s+2
        combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)
    return finish_(chunk[r], op, N)  # s = N-2: c = r, N addends
    ### END SOLUTION


def ring_all_gather(shard: torch.Tensor, group, numel: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Task 13.3. Join the ranks' shards to one vector of `numel` numbers, the same on every rank.

    N-1 steps. In each: one complete chunk to the right neighbour, one from the left. At most (N-1) C numbers sent.

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
    # Chunk c starts on rank c. At step s it is sent by rank c+s:
    #     rank r sends chunk r-s, and receives what rank r-1 sends: chunk r-s-1          indices modulo N
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    out = shard.new_empty(numel) if out is None else out  # [L]
    chunk = out[:numel].tensor_split(N)  # N views of out: [C] or [C-1] each
    chunk[r].copy_(shard)  # before anything else is written: shard may be this very memory
    for s in range(N - 1):
        # out[r-s-1] <- rank r-1's out[r-s-1]      [C]: as long as it is here, which may differ from what is sent
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
    # all-reduce = all-gather after reduce-scatter       [L] -> [C] on each rank, inside x_L -> [L]
    shard = ring_reduce_scatter(x_L, group, op)
    return ring_all_gather(shard, group, x_L.numel(), out=x_L)
    ### END SOLUTION
