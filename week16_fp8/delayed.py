"""Delayed scaling: this step's scale from the amaxes of the steps before (task 16.3).

Current scaling reads a tensor twice: once for its amax, once to round it. On a GPU both are memory traffic, and the
second has to wait for the first. Delayed scaling (Transformer Engine's `DelayedScaling`) rounds with a scale that is
known before the tensor is, and notes the amax on the way out, for later:

    step t     round with scale(t);  note amax(t)
    after it   history: amax(t), amax(t-1), ..., amax(t-H+1)
               scale(t+1) = largest / (2^margin * chosen)      chosen: the history's maximum ("max"), or amax(t)
               ("most_recent")

What follows from that, and what prediction 3 asks for:

  - **The first step is blind.** No amax is known: the scale is 1.
  - **A growing tensor saturates.** Its amax is always newer than its scale. `margin` is head room for that.
  - **An outlier is remembered.** Which steps pay for it, and how, in which algorithm? Write down scale(t) for a few.

Ranks. The weights are equal on all ranks, the data are not: neither are the amaxes. Scales must be equal (the parts of
one tensor will be added, gathered, compared), so amaxes are reduced over the ranks, by maximum, all tensors in one
message.

NaN. A maximum that meets a NaN may return a number (over gloo it can: max(NaN, 3) depends on who stands left), so one
rank's NaN gets lost on the way, or arrives on some ranks only. All ranks must come to know of it, in the same message,
and by something that no maximum loses. Such an amax tells nothing: an entry that is infinite or NaN on any rank enters
the history as 0. One rank's 0 is no such thing, the others' maximum counts. Where the chosen amax is 0 the scale stays
what it was.

Legend: T tensors, H length of the history; amax_T, history_HT, scale_T, all fp32 on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from week16_fp8 import scaling

ALGORITHMS = ("max", "most_recent")


def mean_loss(loss: Tensor, group) -> Tensor:
    """The mean of a scalar loss over the ranks, the same on each: the worked example of a reduction over a group."""
    return group.all_reduce(loss.clone(), op="mean")


def reduce_amax(amax_T: Tensor, group) -> Tensor:
    """Task 16.3. The maximum of each amax over the ranks; NaN, on every rank, where some rank's is infinite or NaN.

    Args:
        amax_T: fp32 [T] of this rank, at least 0. It is left alone.
        group: the ranks; `all_reduce(tensor, op=...)` is allowed: one call, of at most 2 T numbers.

    Returns:
        fp32 [T], the same on all ranks.
    """
    ### BEGIN SOLUTION 16.3 reduce the amaxes
    bad_T = (~amax_T.isfinite()).float()
    both = group.all_reduce(torch.cat([torch.where(bad_T > 0, 0.0, amax_T), bad_T]), op="max")  # [2T]
    most_T, bad_T = both.tensor_split(2)
    return torch.where(bad_T > 0, torch.nan, most_T)
    ### END SOLUTION


class DelayedScaling:
    """The scales of T tensors of one format.

    scale_T     what to round this step's tensors with; 1 before the first `update`
    history_HT  past amaxes, the newest first; 0 where there is none yet
    """

    def __init__(self, T: int, fmt: str, *, length: int = 16, algorithm: str = "max", margin: int = 0) -> None:
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}")
        self.fmt, self.algorithm, self.margin = fmt, algorithm, margin
        self.scale_T = torch.ones(T)
        self.history_HT = torch.zeros(length, T)

    def update(self, amax_T: Tensor, group=None) -> None:
        """Task 16.3. At the end of a step: take in its amaxes, and find the scales of the next one.

        amax_T: fp32 [T] of this rank, whatever came (0, infinity and NaN too). With a group it is reduced over the
        ranks first; the scales are then the same everywhere.
        """
        ### BEGIN SOLUTION 16.3 update the scales
        if group is not None:
            amax_T = reduce_amax(amax_T, group)
        newest_T = torch.where(amax_T.isfinite(), amax_T, 0.0)
        self.history_HT = torch.cat([newest_T[None], self.history_HT[:-1]])  # the oldest leaves
        chosen_T = self.history_HT.amax(0) if self.algorithm == "max" else newest_T
        found_T = torch.from_numpy(scaling.scale_from_amax(chosen_T.numpy(), self.fmt, margin=self.margin))
        self.scale_T = torch.where(chosen_T > 0, found_T, self.scale_T)  # nothing known: as it was
        ### END SOLUTION
