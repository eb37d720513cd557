"""The rules that judge the training itself: its loss, its gradient, its learning rate, its weights. labkit.watch.alarms
says what holds of every rule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from labkit.watch import past
from labkit.watch.folder import Record
from labkit.watch.ring import KNOWN, REARM, WARMUP, WINDOW, Alarm, Rule

SPIKE, SPIKE_SIGMAS = 4.0, 8.0  # times the usual, and of the usual scatter
OFTEN, LATELY, HUGE = 3, 8, 64.0  # steps, of so many; times the usual, for one step alone
LOSS, LOSS_SIGMAS, LOSS_OFTEN, LOSS_LATELY = 1.03, 4.0, 2, 3  # times; usual scatters; steps, of so many
RATE = 2.5  # times the highest learning rate so far
NORMS, MOVED, MOVED_SIGMAS = 12, 0.4, 5.0  # looks at the weights' norm; of the usual change; of its scatter
EVALS, LITTLE, HIGH_RATE = 6, 1e-3, 0.3  # held-out losses; a share of the loss; of the largest learning rate so far


def gradient_spike(record: Record, begin: int) -> Iterator[Alarm]:
    """|g| beyond SPIKE times the median of the WINDOW steps before, and beyond SPIKE_SIGMAS of their scatter (in log2),
    in OFTEN of the last LATELY steps; or beyond HUGE times at once. A single odd batch of a healthy run gives a norm of
    eight times the usual, and nothing follows. A norm that is not finite is the events' to tell."""
    norm = past.log2(record["grad_norm"])
    first = max(0, begin - REARM)
    reach = max(0, first - LATELY + 1)
    usual, scatter, known = past.usual(norm, reach, WINDOW)
    with np.errstate(invalid="ignore"):
        above = norm[reach:] - usual
        odd = (known >= WARMUP) & (above > np.log2(SPIKE)) & (above > SPIKE_SIGMAS * scatter)
        often = sliding_window_view(np.pad(odd, (LATELY, 0)), LATELY)[1:].sum(1) >= OFTEN
        rings = odd & (often | (above > np.log2(HUGE)))
    for row in past.onsets(rings[first - reach :], first, begin, REARM):
        was, now = 2 ** usual[row - reach], 2 ** norm[row]
        lately = int(odd[max(0, row - reach - LATELY + 1) : row - reach + 1].sum())
        times = f", as in {lately} of the last {LATELY} steps" if lately > 1 else ""
        told = f"the gradient's norm is {now:.3g}, {now / was:.1f} times the median of the {WINDOW} steps before"
        yield Alarm("gradient spike", int(record["step"][row]), f"{told} ({was:.3g}){times}")


def loss_spike(record: Record, begin: int) -> Iterator[Alarm]:
    """The training loss is LOSS times the median of the WINDOW steps before, and LOSS_SIGMAS of their scatter (in log2)
    above it, in LOSS_OFTEN of the last LOSS_LATELY steps; or half as many sigmas more at once. It is known before
    anything else is: the loss is computed first."""
    loss = past.log2(record["loss"])
    first = max(0, begin - REARM)
    reach = max(0, first - LOSS_LATELY + 1)
    usual, scatter, known = past.usual(loss, reach, WINDOW)
    with np.errstate(invalid="ignore"):
        above = loss[reach:] - usual
        odd = (known >= WARMUP) & (above > np.log2(LOSS)) & (above > LOSS_SIGMAS * scatter)
        often = sliding_window_view(np.pad(odd, (LOSS_LATELY, 0)), LOSS_LATELY)[1:].sum(1) >= LOSS_OFTEN
        rings = odd & (often | (above > 1.5 * LOSS_SIGMAS * scatter))
    for row in past.onsets(rings[first - reach :], first, begin, REARM):
        was, now = 2 ** usual[row - reach], 2 ** loss[row]
        sigmas = above[row - reach] / scatter[row - reach] if scatter[row - reach] else np.inf
        told = f"the loss is {now:.4g}, {sigmas:.0f} times the usual scatter above the median of the {WINDOW} steps"
        yield Alarm("loss spike", int(record["step"][row]), f"{told} before ({was:.4g})")


def rate_jump(record: Record, begin: int) -> Iterator[Alarm]:
    """The learning rate is RATE times the highest that there was, after at least WARMUP steps. No schedule does that: a
    restart goes back to the peak, and a warm-up climbs by little steps."""
    rate = record["lr"]
    first = max(WARMUP, begin - REARM)
    if len(rate) <= first:
        return
    before = np.fmax.accumulate(np.append(np.fmax.reduce(rate[:first], initial=-np.inf), rate[first:-1]))
    with np.errstate(invalid="ignore"):
        rings = (before > 0) & (rate[first:] > RATE * before)
    for row in past.onsets(rings, first, begin, REARM):
        now, was = rate[row], before[row - first]
        told = f"the learning rate is {now:.3g}, {now / was:.1f} times the highest before ({was:.3g})"
        yield Alarm("learning rate", int(record["step"][row]), f"{told}: is that the schedule?")


def weights_run_away(record: Record, begin: int) -> Iterator[Alarm]:
    """From one look at the weights' norm to the next its change is off by MOVED of the usual change in the NORMS looks
    before, and by MOVED_SIGMAS of that one's scatter; and so it is for its learning rate. So something else than the
    optimizer moves the weights, or its steps all go one way. A learning rate below HIGH_RATE of its peak leaves next to
    no change, and nothing is judged."""
    norm = record["param_norm"]
    rows = np.flatnonzero(~np.isnan(norm))
    start = int(np.searchsorted(rows, begin))
    first = max(0, start - REARM)
    reach = max(0, first - NORMS - 1)
    some = rows[reach:]
    if len(some) < 2:
        return
    change = np.diff(past.log2(norm[some]), prepend=np.nan) / np.diff(record["step"][some], prepend=np.nan)
    off = np.full(len(rows) - first, np.inf)
    rings = np.ones(len(off), bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        for moved in (change, change / record["lr"][some]):
            usual, scatter, known = past.usual(moved, first - reach, NORMS)
            far = np.abs(moved[first - reach :] - usual)
            off = np.fmin(off, far / np.abs(usual))
            rings &= (known >= KNOWN) & (far > MOVED * np.abs(usual)) & (far > MOVED_SIGMAS * scatter)
        rings &= (record["lr"] >= HIGH_RATE * np.fmax.accumulate(record["lr"]))[rows[first:]]
    for j in past.onsets(rings, first, start, REARM):
        row = rows[j]
        told = f"the norm of the weights went to {norm[row]:.4g}: its change is off by {off[j - first]:.0%} of"
        yield Alarm("weights", int(record["step"][row]), f"{told} the usual in the {NORMS} looks before")


def plateau(record: Record, begin: int) -> Iterator[Alarm]:
    """At an evaluation: the best of the last EVALS held-out losses is not LITTLE below the best of the EVALS before,
    the median gradient norm did not fall either, and the learning rate is still at least HIGH_RATE of its peak: so the
    run does not simply end."""
    heldout, norm, rate, steps = record["heldout"], record["grad_norm"], record["lr"], record["step"]
    rows = np.flatnonzero(~np.isnan(heldout))
    start = int(np.searchsorted(rows, begin))
    first = max(2 * EVALS - 1, start - REARM)
    found: dict[int, str] = {}
    for j in range(first, len(rows)):
        old, new = rows[j - 2 * EVALS + 1 : j - EVALS + 1], rows[j - EVALS + 1 : j + 1]
        was, now = np.fmin.reduce(heldout[old]), np.fmin.reduce(heldout[new])
        norm_was, norm_now = past.median(norm[old[0] : old[-1] + 1]), past.median(norm[old[-1] + 1 : new[-1] + 1])
        ending = rate[new[-1]] < HIGH_RATE * np.fmax.reduce(rate[: new[-1] + 1], initial=-np.inf)
        if now > was * (1 - LITTLE) and norm_now >= norm_was and not ending:
            found[j] = (
                f"the held-out loss was {was:.4f} at best up to step {steps[old[-1]]:.0f}, and {now:.4f} in the "
                f"{EVALS} evaluations since; the gradient's norm did not fall either ({norm_was:.3g}, then "
                f"{norm_now:.3g}): is the learning rate too high?"
            )
    rings = np.isin(np.arange(first, max(first, len(rows))), list(found))
    for j in past.onsets(rings, first, start, REARM):
        yield Alarm("plateau", int(steps[rows[j]]), found[j])


OF_TRAINING: tuple[Rule, ...] = (loss_spike, gradient_spike, rate_jump, weights_run_away, plateau)
