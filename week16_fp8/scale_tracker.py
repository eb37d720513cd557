"""Watching scales over a training run, and alarms (task 16.8).

A run that will become NaN often says so before. What can be seen of a tensor at each step, nearly for free, is

    scale       what it was multiplied by
    amax        its largest |x|
    overflow    of all its values, the share that saturates
    underflow   of its values that are not 0, the share that becomes 0

and the folklore is: "a sudden drop of a scale announces a NaN". That is a hypothesis. With delayed scaling an outlier
saturates at its own step, and its scale falls one step *later*, when the harm is done; a slow blow-up moves the scale a
little at every step, and never suddenly; and a scale that *rises* without end (a block of nearly zeros, and no epsilon)
announces 0 * inf. `Falling` below is the folklore as a rule. Test it on the recorded runs before you write your own.

An alarm that always rings finds every fault. So three numbers are asked of yours, on recorded runs of a small network
in FP8, some healthy, some with one of four faults put in at a step that you do not know:

    rate        the learning rate is 10 times as large from that step on
    outlier     one batch has inputs that are far too large
    growth      the weights of one layer grow by a few per cent at each step
    epsilon     gradients fade out, and nothing keeps their scale from following them

    precision   0.8     of the runs in which it rings, the share that rang at the fault: not before, not in healthy runs
    recall      0.75    of the runs with a fault, the share in which it rings in time: not before the fault, and before
                        the loss has gone; where the loss survives, within 20 steps
    lead time   10      steps from the alarm until the loss is no number any more, or 10 times what it was: the median
                        of the runs with slow growth

data/tuning.npz holds runs to tune on. data/held-out.npz decides at home: runs of other seeds, sizes and strengths, drawn
three times; each time gives a third of the points. In grading runs decide that you do not have, made as those. Whoever
tunes on the held-out runs has a rule for 24 runs, and nothing left to tell how good it is. Two traps:
thresholds in absolute numbers (another model has other amaxes: in the checks every tensor comes in other units, a
factor of its own on its amax, and its scale accordingly), and the first steps of a run, in which everything moves. No
run comes as it was recorded: steps before the fault are missing, and every number is a few per cent off.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from week16_fp8.formats import FORMATS


class Stat(NamedTuple):
    """One tensor at one step."""

    scale: float
    amax: float
    overflow: float  # 0 to 1
    underflow: float  # 0 to 1


class Falling:
    """The folklore: ring when a scale falls to a quarter of what it was one step before. The worked example."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def see(self, scale_T: Tensor, amax_T: Tensor, overflow_T: Tensor, underflow_T: Tensor) -> bool:
        rings = self.before is not None and bool((scale_T < self.before / 4).any())
        self.before = scale_T
        return rings


def measure(x: Tensor, scale: float, fmt: str) -> Stat:
    """Task 16.8. What rounding x * scale to `fmt` does to it, without rounding it.

    Args:
        x: any shape and floating dtype, at least one value. A NaN makes amax NaN. It neither saturates nor becomes 0,
            and is one of the values that are not 0.

    Returns:
        Stat. A value beyond the largest saturates. One of half the smallest subnormal becomes 0: half way goes to the
        even mantissa. underflow is 0 if all values are 0.
    """
    ### BEGIN SOLUTION 16.8 measure a tensor
    f, size = FORMATS[fmt], x.detach().float().abs()
    y = size.double() * scale
    some = max(1, int((size != 0).sum()))
    overflow = (y > f.largest).double().mean().item()
    underflow = ((size != 0) & (y <= f.smallest_subnormal / 2)).sum().item() / some
    return Stat(scale, size.max().item(), overflow, underflow)
    ### END SOLUTION


class Alarm:
    """Task 16.8. Yours: `see` is called once a step, with numbers of that step alone; what it remembers is its own."""

    ### BEGIN SOLUTION 16.8 an alarm
    def __init__(self) -> None:
        self.window, self.warmup = 24, 16  # steps: what "usual" means, and how many must be known
        self.past: list[Tensor] = []  # log2 amax of each step, [T]

    def see(self, scale_T: Tensor, amax_T: Tensor, overflow_T: Tensor, underflow_T: Tensor) -> bool:
        """[T] numbers of this step's tensors, fp32; infinities and NaN are possible. Returns whether to ring."""
        if not bool(amax_T.isfinite().all() and scale_T.isfinite().all()):
            return True
        now_T = amax_T.clamp(min=1e-30).log2()  # a factor of units is a term that cancels
        self.past.append(now_T)
        if len(self.past) <= self.warmup:
            return False
        before_ST = torch.stack(self.past[-1 - self.window : -1])
        usual_T = before_ST.median(0).values
        spread_T = (before_ST - usual_T).abs().median(0).values
        # How unusual, in the tensor's own spread; 0.05 is for weights, which hardly move.
        z_T = (now_T - usual_T) / (spread_T + 0.05)
        first, second = z_T.abs().topk(2).values.tolist()
        return first > 8 or second > 6  # one far out, or two at the same step

    ### END SOLUTION
