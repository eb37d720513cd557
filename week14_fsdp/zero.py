"""ZeRO, the first stage: everybody averages, each steps its own part (task 14.3).

With AdamW in FP32 a parameter costs 16 bytes: the weight 4, its gradient 4, the first and the second moment 8. In data
parallel training all N ranks hold all 16, and all N compute the very same step. Half of the memory serves the step
alone, and nobody needs another rank's half (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", arXiv:1910.02054).

AdamW is elementwise: parameter i's step needs gradient i, moments i and weight i. So lay all parameters side by side in
one vector, cut it into N equal parts, and let rank r step part r:

    reduce-scatter      rank r gets the mean gradient of part r             (N-1)/N n bytes
    AdamW on part r     moments of part r, and of nothing else
    all-gather          everybody gets the new weights of all parts         (N-1)/N n bytes

An all-reduce *is* a reduce-scatter and an all-gather (13.4). The step has moved in between the two: the same bytes, and
the moments cost 8/N bytes a parameter instead of 8.

**One number belongs to all parts.** Clipping scales the gradient by min(1, c / |g|), where |g| is the norm of the whole
gradient. A rank that knows its part alone must not use that part's norm: two ranks would step with different scales.
Squares add up over parts:

    |g|^2 = sum_r |g_r|^2

so one all-reduce of one number gives it to everybody. It must run over the *averaged* gradient: |mean| is not the mean of the
norms.

**Padding.** P parameters and N ranks: parts of S = ceil(P / N) numbers, and the vector is filled up to N S. The filling
takes part in sums of squares, so it is zero.

Legend: N ranks, r this rank, P parameters in all, S = ceil(P/N) numbers in a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from week14_fsdp.ddp import OneByOne, trainable


def adamw_(
    w: torch.Tensor,
    g: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One step of AdamW on equally long vectors, in place (given). `step` counts from 1. As torch.optim.AdamW
    (Loshchilov and Hutter, arXiv:1711.05101)."""
    w.mul_(1 - lr * weight_decay)
    m.lerp_(g, 1 - betas[0])  # m = b1 m + (1 - b1) g
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])  # v = b2 v + (1 - b2) g^2
    denominator = (v / (1 - betas[1] ** step)).sqrt_().add_(eps)
    w.addcdiv_(m, denominator, value=-lr / (1 - betas[0] ** step))


class WholeAdamW:
    """AdamW after data parallel: the worked example. Every rank averages all, holds all moments, steps all."""

    def __init__(self, module: nn.Module, group, lr: float = 1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        self.params, self.group = trainable(module), group
        self.parallel = OneByOne(module, group)
        self.options = lr, betas, eps, weight_decay
        self.steps = 0
        self.m = [torch.zeros_like(p) for p in self.params]  # P numbers on every rank
        self.v = [torch.zeros_like(p) for p in self.params]  # and P more

    @torch.no_grad()
    def step(self, max_norm: float | None = None) -> float:
        """Average, clip, step. Returns the norm of the averaged gradient before clipping."""
        self.parallel.finish()
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        scale = clip_scale(norm, max_norm)
        self.steps += 1
        for p, g, m, v in zip(self.params, grads, self.m, self.v):
            adamw_(p, g * scale, m, v, self.steps, *self.options)
        return norm.item()


def clip_scale(norm: torch.Tensor, max_norm: float | None) -> torch.Tensor:
    """What the gradient is multiplied by so that its norm is at most `max_norm` (given); 1 without one."""
    return torch.ones_like(norm) if max_norm is None else (max_norm / norm).clamp(max=1.0)


def flatten(tensors: Iterable[torch.Tensor], length: int) -> torch.Tensor:
    """The tensors side by side in one new vector of `length` numbers, zeros behind them (given)."""
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    return torch.cat([flat, flat.new_zeros(length - flat.numel())])


class ShardedAdamW:
    """Task 14.3. AdamW whose moments are spread over the ranks of `group`.

        optimizer = ShardedAdamW(trainable(model), group, lr=1e-3)
        loss.backward()                         # every rank its own part of the batch
        norm = optimizer.step(max_norm=1.0)     # p.grad goes in as this rank's own; the weights come out equal
        model.zero_grad()

    Args:
        params: parameters of one dtype, equal on all ranks; ValueError without any. A gradient may be None: zeros.
        group: the ranks. `reduce_scatter(x, op="mean")` takes [N S] and gives this rank's [S]; `all_gather(x)` the
            inverse; `all_reduce`.
        lr, betas, eps, weight_decay: as torch.optim.AdamW has them.

    The vector is the parameters in order, `p.reshape(-1)` one after another, zeros behind; rank r's part are the
    numbers r S to (r+1) S - 1. Between steps this object holds at most 3 S numbers: two moments, and the part's weights
    if you like. In each step a rank sends its gradient once (reduce-scatter) and its part once (all-gather), and one
    number for the norm.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        group,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        self.params, self.group, self.steps = list(params), group, 0
        self.options = lr, betas, eps, weight_decay
        if not self.params:
            raise ValueError("there is no parameter to step")
        ### BEGIN SOLUTION 14.3 what one rank holds
        P = sum(p.numel() for p in self.params)
        self.S = -(-P // group.size)  # ceil(P / N)
        self.m = self.params[0].new_zeros(self.S)  # [S], not [P]: this is the saving
        self.v = self.params[0].new_zeros(self.S)
        ### END SOLUTION

    @torch.no_grad()
    def step(self, max_norm: float | None = None) -> float:
        """Average the gradients, clip by the norm of all of them, step. Returns that norm, before clipping; the same on
        every rank."""
        ### BEGIN SOLUTION 14.3 one step
        N, r, S = self.group.size, self.group.rank, self.S
        grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)
        g_S = self.group.reduce_scatter(flatten(grads, N * S), op="mean")  # [N S] -> [S], 1/N sum_r g_r
        norm = self.group.all_reduce(g_S.square().sum()).sqrt()  # |g|^2 = sum_r |g_r|^2
        w_S = flatten(self.params, N * S)[r * S : (r + 1) * S].clone()  # a view would keep all N S numbers alive
        self.steps += 1
        adamw_(w_S, g_S * clip_scale(norm, max_norm), self.m, self.v, self.steps, *self.options)
        w_NS = self.group.all_gather(w_S)  # [S] -> [N S]
        lengths = [p.numel() for p in self.params]
        for p, new in zip(self.params, w_NS[: sum(lengths)].split(lengths)):
            p.copy_(new.view_as(p))
        return norm.item()
        ### END SOLUTION
