"""The rules that judge the training itself: its loss, gradient, learning rate and weights (see labkit.watch.alarms)."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from labkit.watch import past
from labkit.watch.folder import Record
from labkit.watch.past import KNOWN, REARM, WARMUP, WINDOW, Alarm, Rule


class Limits(NamedTuple):
    """A value is odd so many `times` the usual and `sigmas` (in log2) above it; it rings where `often` of `lately` are."""

    times: float
    sigmas: float
    often: int
    lately: int
    at_once: float
    at_once_sigmas: float


# A single odd batch of a healthy run gives a gradient of eight times the usual norm, and nothing follows.
GRADIENT = Limits(times=4.0, sigmas=8.0, often=3, lately=8, at_once=64.0, at_once_sigmas=8.0)
LOSS = Limits(times=1.03, sigmas=4.0, often=2, lately=3, at_once=1.03, at_once_sigmas=6.0)
RATE = 2.5  # times the highest learning rate so far
NORMS, MOVED, MOVED_SIGMAS = 12, 0.4, 5.0  # norms of the weights; of the usual change; of its standard deviation
EVALS, LITTLE, HIGH_RATE = 6, 1e-3, 0.3  # held-out losses; a share of the loss; of the largest learning rate so far


def find_spikes(record: Record, begin: int, field: str, limits: Limits) -> Iterator[tuple]:
    """Yield where a column is far above the WINDOW steps before: (row, value, their median, sigmas above, odd rows)."""
    values = past.log2(record[field])
    first = max(0, begin - REARM)
    reach = max(0, first - limits.lately + 1)
    usual, deviation, known = past.usual(values, reach, WINDOW)
    with np.errstate(invalid="ignore"):
        above = values[reach:] - usual
        odd = (known >= WARMUP) & (above > np.log2(limits.times)) & (above > limits.sigmas * deviation)
        lately = sliding_window_view(np.pad(odd, (limits.lately, 0)), limits.lately)[1:].sum(1)
        far = (above > np.log2(limits.at_once)) & (above > limits.at_once_sigmas * deviation)
        rings = odd & ((lately >= limits.often) | far)
    for row in past.onsets(rings[first - reach :], first, begin):
        at = row - reach
        sigmas = above[at] / deviation[at] if deviation[at] else np.inf
        yield row, 2 ** values[row], 2 ** usual[at], sigmas, int(lately[at])


def gradient_spike(record: Record, begin: int) -> Iterator[Alarm]:
    """The gradient's norm is far above that of the steps before, several times or enormously."""
    # A norm that is not finite is an event of its own: labkit.watch.alarms.loud_events.
    for row, now, was, _, lately in find_spikes(record, begin, "grad_norm", GRADIENT):
        times = f", as in {lately} of the last {GRADIENT.lately} steps" if lately > 1 else ""
        reason = f"the gradient's norm is {now:.3g}, {now / was:.1f} times the median of the {WINDOW} steps before"
        yield Alarm("gradient spike", int(record["step"][row]), f"{reason} ({was:.3g}){times}")


def loss_spike(record: Record, begin: int) -> Iterator[Alarm]:
    """The training loss is far above that of the steps before, twice or far."""
    # It is known before anything else is: the loss is computed first.
    for row, now, was, sigmas, _ in find_spikes(record, begin, "loss", LOSS):
        reason = f"the loss is {now:.4g}, {sigmas:.0f} standard deviations above the median of the {WINDOW} steps"
        yield Alarm("loss spike", int(record["step"][row]), f"{reason} before ({was:.4g})")


def rate_jump(record: Record, begin: int) -> Iterator[Alarm]:
    """The learning rate is RATE times the highest that there was, after at least WARMUP steps."""
    # No schedule does that: a restart goes back to the peak, and a warm-up climbs by little steps.
    rate = record["lr"]
    first = max(WARMUP, begin - REARM)
    if len(rate) <= first:
        return
    before = np.fmax.accumulate(np.append(np.fmax.reduce(rate[:first], initial=-np.inf), rate[first:-1]))
    with np.errstate(invalid="ignore"):
        rings = (before > 0) & (rate[first:] > RATE * before)
    for row in past.onsets(rings, first, begin):
        now, was = rate[row], before[row - first]
        reason = f"the learning rate is {now:.3g}, {now / was:.1f} times the highest before ({was:.3g})"
        yield Alarm("learning rate", int(record["step"][row]), f"{reason}: is that the schedule?")


def weights_run_away(record: Record, begin: int) -> Iterator[Alarm]:
    """The change of the weights' norm, also over the learning rate, is off by MOVED of the usual and MOVED_SIGMAS."""
    # So something else than the optimizer moves the weights, or its steps all go one way. A learning rate below
    # HIGH_RATE of its peak leaves next to no change, and nothing is judged.
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
            usual, deviation, known = past.usual(moved, first - reach, NORMS)
            far = np.abs(moved[first - reach :] - usual)
            off = np.fmin(off, far / np.abs(usual))
            rings &= (known >= KNOWN) & (far > MOVED * np.abs(usual)) & (far > MOVED_SIGMAS * deviation)
        rings &= (record["lr"] >= HIGH_RATE * np.fmax.accumulate(record["lr"]))[rows[first:]]
    for j in past.onsets(rings, first, start):
        reason = f"the norm of the weights went to {norm[rows[j]]:.4g}: its change is off by {off[j - first]:.0%} of"
        yield Alarm("weights", int(record["step"][rows[j]]), f"{reason} the usual in the {NORMS} norms before")


def plateau(record: Record, begin: int) -> Iterator[Alarm]:
    """The best of the last EVALS val_losses is not LITTLE below those before, at no falling gradient and a high rate."""
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
    for j in past.onsets(rings, first, start):
        yield Alarm("plateau", int(steps[rows[j]]), found[j])


OF_TRAINING: tuple[Rule, ...] = (loss_spike, gradient_spike, rate_jump, weights_run_away, plateau)
