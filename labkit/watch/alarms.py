"""When to ring: each rule is a pure function of a run's record, with the reason in one sentence.

    gradient spike, loss spike, learning rate, weights, plateau      they judge the training itself: learning.py
    scale collapse   a tensor's FP8 scale falls to a sixteenth of what it was, or runs away to 64 times
    underflow        more and more of a tensor's values become zero under its scale
    overflow         more of a tensor's values saturate than before
    slow rank        one rank works longer than the others, step after step
    throughput       tokens per second fell and stayed low
    not finite       the record's own events: a refused step, a way back, a failure
    silence          nothing written for too long, or the one who wrote is gone

Every rule is causal, reads a bounded number of rows back, and rings again only after `REARM` rows without its
condition. Thresholds are ratios to the run's own recent past; the first rows of a run ring nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from labkit.watch import past
from labkit.watch.folder import Record
from labkit.watch.learning import OF_TRAINING
from labkit.watch.past import KNOWN, REARM, WINDOW, Alarm, Rule

LARGEST = np.finfo(np.float32).max  # what the record holds in place of an infinite scale

PROBES = 8  # probes that tell what is usual of a scale
AT_ONCE, SCALE_SIGMAS = 1024.0, 6.0  # times, for one probe alone; standard deviations, for two
SHARES = 24  # and of a share of values: it rises slowly, and eight probes would rise with it
COLLAPSED, RAN_AWAY = 16.0, 64.0  # times, in two probes in a row
UNDERFLOW, OVERFLOW = 5.0, 1.0  # percentage points
SLOW, SLOW_STEPS, MOSTLY = 1.3, 16, 0.75  # times the median rank; steps; share of them
DROP, DROP_SIGMAS = 0.7, 1.5  # share of the usual rate; standard deviations of a step's
RECENT, BEFORE, BEFORE_AT_LEAST = 10, 100, 30  # steps
QUIET, QUIET_AT_LEAST = 20.0, 60.0  # usual steps; seconds

LOUD = ("nonfinite", "rolled back", "not rolled back", "stopped", "failed", "corrupt_checkpoint", "state_dropped")


def throughput_drop(record: Record, begin: int) -> Iterator[Alarm]:
    """The median rate of the last RECENT steps is below DROP of that of up to BEFORE steps before, by DROP_SIGMAS."""
    rate, step = past.log2(record["tokens_per_s"]), record["step"]
    first = max(0, begin - REARM)
    before = np.append(np.full(RECENT - 1, np.nan), rate)[: len(rate)]  # without the recent ones
    usual, deviation, known = past.usual(before, first, BEFORE)
    now = past.trailing(rate, first, RECENT)
    with np.errstate(invalid="ignore"):
        fell = (usual - now > -np.log2(DROP)) & (usual - now > DROP_SIGMAS * deviation)
        rings = (known >= BEFORE_AT_LEAST) & fell
    for row in past.onsets(rings, first, begin):
        is_, was = 2 ** now[row - first], 2 ** usual[row - first]
        reason = f"{is_:,.0f} tokens/s over the last {RECENT} steps, {is_ / was:.0%} of the {was:,.0f} before"
        yield Alarm("throughput", int(step[row]), reason)


# ---- rules over rows that stand in some step lines only


def slow_rank(record: Record, begin: int) -> Iterator[Alarm]:
    """One rank's own work takes SLOW times the median rank's or more, in MOSTLY of the last SLOW_STEPS rows."""
    seconds = record.ranks.values
    if seconds.shape[1] < 2:
        return
    first = max(0, begin - REARM)
    reach = max(0, first - SLOW_STEPS + 1)
    with np.errstate(invalid="ignore"):
        slow = seconds[reach:] >= SLOW * past.medians(seconds[reach:])[:, None]
    share = [past.trailing(rank.astype(float), first - reach, SLOW_STEPS, np.mean) for rank in slow.T]
    often: np.ndarray = np.array(share).T
    for row in past.onsets(np.any(often >= MOSTLY, axis=1), first, begin):
        rank = int(often[row - first].argmax())
        there = seconds[max(0, row - SLOW_STEPS + 1) : row + 1]
        own, others = past.median(there[:, rank]), past.median(np.delete(there, rank, 1))
        works = f"rank {record.ranks.names[rank]} works {own * 1e3:,.0f} ms a step"
        reason = f"{works}, and the others {others * 1e3:,.0f} ms: they wait for it"
        yield Alarm("slow rank", int(record.ranks.steps[row]), reason)


def scale_collapse(record: Record, begin: int) -> Iterator[Alarm]:
    """A scale is no positive number, off the median of the PROBES before in two probes in a row, or AT_ONCE times off."""
    # A scale that follows its tensor at once falls to a 24th for one odd batch of a healthy run, and is back at the
    # next. Those of attention's gradients vary by a factor of three all the time.
    sparse = record.scales["scale"]
    scale, first = sparse.values, max(0, begin - REARM)
    log, reach = past.log2(scale), max(0, first - 1)
    usual, _, known = past.usual(log, reach, PROBES)
    _, deviation, seen = past.usual(log, reach, SHARES)
    with np.errstate(invalid="ignore"):
        moved = np.where(known >= KNOWN, log[reach:] - usual, 0.0)
        void = ~np.isnan(scale[first:]) & ~((scale[first:] > 0) & (scale[first:] < LARGEST))
        far = (moved <= -np.log2(COLLAPSED)) | (moved >= np.log2(RAN_AWAY))
        calm = (seen >= SHARES) & (np.abs(moved) >= SCALE_SIGMAS * deviation)
        again = far & np.vstack([np.zeros((1, far.shape[1]), bool), far[:-1]]) | (np.abs(moved) >= np.log2(AT_ONCE))
        again &= calm
        far, moved, usual = (each[first - reach :] for each in (again, moved, usual))
    for row in past.onsets((void | far).any(1), first, begin):
        at = row - first
        badly = np.where(void[at], np.inf, np.where(far[at], np.abs(moved[at]), -np.inf))
        worst = int(badly.argmax())
        name, now, was = sparse.names[worst], scale[row, worst], 2 ** usual[at, worst]
        how = "is no scale" if void[at, worst] else f"was {was:.3g} in the probes before"
        reason = f"the scale of {name} is {now:.3g}, and {how}{_count_others((void | far)[at])}"
        yield Alarm("scale collapse", int(sparse.steps[row]), reason)


def rising(record: Record, begin: int, name: str, most: float, what: str, twice: bool) -> Iterator[Alarm]:
    """`most` percentage points more of a tensor's values saturate or become zero than before; twice: at a second rise."""
    sparse = record.scales[name]
    share, first = sparse.values, max(0, begin - REARM)
    usual, _, known = past.usual(share, first, SHARES)
    with np.errstate(invalid="ignore"):
        rings = (known >= KNOWN) & (share[first:] - usual >= most)
        if twice:
            padded = np.vstack([np.full((2, share.shape[1]), np.nan), share])
            rise = np.diff(padded, axis=0) > 0
            rings &= rise[first + 1 :] & rise[first:-1]
    for row in past.onsets(rings.any(1), first, begin):
        at = row - first
        worst = int(np.where(rings[at], share[row] - usual[at], -np.inf).argmax())
        now = f"{share[row, worst]:.1f} % of the values of {sparse.names[worst]} {what}"
        reason = f"{now}, and {usual[at, worst]:.1f} % in the probes before{_count_others(rings[at])}"
        yield Alarm(name, int(sparse.steps[row]), reason)


# ---- rules over events and the clock


def loud_events(record: Record, begin: int) -> Iterator[Alarm]:
    for event in record.events[begin:]:
        again = event.get("kind") == "nonfinite" and event.get("action") == "skip" and event.get("row") != 1
        if event.get("kind") in LOUD and not again:  # of a row of bad steps, the first, and what was done about it
            step = event.get("step")
            message = str(event.get("message", ""))
            kind = "not finite" if event["kind"] == "nonfinite" else str(event["kind"]).replace("_", " ")
            yield Alarm(kind, int(step) if isinstance(step, (int, float)) and step == step else None, message)


def silence(record: Record) -> Iterator[Alarm]:
    """A run that says it is running and nobody writes; or no line for QUIET usual steps and QUIET_AT_LEAST seconds."""
    if record.run.get("status") != "running":
        return
    if record.alive is False:
        yield Alarm("silence", None, "the run has no writer any more: it was killed, or its machine went down")
    elif record.silence is not None:
        usual = past.median(record["seconds"][-WINDOW:])
        patience = max(QUIET_AT_LEAST, QUIET * usual) if usual == usual else 10 * QUIET_AT_LEAST
        if record.silence > patience:
            after = f"; a step usually takes {usual:.2g} s" if usual == usual else ", not even a first step"
            yield Alarm("silence", None, f"nothing was written for {record.silence:,.0f} s{after}")


OVER_STEPS: tuple[Rule, ...] = (*OF_TRAINING, throughput_drop)
OVER_SCALES: tuple[Rule, ...] = (
    scale_collapse,
    partial(rising, name="underflow", most=UNDERFLOW, what="become zero", twice=True),
    partial(rising, name="overflow", most=OVERFLOW, what="saturate", twice=False),
)


class Judge:
    """Judges what is new in a growing record at each call, and holds the alarms so far; more: further rules."""

    def __init__(self, more: Iterable[Callable[[Record], Iterable[Alarm]]] = ()) -> None:
        self.rang: list[Alarm] = []
        self.more = list(more)
        self._steps = self._scales = self._ranks = self._events = 0

    def judge(self, record: Record) -> list[Alarm]:
        """Return all alarms by now, those of the clock last."""
        for rules, begin in ((OVER_STEPS, self._steps), (OVER_SCALES, self._scales), ((slow_rank,), self._ranks)):
            for rule in rules:
                self.rang += rule(record, begin)
        self.rang += loud_events(record, self._events)
        for own in self.more:
            self.rang += own(record)
        self._steps, self._scales = len(record), record.scales["scale"].steps.size
        self._ranks, self._events = record.ranks.steps.size, len(record.events)
        in_order = sorted(self.rang, key=lambda alarm: np.inf if alarm.step is None else alarm.step)
        return [*in_order, *silence(record)]


def _count_others(which: np.ndarray) -> str:
    more = int(which.sum()) - 1
    return f" (and {more} more tensors)" if more > 1 else " (and one more tensor)" if more else ""
