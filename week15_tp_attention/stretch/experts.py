"""Experts spread over ranks (task 15.13, stretch).

A mixture of experts has E feed-forward networks in the place of one, and a router that sends each token to K of them.
The weights grow by E, a token's work by K. Weights that only some tokens use are a waste on every rank: give rank r
the experts r E/N to (r+1) E/N - 1, whole, and send tokens to where their experts are (GShard, arXiv:2006.16668).
Ranks have different tokens, as in data parallelism.

    route        on each rank, for its own tokens: which K experts, with which gates
    dispatch     all-to-all: every (token, choice) goes to the rank that has the expert
    experts      each on all rows that came for it, from whichever rank
    combine      all-to-all, back: the same rows, the other way; gate times output, summed over a token's K choices

**Uneven.** How many rows rank r sends to rank s is known to nobody else before the router has spoken. A message has no
header (`Group`), so the counts go first: one small all-to-all. Some experts get nothing, one may get everything.
(Many libraries fix a *capacity* per expert instead, so that all sizes are known, and drop what is beyond it: equal
messages, and a result that depends on who else is in the batch. Here nothing is dropped: MegaBlocks, arXiv:2211.15841.)

**Order.** An all-to-all carries rows, no names. Sort the rows by expert before they leave; expert numbers grow with
ranks, so each rank's part is one slice. What comes is sorted by expert for each source. On the way back each row
returns to the place that it came from, so the permutation that was made before dispatch is undone behind combine.

**Gradients.** The loss is the sum over the ranks of each one's own. A row that went from a to b is used on b: its
gradient goes from b to a, in the same sizes. And an expert's weights? All tokens that used them were here. Is there
anything left to be summed over the ranks? Compare the router's weights, which every rank has.

Legend: N ranks, r this one; E experts, e = E/N of them here; S tokens here, K choices of each, R = S K rows; D model
width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.comm.group import Recv, Send


def route(x_SD: Tensor, weight_ED: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Which K experts each token goes to, [S, K] int64, and its gates [S, K], whose sum is 1 (given)."""
    logits_SE = nn.functional.linear(x_SD, weight_ED)  # [S,D] @ [D,E] -> [S,E]
    top_SK, chosen_SK = logits_SE.topk(K, dim=-1)
    return chosen_SK, top_SK.softmax(-1)


def feed_forward(x_RD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """One expert on the rows that came for it, none perhaps (given)."""
    return nn.functional.linear(nn.functional.silu(nn.functional.linear(x_RD, up_FD)), down_DF)


def on_one_rank(x_SD: Tensor, chosen_SK: Tensor, gates_SK: Tensor, up_EFD: Tensor, down_EDF: Tensor) -> Tensor:
    """All experts here, each token's rows one after the other: the worked example, and what N ranks must equal."""
    y_SD = torch.zeros_like(x_SD)
    for expert, (up_FD, down_DF) in enumerate(zip(up_EFD, down_EDF)):
        token, choice = (chosen_SK == expert).nonzero(as_tuple=True)
        rows = feed_forward(x_SD[token], up_FD, down_DF)
        y_SD = y_SD.index_add(0, token, gates_SK[token, choice].unsqueeze(-1) * rows)
    return y_SD


def exchange(x_RD: Tensor, to: Sequence[int], come: Sequence[int], group) -> Tensor:
    """Task 15.13. All-to-all of uneven parts: the first to[0] rows go to rank 0, the next to[1] to rank 1, and so on;
    what comes, come[s] rows from rank s, is joined in rank order. One message to each other rank that gets any rows,
    all posted together; the own part is not sent. No gradient."""
    ### BEGIN SOLUTION 15.13 uneven all-to-all
    parts = list(x_RD.split(list(to)))
    sends = [Send(parts[s].contiguous(), s) for s in range(group.size) if s != group.rank and to[s]]
    receives = [
        Recv(s, like=x_RD.new_empty(come[s], *x_RD.shape[1:])) for s in range(group.size) if s != group.rank and come[s]
    ]
    came = iter(group.batch(sends + receives)[len(sends) :])
    empty = x_RD.new_empty(0, *x_RD.shape[1:])
    found = [
        parts[s] if s == group.rank else next(came) if come[s] else empty  # in rank order, as they were posted
        for s in range(group.size)
    ]
    return torch.cat(found)
    ### END SOLUTION


class Exchange(torch.autograd.Function):
    """`exchange` with its backward: `Exchange.apply(x, to, come, group)`."""

    ### BEGIN SOLUTION 15.13 and its backward
    @staticmethod
    def forward(ctx, x_RD, to, come, group):
        ctx.to, ctx.come, ctx.group = to, come, group
        return exchange(x_RD, to, come, group)

    @staticmethod
    def backward(ctx, dy):
        return exchange(dy, ctx.come, ctx.to, ctx.group), None, None, None  # a permutation of rows: A^T = A^-1

    ### END SOLUTION


def spread_experts(
    x_SD: Tensor, chosen_SK: Tensor, gates_SK: Tensor, up_eFD: Tensor, down_eDF: Tensor, group
) -> Tensor:
    """Task 15.13. y [S, D] for this rank's tokens, through experts on all ranks.

    Args:
        x_SD: this rank's tokens; other ranks may have more or fewer, or none.
        chosen_SK, gates_SK: as `route` gives them; K is the same everywhere.
        up_eFD, down_eDF: the weights of this rank's experts, as many as everybody has.

    Point-to-point calls only. Besides rows and their gradients a rank sends e int64, its counts, to each other rank.
    Gradients of x and the gates are this rank's own; those of the experts' weights are of all ranks' rows.
    """
    ### BEGIN SOLUTION 15.13 dispatch, experts, combine
    N, e, K = group.size, len(up_eFD), chosen_SK.shape[1]
    order = chosen_SK.flatten().argsort(stable=True)  # rows by expert, and so by rank
    counts_Ne = chosen_SK.flatten().bincount(minlength=N * e).unflatten(0, (N, e))
    theirs_Ne = exchange(counts_Ne, [1] * N, [1] * N, group)  # [s, i]: rank s's rows for my expert i
    to, come = counts_Ne.sum(1).tolist(), theirs_Ne.sum(1).tolist()
    rows = Exchange.apply(x_SD[order // K], to, come, group)  # sorted by source, and by expert within
    expert_R = torch.arange(e, device=x_SD.device).repeat(N).repeat_interleave(theirs_Ne.flatten())
    here = expert_R.argsort(stable=True)
    parts = rows[here].split(theirs_Ne.sum(0).tolist())
    done = torch.cat([feed_forward(part, up, down) for part, up, down in zip(parts, up_eFD, down_eDF)])
    back = Exchange.apply(done[here.argsort()], come, to, group)  # sorted as they left
    y_SKD = back[order.argsort()].unflatten(0, (-1, K))
    return (gates_SK.unsqueeze(-1) * y_SKD).sum(1)
    ### END SOLUTION
