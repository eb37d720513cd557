"""Loss scaling, and what to do when a step has gone wrong (task 16.7).

FP16 reaches down to 6e-8, and gradients lie below it. Multiplying the loss by S multiplies every gradient by S (the
chain rule is linear), so they are computed S times larger, and divided by S before the optimizer sees them: loss
scaling (Micikevicius et al. 2017, arXiv:1710.03740, section 3.2). BF16 has FP32's exponents and needs none; FP8 has a
scale for each tensor instead. FP16 on a GPU without BF16 is the fallback of this week's experiment.

Which S? As large as goes without an overflow, and that changes while a model trains. Dynamic scaling finds it by
running into it: too large shows as an infinity, too small shows as nothing. After `growth_interval` good steps in a row
S grows by `growth_factor`, as long as it stays finite in float32; after a bad one it shrinks at once, by
`backoff_factor`, **and the step is skipped**: its gradients are no numbers. torch's `GradScaler` does exactly this, and
yours must give its scales, step by step.

A bad step is one with a gradient that is infinite or NaN **on any rank**. Each rank sees its own shard or its own data:
if one skips and another steps, their weights part for good, and no error says so. One flag, reduced over the ranks.

Recovery. In BF16 and FP8 a non-finite step is no routine, it is an event. One alone may be a bad batch: skip it.
Several in a row are the model's: lower the rate; and if that does not help, the weights themselves are gone: go back to
the last good checkpoint. What must `after` look at? Take a finite loss, the gradients [1, 2] and [inf, 1], and `clip_`
below: write down what it makes of the four, and of the weights one line later. Every such step is written down with its
reason, or nobody will know afterwards why the curve has a kink: the NaN log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STEP, SKIP, LOWER, ROLL_BACK = "step", "skip", "lower", "roll back"


class Event(NamedTuple):
    """One line of the NaN log."""

    step: int
    action: str  # SKIP, LOWER or ROLL_BACK
    reason: str  # "loss" if the loss is not finite, otherwise "gradient"
    to: int | None  # of ROLL_BACK: the step whose checkpoint is loaded; None if there is none


def clip_(gradients: Sequence[Tensor], largest: float) -> float:
    """Scale gradients in place so that their norm is at most `largest`; returns the norm before: the worked example."""
    norm = torch.stack([g.float().square().sum() for g in gradients]).sum().sqrt().item()
    for g in gradients:
        g.mul_(min(1.0, largest / norm) if norm > 0 else 1.0)
    return norm


class LossScaler:
    """Dynamic loss scaling. `scale` is S; `good` counts good steps since S last changed."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.scale, self.good = init_scale, 0
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval

    def scaled(self, loss: Tensor) -> Tensor:
        """What to call backward() on (given)."""
        return loss * self.scale

    def unscale_(self, gradients: Sequence[Tensor], group=None) -> bool:
        """Task 16.7. Divide the gradients by S, in place. Returns whether all are finite, on all ranks of the group.

        One collective of one number at most; none without a group. Every rank gets the same answer.
        """
        ### BEGIN SOLUTION 16.7 unscale
        bad = torch.zeros(())
        for g in gradients:
            g.mul_(1.0 / self.scale)
            bad = torch.maximum(bad, (~g.isfinite()).any().float().cpu())  # 1: this one is spoilt
        if group is not None:
            bad = group.all_reduce(bad, op="max")
        return bad.item() == 0.0
        ### END SOLUTION

    def update(self, finite: bool) -> None:
        """Task 16.7. At the end of a step: find the next S, as torch does: a float32. torch's own GradScaler is
        refused."""
        ### BEGIN SOLUTION 16.7 the next scale
        if not finite:
            self.scale, self.good = self.scale * self.backoff_factor, 0
            self.scale = torch.tensor(self.scale).item()  # a float32
            return
        self.good += 1
        if self.good == self.growth_interval:
            grown = torch.tensor(self.scale * self.growth_factor, dtype=torch.float32)
            self.scale = grown.item() if grown.isfinite() else self.scale
            self.good = 0
        ### END SOLUTION


class Recovery:
    """What a run does after each step, and the log of it.

    lower_after     the k-th bad step in a row, and further ones, lower the rate as well
    rollback_after  the k-th bad step in a row rolls back; then counting begins anew
    factor          what the rate is multiplied by when it is lowered, and when the run rolls back

    rate  the learning rate's multiplier;  log  the events
    """

    def __init__(self, lower_after: int = 2, rollback_after: int = 4, factor: float = 0.5) -> None:
        self.lower_after, self.rollback_after, self.factor = lower_after, rollback_after, factor
        self.rate, self.log = 1.0, list[Event]()
        self.in_row = 0  # bad steps
        self.checkpoint: int | None = None  # the step of the last one that may be trusted

    def saved(self, step: int) -> None:
        """A checkpoint was written after this step. One from the midst of bad steps is not to be trusted (given)."""
        if self.in_row == 0:
            self.checkpoint = step

    def after(self, step: int, loss: float, finite: bool) -> str:
        """Task 16.7. What to do with this step: STEP (let the optimizer go), SKIP, LOWER or ROLL_BACK.

        loss: this step's; a loss that is not finite is a bad step as well. finite: whether all gradients are, on all
        ranks. LOWER and ROLL_BACK do not let the optimizer go either, and change `rate`. Every bad step is logged.
        """
        ### BEGIN SOLUTION 16.7 recover
        loss_is_bad = not torch.tensor(loss).isfinite().item()
        if finite and not loss_is_bad:
            self.in_row = 0
            return STEP
        self.in_row += 1
        action, to = SKIP, None
        if self.in_row >= self.rollback_after:
            action, to, self.in_row = ROLL_BACK, self.checkpoint, 0
        elif self.in_row >= self.lower_after:
            action = LOWER
        if action != SKIP:
            self.rate *= self.factor
        self.log.append(Event(step, action, "loss" if loss_is_bad else "gradient", to))
        return action
        ### END SOLUTION
