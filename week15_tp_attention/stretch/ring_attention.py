"""Ring attention: a sequence that no rank holds (task 15.11, stretch).

Sequence parallelism (15.3) cuts what lies between the parallel parts; attention itself still sees all T positions on
every rank. With T in the hundreds of thousands a rank cannot hold what one layer keeps for all of them. So cut
everything along T. A rank keeps its queries; keys and values travel around the ring, block by block, and every rank
attends to whichever block it has at the time, while the next one is on its way (Liu et al., arXiv:2310.01889).

**A softmax of which one sees a part at a time.** Over one block of keys, attention gives the average o of its values
under softmax, and the logarithm l of the softmax's denominator, the sum of exp(q k / sqrt(H)). Of two blocks

    l = log(e^l1 + e^l2)            o = e^(l1 - l) o1 + e^(l2 - l) o2

so o and l of what was seen so far are all that needs to be kept: one number a query more than the output. A block
that a query does not see has l = -infinity and weight 0. (exp of a score of a hundred overflows; differences of l do
not.)

**Causal, and balanced.** Rank r's queries see only keys at earlier positions. Cut T in N parts in order, and rank 0
has one block to attend to, rank N-1 has N. In every step but the first some rank computes a whole block, so all wait
for it, and almost half of what N ranks could compute in that time is never computed. Cut T in 2N parts instead and
give rank r two of them, one early and one late, so that every rank has equally much to do *in every step*. Which two?
(In the literature: zigzag; striped attention, arXiv:2311.09431, deals out single positions.)

A layout says which positions a rank has, as pieces (first, one past the last), in order. A pair of a piece of queries
and a piece of keys is seen whole, or not at all, or is the same piece twice, a triangle. Work on pieces, and what is
not seen costs nothing.

**Backward.** Saved are q, k, v, o and l, no probabilities. With the l of *all* keys, a block's probabilities are
P = exp(q k^T / sqrt(H) - l), right at once. Then (Dao et al., arXiv:2205.14135, appendix B)

    dV = P^T dO        dP = dO V^T        dS = P (dP - delta)        dQ = dS K / sqrt(H)        dK = dS^T Q / sqrt(H)

with delta = sum over H of dO O, one number a query. dQ stays. dK and dV of a block are summed over the ranks: they
travel with the block, and every rank adds its part. The owner's own part need not travel: let the sum start at its
right neighbour, and N-1 hops bring it home.

Rotary embedding turns q and k by their positions before any of this: a rank's are those of its layout, not 0 to T/N.

Legend: N ranks, r this one; B batch, T positions, t = T/N of them, n query heads, k key/value heads (n divides by k),
H head width; c a piece's positions. Query head i reads key/value head i // (n / k).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.errors import LabError

Pieces = list[tuple[int, int]]  # positions: first, one past the last
Layout = Callable[[int, int, int], Pieces]  # (T, N, r) -> what rank r has


def in_order(T: int, N: int, r: int) -> Pieces:
    """Rank r's positions if T is cut in N parts: the worked example. LabError if N does not divide T."""
    if T % N:
        raise LabError(f"{T} positions cannot be cut into {N} equal parts")
    return [(r * T // N, (r + 1) * T // N)]


def zigzag(T: int, N: int, r: int) -> Pieces:
    """Task 15.11. Rank r's two pieces, the earlier one first: equal work for all ranks in every step of the ring.
    LabError, with both numbers in the sentence, if 2 N does not divide T."""
    ### BEGIN SOLUTION 15.11 zigzag
    if T % (2 * N):
        raise LabError(f"{T} positions cannot be cut into {2 * N} equal parts, two for each of {N} ranks")
    c, late = T // (2 * N), 2 * N - 1 - r
    # The keys of an earlier rank: both my pieces see its early one, and neither its late one. Of a later rank: my late
    # piece sees both. Two pairs of four either way.
    return [(r * c, (r + 1) * c), (late * c, (late + 1) * c)]
    ### END SOLUTION


def attend(q_BncH: Tensor, k_BkcH: Tensor, v_BkcH: Tensor, triangle: bool) -> tuple[Tensor, Tensor]:
    """A piece of queries on a piece of keys, which it sees whole, or as a triangle: o [B,n,c,H] and l [B,n,c]. The
    worked example."""
    q_BkGcH = q_BncH.unflatten(1, (k_BkcH.shape[1], -1))  # the G = n/k query heads of each key/value head
    scores = q_BkGcH @ k_BkcH.unsqueeze(2).transpose(-1, -2) * q_BncH.shape[-1] ** -0.5  # [c,H] @ [H,c'] -> [c,c']
    if triangle:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    o = scores.softmax(-1) @ v_BkcH.unsqueeze(2)  # [c,c'] @ [c',H] -> [c,H]
    return o.flatten(1, 2), scores.logsumexp(-1).flatten(1, 2)


def merge(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Task 15.11. (o, l) over the keys of both: o [..., c, H], l [..., c], where l may be -infinity in one of the two.
    Scores of several hundreds give no infinity and no NaN."""
    ### BEGIN SOLUTION 15.11 two parts of a softmax
    both = torch.logaddexp(l1, l2)
    return (l1 - both).exp().unsqueeze(-1) * o1 + (l2 - both).exp().unsqueeze(-1) * o2, both
    ### END SOLUTION


def attend_backward(
    q_BncH: Tensor, k_BkcH: Tensor, v_BkcH: Tensor, l_Bnc: Tensor, dO_BncH: Tensor, delta_Bnc: Tensor, triangle: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Task 15.11. What a piece of queries and a piece of keys bring to dq [B,n,c,H], dk and dv [B,k,c,H].

    l_Bnc: of these queries over *all* the keys that they see, on all ranks; delta_Bnc: sum over H of dO O; triangle:
    as in `attend`."""
    ### BEGIN SOLUTION 15.11 backward of a pair of pieces
    k, scale = k_BkcH.shape[1], q_BncH.shape[-1] ** -0.5
    # The G query heads of a key/value head lie behind each other: then dk and dv sum over them by themselves.
    q, dO = (x.unflatten(1, (k, -1)) for x in (q_BncH, dO_BncH))  # [B,k,G,c,H]
    lse, delta = (x.unflatten(1, (k, -1)).unsqueeze(-1) for x in (l_Bnc, delta_Bnc))  # [B,k,G,c,1]
    keys, values = k_BkcH.unsqueeze(2), v_BkcH.unsqueeze(2)  # [B,k,1,c',H]
    P = (q @ keys.transpose(-1, -2) * scale - lse).exp()  # [c,H] @ [H,c'] -> [c,c']
    if triangle:
        P = P.tril()
    dS = P * (dO @ values.transpose(-1, -2) - delta)  # [c,H] @ [H,c'] -> [c,c']
    dq = dS @ keys * scale  # [c,c'] @ [c',H] -> [c,H]
    dk = dS.flatten(2, 3).transpose(-1, -2) @ q.flatten(2, 3) * scale  # [c',Gc] @ [Gc,H] -> [c',H]
    dv = P.flatten(2, 3).transpose(-1, -2) @ dO.flatten(2, 3)  # [c',Gc] @ [Gc,H] -> [c',H]
    return dq.flatten(1, 2), dk, dv
    ### END SOLUTION


class RingAttention(torch.autograd.Function):
    """See `ring_attention`."""

    ### BEGIN SOLUTION 15.11 around the ring, forward and backward
    @staticmethod
    def forward(ctx, q_BntH, k_BktH, v_BktH, layout, group):
        ctx.layout, ctx.group = layout, group
        o, lse = torch.zeros_like(q_BntH), q_BntH.new_full(q_BntH.shape[:-1], -torch.inf)
        for owner, kv, _ in around(torch.stack((k_BktH, v_BktH)), group):  # one message, not two
            with group.compute(f"attend {owner}"):
                for a, b, triangle in seen(layout, q_BntH.shape[2], group, owner):
                    part = attend(q_BntH[:, :, a], kv[0][:, :, b], kv[1][:, :, b], triangle)
                    o[:, :, a], lse[:, :, a] = merge(o[:, :, a], lse[:, :, a], *part)
        ctx.save_for_backward(q_BntH, k_BktH, v_BktH, o, lse)
        return o

    @staticmethod
    def backward(ctx, dO_BntH):
        q, k, v, o, lse = ctx.saved_tensors
        group, N, r = ctx.group, ctx.group.size, ctx.group.rank
        right, left = (r + 1) % N, (r - 1) % N
        delta, dq = (dO_BntH * o).sum(-1), torch.zeros_like(q)  # [B,n,t]
        coming = going = None
        for owner, kv, s in around(torch.stack((k, v)), group):
            dkv = torch.zeros_like(kv)
            with group.compute(f"attend {owner}"):
                for a, b, triangle in seen(ctx.layout, q.shape[2], group, owner):
                    parts = (q[:, :, a], kv[0][:, :, b], kv[1][:, :, b], lse[:, :, a], dO_BntH[:, :, a], delta[:, :, a])
                    dq_a, dk_b, dv_b = attend_backward(*parts, triangle)
                    dq[:, :, a] += dq_a
                    dkv[0][:, :, b] += dk_b
                    dkv[1][:, :, b] += dv_b
            if s == 0:
                own = dkv  # added when the others' sum comes home
                continue
            if coming is not None and going is not None:
                dkv += coming.wait()  # what the ranks between the owner and me have of this block
                going.wait()
            coming, going = group.irecv(left, like=dkv), group.isend(dkv, right)
        if coming is not None and going is not None:
            own += coming.wait()
            going.wait()
        return dq, own[0], own[1], None, None

    ### END SOLUTION


### BEGIN SOLUTION 15.11 what travels, and what is seen
def around(kv: Tensor, group):
    """(owner, its keys and values, step), N times, my own first. The next block travels while this one is used."""
    N, r = group.size, group.rank
    for s in range(N):
        coming = going = None
        if s < N - 1:
            coming, going = group.irecv((r - 1) % N, like=kv), group.isend(kv, (r + 1) % N)
        yield (r - s) % N, kv, s
        if coming is not None and going is not None:
            kv = coming.wait()
            going.wait()


def seen(layout: Layout, t: int, group, owner: int) -> list[tuple[slice, slice, bool]]:
    """Which places of my queries see which places of the owner's keys, whole or as a triangle."""
    found = []
    mine, theirs = (layout(t * group.size, group.size, rank) for rank in (group.rank, owner))
    at = 0
    for first, end in mine:
        a, at, of = slice(at, at + end - first), at + end - first, 0
        for start, stop in theirs:
            b, of = slice(of, of + stop - start), of + stop - start
            if start <= first:
                found.append((a, b, start == first))
    return found


### END SOLUTION


def ring_attention(q_BntH: Tensor, k_BktH: Tensor, v_BktH: Tensor, layout: Layout, group) -> Tensor:
    """Task 15.11. Causal attention over all ranks' positions: this rank's o [B,n,t,H] from its q, k and v, at the
    positions that `layout(T, N, r)` says; all pieces of a layout are equally long.

    Point-to-point calls only, each to the right neighbour: forward N-1 times k and v; backward as often k and v, and
    their gradients. What is multiplied for rank s's keys stands in a span "attend s", forward and backward, and the
    next block travels beside it. Pairs of pieces that are not seen are not multiplied."""
    return RingAttention.apply(q_BntH, k_BktH, v_BktH, layout, group)
