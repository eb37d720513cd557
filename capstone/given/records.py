"""A run's record as the alarms of C.4 read it, and what an alarm is.

Legend: S step lines, P probes (steps at which the FP8 scales were looked at), T tensors, R ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Run(NamedTuple):
    """A run's record up to now; fp32 all of it, but `probe_P`.

    loss_S      of the batch, before the step's update
    norm_S      of the whole gradient, before clipping
    probe_P     int64: the row, of S, in which each probe was made; ascending, evenly spaced
    weight_P    norm of all weights
    scale_PT    what a tensor was multiplied by
    amax_PT     its largest |x|
    over_PT     of its values, the share that saturated, 0 to 1
    under_PT    of its values that were not 0, the share that became 0
    work_SR     seconds of a rank's own work in a step, without those in which it waited for others; [S, 0] where that
                was not recorded

    What was not recorded is NaN; a loss or norm that is no number is NaN or infinite.
    """

    loss_S: Tensor
    norm_S: Tensor
    probe_P: Tensor
    weight_P: Tensor
    scale_PT: Tensor
    amax_PT: Tensor
    over_PT: Tensor
    under_PT: Tensor
    work_SR: Tensor


class Alarm(NamedTuple):
    """What rang: at which row of S, why, and which rank it is about, if it is about one."""

    row: int
    why: str
    rank: int | None = None


def cut(run: Run, rows: int) -> Run:
    """The record as it was after its first `rows` step lines."""
    probes = int(torch.searchsorted(run.probe_P, rows))
    curves = [run.loss_S[:rows], run.norm_S[:rows]]
    tables = [table[:probes] for table in run[2:8]]
    return Run(*(x.clone() for x in (*curves, *tables, run.work_SR[:rows])))
