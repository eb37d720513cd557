"""Heads exchanged for positions (task 15.12, stretch).

Under sequence parallelism over a whole block each rank has t = T/N positions, and whole weights. Products, norms and
the feed-forward network work on one position at a time: nothing to send. Attention alone needs all positions, but of
one head at a time. So turn the cut for as long as attention takes: before it, give each rank all positions of 1/N of
the heads; behind it, turn back (Jacobs et al., DeepSpeed-Ulysses, arXiv:2309.14509):

    [B, t, n, H]  --->  [B, T, n/N, H]  attention, as on one rank  [B, T, n/N, H]  --->  [B, t, n, H]

Each turn is an *all-to-all*: rank r sends to rank s the part of its tensor that s is to have, and gets from s the part
that s has for it. The part for itself stays. Written as a map over all ranks' numbers it is a permutation, so its
transpose is its inverse: backward of one turn is the other one.

**Bytes.** Of a tensor of S bytes a rank sends (N-1)/N S: q, k, v and the output, forward, and the same backward. Ring
attention (15.11) sends k and v N-1 times forward, and twice as much backward. Which one sends less, with as many
key/value heads as query heads? With an eighth as many? On how many ranks does it turn? (The ring has another merit:
heads need not divide by N. And another price: its messages must hide behind products, block by block.)

**Weights.** All ranks hold whole W_q, W_k, W_v, W_o and use them for positions of their own. You have met this in 15.1.

Legend: N ranks, r this one; B batch, T positions, t = T/N of them, in order; D model width, n query heads, k key/value
heads, H head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.comm.group import Recv, Send
from labkit.errors import LabError
from labkit.model.decoder import RotaryAttention
from week15_tp_attention.linears import copy_to_ranks

WEIGHTS = ("wq", "wk", "wv", "wo")


def exchange(parts: Sequence[Tensor], group) -> list[Tensor]:
    """All-to-all of equal parts (given): parts[s] goes to rank s, and what comes back has rank s's part for this one at
    place s. All messages are posted together; the own part is not sent."""
    N, r = group.size, group.rank
    others = [s for s in range(N) if s != r]
    came = group.batch([Send(parts[s].contiguous(), s) for s in others] + [Recv(s, like=parts[s]) for s in others])
    found = list(parts)
    for s, part in zip(others, came[len(others) :]):
        found[s] = part
    return found


class Mirror(torch.autograd.Function):
    """y on rank r is x of rank N-1-r: the worked example. A permutation that undoes itself, so its backward is the same
    map."""

    @staticmethod
    def forward(ctx, x_BtD, group):
        ctx.group = group
        other = group.size - 1 - group.rank
        return x_BtD.clone() if other == group.rank else group.sendrecv(x_BtD, dst=other, src=other)  # y_r = x_{N-1-r}

    @staticmethod
    def backward(ctx, dy):
        return Mirror.apply(dy.contiguous(), ctx.group), None  # A^T = A^-1, and here A^-1 = A


class ToHeads(torch.autograd.Function):
    """See `to_heads`."""

    ### BEGIN SOLUTION 15.12 positions for heads
    @staticmethod
    def forward(ctx, x_BtnH, group):
        ctx.group = group
        # Rank s gets its heads of my positions; what rank s has for me are its positions, and ranks are in order.
        return torch.cat(exchange(x_BtnH.chunk(group.size, dim=2), group), dim=1)

    @staticmethod
    def backward(ctx, dy_BTmH):
        return ToPositions.apply(dy_BTmH, ctx.group), None  # a permutation: A^T = A^-1

    ### END SOLUTION


class ToPositions(torch.autograd.Function):
    """See `to_positions`."""

    ### BEGIN SOLUTION 15.12 heads for positions
    @staticmethod
    def forward(ctx, x_BTmH, group):
        ctx.group = group
        return torch.cat(exchange(x_BTmH.chunk(group.size, dim=1), group), dim=2)

    @staticmethod
    def backward(ctx, dy_BtnH):
        return ToHeads.apply(dy_BtnH, ctx.group), None

    ### END SOLUTION


def to_heads(x_BtnH: Tensor, group) -> Tensor:
    """Task 15.12. From 1/N of the positions of all heads to all positions of 1/N of the heads: [B, T, n/N, H]. Rank r's
    are heads r n/N to (r+1) n/N - 1."""
    return ToHeads.apply(x_BtnH, group)


def to_positions(x_BTmH: Tensor, group) -> Tensor:
    """Task 15.12. The way back, from the m = n/N heads here: [B, t, n, H]."""
    return ToPositions.apply(x_BTmH, group)


class UlyssesAttention(nn.Module):
    """Task 15.12. Causal attention of which rank r has T/N positions, and for a moment n/N heads.

    weights   whole: "wq" [D, D], "wk" and "wv" [k H, D], "wo" [D, D], each [out, in]
    group     the ranks that the positions are cut over

    LabError, with the numbers in the sentence, if N does not divide the query heads, or not the key/value heads.
    """

    def __init__(self, weights: Mapping[str, Tensor], group, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        ### BEGIN SOLUTION 15.12 which heads can be exchanged
        for heads, which in ((n_heads, "query"), (n_kv_heads, "key/value")):
            if heads % group.size:
                raise LabError(f"{heads} {which} heads cannot be dealt out to {group.size} ranks: choose a divisor")
        ### END SOLUTION
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(weights[name]) for name in WEIGHTS)
        self.group, self.d_head = group, len(self.wq) // n_heads
        self.core = RotaryAttention()  # turns q and k, then softmax(q k^T / sqrt(H)) v; any number of heads

    def forward(self, x_BtD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """x, cut along the positions -> y [B, t, D], likewise. cos and sin are of all T positions. Four turns forward,
        four backward; every weight's gradient is the sum over the ranks, on all of them."""
        ### BEGIN SOLUTION 15.12 attention between two turns
        # Whole weights, which each rank uses for positions of its own: their gradients come as addends.
        wq, wk, wv, wo = (copy_to_ranks(w, self.group) for w in (self.wq, self.wk, self.wv, self.wo))
        q_BTmH, k_BTmH, v_BTmH = (
            to_heads(nn.functional.linear(x_BtD, w).unflatten(-1, (-1, self.d_head)), self.group) for w in (wq, wk, wv)
        )
        y_BTmH = self.core(q_BTmH, k_BTmH, v_BTmH, cos_TR, sin_TR)
        return nn.functional.linear(to_positions(y_BTmH, self.group).flatten(-2), wo)  # [B,t,D] @ [D,D] -> [B,t,D]
        ### END SOLUTION
