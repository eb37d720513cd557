"""Embedding, head and loss over a vocabulary that no rank has whole (task 15.4).

With a vocabulary of 128,256 and 8192 positions the logits are 4.2 GB in float32, and their gradient as much again:
the largest tensor of the whole step, for one number. Split over the vocabulary, rank r has V/N rows of the head,
computes V/N logits of every token, and must find the loss

    loss_i = log sum_v exp(z_iv) - z_i,target(i)

of which it knows an addend of the sum, and the target's logit on one rank only (Megatron-LM, arXiv:1909.08053,
section 3, fused cross entropy). To gather the logits would cost V numbers a token. How many are enough? Find the
numbers that each rank can compute from its own logits and that all-reduces can combine.

Logits of hundreds: exp(200) is infinite in float32. One subtracts a number m_i first, any number that keeps the
largest exponent near 0; what matters is that all ranks subtract *the same one*.

Backward needs no message at all, if forward kept the right things: dL/dz_iv = (p_iv - [v = target(i)]) / (tokens that
count). What p_iv is made of is the same on every rank.

The embedding is a table of V rows, of which rank r has some: it can fill in the tokens that it has rows for, and
nothing for the others. The sum over the ranks is the result: D numbers a token, as for every row-parallel product.
And the head is a column-parallel product: D numbers a token for the gradient of its input.

V need not divide by N: rank r has rows `vocab_range(V, N, r)`, as `torch.tensor_split` cuts.

Legend: N ranks; V vocabulary, v = this rank's part of it; B batch, T positions, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .linears import copy_to_ranks, reduce_over_ranks

IGNORED = -100  # a target that does not count


def vocab_range(V: int, N: int, r: int) -> tuple[int, int]:
    """The first of rank r's rows, and one past the last (given): the first V mod N ranks have one row more."""
    small, more = divmod(V, N)
    first = r * small + min(r, more)
    return first, first + small + (r < more)


def local_index(ids: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Which of `ids` lie in [first, end), and their index from `first` on; index 0 for the others (given: the worked
    example of a mask)."""
    mine = (ids >= first) & (ids < end)
    return mine, torch.where(mine, ids - first, 0)


def parallel_embedding(tokens_BT: Tensor, weight_vD: Tensor, V: int, group) -> Tensor:
    """Task 15.4. The rows of the table for these tokens: [B, T, D], whole on every rank.

    tokens int64, whole; weight: this rank's rows. The gradient of a row comes from the tokens that are it."""
    ### BEGIN SOLUTION 15.4 embedding over the vocabulary
    mine_BT, index_BT = local_index(tokens_BT, *vocab_range(V, group.size, group.rank))
    addend_BTD = nn.functional.embedding(index_BT, weight_vD) * mine_BT.unsqueeze(-1)  # zeros for others' tokens
    return reduce_over_ranks(addend_BTD, group)
    ### END SOLUTION


class CrossEntropy(torch.autograd.Function):
    """See `parallel_cross_entropy`."""

    ### BEGIN SOLUTION 15.4 cross entropy over the vocabulary
    @staticmethod
    def forward(ctx, logits_BTv, targets_BT, V, group):
        z_BTv = logits_BTv.float()
        max_BT = group.all_reduce(z_BTv.amax(-1), "max")  # m_i: one number a token
        z_BTv = z_BTv - max_BT.unsqueeze(-1)
        mine_BT, index_BT = local_index(targets_BT, *vocab_range(V, group.size, group.rank))
        at_target_BT = z_BTv.gather(-1, index_BT.unsqueeze(-1)).squeeze(-1) * mine_BT  # 0 where another rank has it
        exp_BTv = z_BTv.exp()
        # Two numbers a token, in one message: [2,B,T].
        denominator_BT, at_target_BT = group.all_reduce(torch.stack([exp_BTv.sum(-1), at_target_BT]))
        counts_BT = targets_BT != IGNORED
        tokens = counts_BT.sum()
        ctx.save_for_backward(exp_BTv / denominator_BT.unsqueeze(-1), mine_BT, index_BT, counts_BT, tokens)
        ctx.dtype = logits_BTv.dtype
        return ((denominator_BT.log() - at_target_BT) * counts_BT).sum() / tokens

    @staticmethod
    def backward(ctx, dloss):
        p_BTv, mine_BT, index_BT, counts_BT, tokens = ctx.saved_tensors
        one_hot = torch.zeros_like(p_BTv).scatter_(-1, index_BT.unsqueeze(-1), mine_BT.unsqueeze(-1).to(p_BTv.dtype))
        dz_BTv = (p_BTv - one_hot) * counts_BT.unsqueeze(-1) * (dloss / tokens)  # dL/dz = (p - [v = target]) / tokens
        return dz_BTv.to(ctx.dtype), None, None, None

    ### END SOLUTION


def parallel_cross_entropy(logits_BTv: Tensor, targets_BT: Tensor, V: int, group) -> Tensor:
    """Task 15.4. Mean of -log softmax(logits)[target] over the targets that are not IGNORED: a float32 number, the same
    on every rank. logits: this rank's part of the vocabulary. All that is sent is sent forward. A token may
    cost one number more than the all-reduces of the loss need, whatever V is."""
    return CrossEntropy.apply(logits_BTv, targets_BT, V, group)


def parallel_head_loss(x_BTD: Tensor, weight_vD: Tensor, targets_BT: Tensor, V: int, group) -> Tensor:
    """Task 15.4. The loss from the last norm's output x, whole on every rank, and this rank's rows of the head."""
    ### BEGIN SOLUTION 15.4 head and loss
    logits_BTv = nn.functional.linear(copy_to_ranks(x_BTD, group), weight_vD)  # [B,T,D] @ [D,v] -> [B,T,v]
    return parallel_cross_entropy(logits_BTv, targets_BT, V, group)
    ### END SOLUTION
