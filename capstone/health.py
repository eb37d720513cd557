"""Alarms over a run's record: what to ring for, and what not (task C.4).

A training of a week is looked at by nobody most of the time. `lab watch RUN --mine` shows its page, and rings by what
you write here. Three numbers say what an alarm is worth, and each alone is cheap:

    precision   0.85    of the runs in which it rings, the share that rang for a fault. Always silent: no false alarm.
    recall      0.75    of the runs with a fault, the share in which it rang in time: not before the fault, and before
                        the harm is done, or within 12 rows where that comes sooner. Always ringing: all of them.
    lead time   10      rows from the alarm until the harm is done: the median where weights grow slowly. An alarm that
                        comes with the harm is a message of condolence.

The harm is done when the held-out loss is 2 % above that of the same run without the fault. The first alarm of a run
counts: it is the one that gets somebody out of bed, who then looks, finds nothing and goes back to sleep.

**What is usual?** Losses, norms and amaxes differ from model to model by orders of magnitude, and drift while a healthy
run learns. So a number is compared with the same quantity a few dozen rows before, in units of how much it scattered
there:

    z = (log2 x - median) / (1.4826 * median |log2 x - median| + floor)

Logarithms, because a norm that doubles matters the same at 0.1 and at 10. Medians, because the mean and the standard
deviation contain the outlier that is looked for: of 24 values, one that is off by any amount whatever is at most
sqrt(23) = 4.8 standard deviations from their mean. 1.4826 makes it the standard deviation of normal noise. And a floor,
because a weight's amax hardly moves in 24 probes, and a scatter of nearly nothing makes everything an event.

**How far is far?** Normal noise passes 4 sigma once in 30,000 looks. A run of 300 steps with 2 curves and 150 probes of
12 tensors is looked at 2,400 times; one of 100,000 steps a million times. And is the noise normal? Prediction 3 asks.
Two ways to be sure without being late: a threshold beyond what healthy runs ever show (`data/lab.npz` holds some: look
at their largest z), and *evidence that adds up*. One tensor at 5 sigma is an odd batch; five tensors at 5 sigma in two
probes in a row are not.

**Which number knows what?** The loss of a batch is there before anything else of its step, and scatters little. A norm
of a gradient scatters much. What saturates is zero in a healthy FP8 run with scales that follow, and no noise makes it
one per cent. And the weights: AdamW's steps are of one size, so their norm changes at a speed that hardly varies from
probe to probe (|log2 w[p] - log2 w[p-1]|, itself a number with a usual value). Look at each on the lab's runs, healthy
and not, before you trust it; the lab has few runs, so leave room between what they show and your threshold.

**Causal.** An alarm at row s may depend on rows up to s, and on nothing after. On a finished record that is easily
lost: a centred window, a normalisation by the run's own mean, a threshold at its 99th percentile all look ahead, ring
beautifully early, and cannot be had live. The check lets you see a run to its end, and then only up to your alarm.

**Ranks.** In a synchronous training all steps take the same time on all ranks, since the fast ones wait. What shows is
each rank's own work (`work_SR`). Compare a rank with the *others in the same step*: when a machine gives all of them
less, nobody is slow. A rank that hiccups once is no slow rank either; one that takes 1.3 times as long in step after
step costs 30 % of the whole machine.

What differs between this and 16.8: there, one rule over scales; here all of a run's record, ranks by name, and the
faults of the check are of kinds and strengths that you have not seen. A rule that knows what a learning rate ten times
too large looks like finds just that; one that knows what *usual* looks like finds the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capstone.given.records import Alarm, Run

SIGMA = 1.4826  # a normal distribution's standard deviation, over its median absolute deviation


def before(x_SN: Tensor, width: int) -> Tensor:
    """For each row the `width` rows before it, NaN where there were none: [S, N, width] (given: the worked example of
    looking back and not ahead). Row s holds x[s - width], ..., x[s - 1]: never x[s]."""
    padded = torch.cat([torch.full((width, x_SN.shape[1]), torch.nan, dtype=x_SN.dtype), x_SN])
    return padded.unfold(0, width, 1)[: len(x_SN)]


def median(x: Tensor) -> Tensor:
    """Over the last dimension, NaN left out; the mean of the middle two of an even number (given)."""
    return (x.nanmedian(-1).values - (-x).nanmedian(-1).values) / 2


def not_finite(run: Run) -> list[Alarm]:
    """Ring at the first row whose loss or norm is no number (given: a rule, and the last resort)."""
    rows = (~(run.loss_S.isfinite() & run.norm_S.isfinite())).nonzero().flatten().tolist()
    return [Alarm(rows[0], "loss or gradient is no number")] if rows else []


def unusual(x_SN: Tensor, width: int, known: int, floor: float) -> Tensor:
    """Task C.4. How far each value is from what was usual in the `width` rows before: z [S, N], fp64.

    Args:
        x_SN: positive where it was recorded. NaN, infinities, zeros and negative values are not looked at.
        width: rows, of S, that say what is usual; the row itself is none of them.
        known: so many of them at least must have been recorded, for a value to be judged.
        floor: added to the scatter, in log2.

    Returns:
        z as in the module's head, with log2 of x, median and scatter of column n over the rows before. 0 where there is
        nothing to judge, or too little to judge by. The median of an even number of values is the mean of the middle
        two.
    """
    ### BEGIN SOLUTION C.4 how unusual
    fine = x_SN.isfinite() & (x_SN > 0)
    log_SN = torch.where(fine, x_SN.double(), 1.0).log2().where(fine, torch.nan)
    past_SNW = before(log_SN, width)
    usual_SN = median(past_SNW)
    scatter_SN = SIGMA * median((past_SNW - usual_SN[..., None]).abs())
    z_SN = (log_SN - usual_SN) / (scatter_SN + floor)
    enough_SN = (~past_SNW.isnan()).sum(-1) >= known
    return torch.where(fine & enough_SN, z_SN, 0.0)
    ### END SOLUTION


def slow_ranks(work_SR: Tensor) -> list[Alarm]:
    """Task C.4. Ring, by its number, for a rank that takes longer than it used to, measured by the others.

    It must ring within 32 rows after a rank began to take 1.4 times as long or more, once 64 rows are there to compare
    with. It must not ring for noise, for some long steps of a rank (four in a dozen, say), for all ranks slower at
    once, or for a rank that has had more to do from the beginning (the last stage of a pipeline has the head). One
    alarm for each slow rank, when it begins. Causal, as `alarms`. There are at least two ranks, and no NaN.
    """
    ### BEGIN SOLUTION C.4 slow ranks
    used_to, lately, slower = 48, 20, 0.32  # rows; rows; log2 of times
    rows, R = work_SR.shape
    if rows < used_to + lately:
        return []
    log_SR = work_SR.double().log2()
    others_SRR = log_SR[:, None].masked_fill(torch.eye(R, dtype=torch.bool), torch.nan)  # [S, of rank, all but it]
    share_SR = log_SR - median(others_SRR)
    windows_NRW = share_SR.unfold(0, used_to + lately, 1)  # N of them, the first of which ends at row `last`
    last = used_to + lately - 1
    usual_NR, now_NR = median(windows_NRW[..., :used_to]), median(windows_NRW[..., used_to:])
    slow_NR = now_NR - usual_NR > slower
    begins = [(int(slow_N.nonzero()[0]), rank) for rank, slow_N in enumerate(slow_NR.T) if slow_N.any()]
    return [Alarm(n + last, "works longer than it used to", rank) for n, rank in sorted(begins)]
    ### END SOLUTION


def alarms(run: Run) -> list[Alarm]:
    """Task C.4. What rings on this record, in the order of rows. Causal: what rings at row s would have rung when the
    record ended there.

    A fault of a rank is reported with its number; `rank` is None for all else. All that rings is reported, not the first
    alone. An empty record rings nothing; one without probes, or of one rank, is judged by the rest.
    """
    ### BEGIN SOLUTION C.4 the alarms
    found = not_finite(run)
    if run.work_SR.shape[1] > 1:
        found += slow_ranks(run.work_SR)
    # An odd batch of a healthy run has an odd gradient, and a loss nearly like any other.
    loss_S = unusual(run.loss_S[:, None], width=48, known=24, floor=0.05)[:, 0]
    # A gradient's norm does, now and then; not again and again.
    found += first((loss_S > 4).nonzero(), "the loss jumped")
    if len(run.probe_P) > 1:
        # How fast the weights' norm changes hardly varies from probe to probe: an optimizer takes steps of one size.
        speed_P = run.weight_P.double().log2().diff().abs()
        moved_P = unusual(speed_P[:, None], width=12, known=8, floor=0.15)[:, 0] > 2
        found += first(run.probe_P[1:][moved_P, None], "the weights move as they did not before")
        usual_PT = median(before(run.over_PT.double(), 24))
        saturates_P = ((run.over_PT - usual_PT).nan_to_num() > 0.01).any(1)
        found += first(run.probe_P[saturates_P, None], "more values saturate than before")
    return sorted(found)
    ### END SOLUTION


def first(rows: Tensor, why: str) -> list[Alarm]:
    """An alarm at the first of these rows [n, 1], if there is one (given)."""
    return [Alarm(int(rows[0, 0]), why)] if len(rows) else []
