"""Sequence parallelism: what lies between the parallel parts is cut, too (task 15.3).

Under plain tensor parallelism the norms and the residual stream are whole: N ranks compute the same thing and each
keeps all of it for backward, B T D numbers a time. They work on one position at a time. So cut them along T, and let
rank r have T/N positions between the parallel parts (Korthikanti et al., arXiv:2205.05198, section 4.2.2).

The parallel parts need all positions. An all-reduce is a reduce-scatter and then an all-gather (week 13): the two
laps of the ring now stand at the two ends of the stretch between two parallel parts,

    ... product with W_o | sum | residual, norm | products with W_1, W_3 ...
                          ring's      T/N       ring's
                        first lap             second lap

Each of the two steps is a pair again. You have the method: state of the input, state of the output, transposed map.
Here *what follows a gathered x is not the same on all ranks*; so this gather is not 15.1's.

What is kept for backward. The products' weight gradients need the gathered x: dW = dy^T x. Two ways:

    keep=True     keep the gathered x, B T D numbers on every rank
    keep=False    keep one's own B T/N D numbers, and gather once more in backward

Count the ring bytes of both, for one part, forward and backward. What does `keep=False` cost, as a fraction? Autograd
can do the first by itself, with a gather that is a step of its own, but not the second: a gather that is followed by
a product leaves the product to save its input. So one function spans both (`gather_linears`), and since three
products read the same x in attention, and two in the feed-forward network, it takes several weights: gather once.

The norms' weights are whole on every rank, and each rank's gradient of them comes from its own T/N positions. You
have met this in 15.2.

Positions. Rotary embedding turns by position, and the products' outputs have all T of them, in order.

Legend: N ranks; B batch, T positions, t = T/N of them, D model width, H head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.model.decoder import RotaryAttention

from .linears import copy_to_ranks

WEIGHTS = ("attn_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w3", "w2")

# ---- given: the two laps, along the positions. Neither knows autograd.


def all_positions(x_BtD: Tensor, group) -> Tensor:
    """All ranks' positions, in rank order: [B, T, D]."""
    return group.all_gather(x_BtD.transpose(0, 1).contiguous()).transpose(0, 1)


def own_positions_summed(x_BTD: Tensor, group) -> Tensor:
    """The sum over the ranks, of which this rank gets its own positions: [B, t, D]. LabError if N does not divide T."""
    if x_BTD.shape[1] % group.size:
        raise LabError(f"{x_BTD.shape[1]} positions cannot be cut into {group.size} equal parts")
    return group.reduce_scatter(x_BTD.transpose(0, 1).contiguous()).transpose(0, 1)


class ScatterPositions(torch.autograd.Function):
    """See `scatter_positions`."""

    ### BEGIN SOLUTION 15.3 scatter positions
    @staticmethod
    def forward(ctx, x_BTD, group):
        ctx.group = group
        return own_positions_summed(x_BTD, group)  # y_r = slice r of sum_s x_s: addends -> cut

    @staticmethod
    def backward(ctx, dy_BtD):
        return all_positions(dy_BtD, ctx.group), None  # slice r of y has all x_s in it: dL/dx_s = all slices

    ### END SOLUTION


def scatter_positions(x_BTD: Tensor, group) -> Tensor:
    """Task 15.3. From addends [B, T, D] to the sum, cut along the positions: [B, t, D]."""
    return ScatterPositions.apply(x_BTD, group)


class GatherLinears(torch.autograd.Function):
    """See `gather_linears`. Its backward gets one gradient for each output, and gives one for x_BtD, None for `group`
    and `keep`, and one for each weight."""

    ### BEGIN SOLUTION 15.3 gather, then several products
    @staticmethod
    def forward(ctx, x_BtD, group, keep, *weights):
        ctx.group, ctx.keep = group, keep
        x_BTD = all_positions(x_BtD, group)
        ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)
        return tuple(nn.functional.linear(x_BTD, w) for w in weights)  # [B,T,D] @ [D,O] -> [B,T,O]

    @staticmethod
    def backward(ctx, *dys):
        x, *weights = ctx.saved_tensors
        dx_BTD = sum(dy @ w for dy, w in zip(dys, weights))  # [B,T,O] @ [O,D] -> [B,T,D]: this rank's addend
        dx_BtD = own_positions_summed(dx_BTD, ctx.group)  # position t of x went to every rank: addends -> cut
        x_BTD = x if ctx.keep else all_positions(x, ctx.group)
        dws = (dy.flatten(0, 1).T @ x_BTD.flatten(0, 1) for dy in dys)  # [O,BT] @ [BT,D] -> [O,D]
        return dx_BtD, None, None, *dws

    ### END SOLUTION


def gather_linears(x_BtD: Tensor, weights: Sequence[Tensor], group, keep: bool = True) -> tuple[Tensor, ...]:
    """Task 15.3. All positions of x times each of `weights` ([O, D] each, this rank's rows): a [B, T, O] for each.

    keep: whether the gathered x is kept for backward, else x_BtD alone, and it is gathered again."""
    return GatherLinears.apply(x_BtD, group, keep, *weights)


class SequenceParallelBlock(nn.Module):
    """Task 15.3. A whole block of the decoder, without biases: x + attn(norm(x)), then x + ffn(norm(x)).

    weights    by the names in WEIGHTS: this rank's slices, the two norms' whole
    group      the tensor-parallel ranks
    replicas   those of them that have this rank's key/value heads (15.2)
    d_head     H
    keep       as for `gather_linears`
    """

    def __init__(
        self, weights: Mapping[str, Tensor], group, replicas, d_head: int, keep: bool = True, eps: float = 1e-5
    ) -> None:
        super().__init__()
        own = {name: nn.Parameter(weights[name]) for name in WEIGHTS}
        self.attn_norm, self.ffn_norm = own["attn_norm"], own["ffn_norm"]
        self.wq, self.wk, self.wv, self.wo = own["wq"], own["wk"], own["wv"], own["wo"]
        self.w1, self.w3, self.w2 = own["w1"], own["w3"], own["w2"]
        self.group, self.replicas, self.d_head, self.keep, self.eps = group, replicas, d_head, keep, eps
        self.core = RotaryAttention()

    def norm(self, x_BtD: Tensor, weight_D: Tensor) -> Tensor:
        """x / rms(x) * weight (given)."""
        return nn.functional.rms_norm(x_BtD, weight_D.shape, weight_D, self.eps)

    def forward(self, x_BtD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """x [B, t, D], cut along the positions -> [B, t, D]. cos and sin are of all T positions."""
        ### BEGIN SOLUTION 15.3 a block on T/N positions
        group, keep = self.group, self.keep
        # Each rank uses the norms' weights for its own positions, each replica wk and wv for its own query heads.
        attn_norm, ffn_norm = copy_to_ranks(self.attn_norm, group), copy_to_ranks(self.ffn_norm, group)
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q, k, v = gather_linears(self.norm(x_BtD, attn_norm), (self.wq, wk, wv), group, keep)  # [B,T,nH] [B,T,kH] twice
        y_BTnH = self.core(*(p.unflatten(-1, (-1, self.d_head)) for p in (q, k, v)), cos_TR, sin_TR)
        x_BtD = x_BtD + scatter_positions(nn.functional.linear(y_BTnH.flatten(-2), self.wo), group)
        gate, up = gather_linears(self.norm(x_BtD, ffn_norm), (self.w1, self.w3), group, keep)  # [B,T,F/N] each
        return x_BtD + scatter_positions(nn.functional.linear(nn.functional.silu(gate) * up, self.w2), group)
        ### END SOLUTION
