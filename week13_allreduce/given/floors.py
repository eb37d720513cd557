"""A better model of the GPU clock: two machines that work side by side.

Calls are queued by the CPU and carried out by the GPU, both at the same time; the slower one decides:

    T(n) = max( Q,  messages * alpha + share * n * beta )

Q        the time in which the CPU queues all calls of one collective: Python, torch, the driver. The benchmark
         records it (`queue`); the median over all sizes is taken. It is measured, and nothing is fitted to it.
alpha,   of the GPU's part, fitted by task 13.1 to the sizes at which the GPU's part is the longer one. Twice: NCCL
beta     gives a message 8 channels on four GPUs and more of them once it is longer than 128 MiB
         (results/FINDINGS.md, "Below: channels"), so short and long messages have a beta of their own.

`alpha + beta n` alone must explain the flat part of the curve by an alpha that grows with the number of calls, and pays
for it at the other end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from week13_allreduce.given import clocks
from week13_allreduce.given.records import human

MiB = 1 << 20
PART, CHANNELS = 16 * MiB, 32  # a message starts with CHANNELS/ranks channels and gets more above PART a channel
# What one message is, in units of x.
MESSAGE = {"naive": lambda N: 1.0, "one_shot": lambda N: 1.0, "ring": lambda N: 1.0 / N}
STRAY = 1.5  # queued for this many times Q: something else held the CPU at that moment


class Floor(NamedTuple):
    """The model of one contender on `ranks` GPUs."""

    queue: float  # Q, seconds
    short: Any  # cost_model.Fit of the sizes whose messages have the first number of channels
    long: Any  # ... and of the longer ones
    cost: Any
    last: float  # the largest vector, in bytes, of which `short` speaks

    def time(self, nbytes: float) -> float:
        """Seconds for a vector of `nbytes` bytes."""
        fit = self.short if nbytes <= self.last else self.long
        return max(self.queue, self.cost.time(nbytes, fit.alpha, fit.beta))


def floor_of(rows: Sequence[Mapping[str, float]], contender: str, ranks: int) -> Floor | None:
    """Fit the model to a record's rows (`size`, `seconds`, `gpu`, `queue`); None if they are too few, or of a CPU.

    Uses task 13.1: NotImplementedError while it is open."""
    from week13_allreduce import cost_model

    if not all("queue" in row and "gpu" in row for row in rows):
        return None
    queue = median(row["queue"] for row in rows) if rows else 0.0
    last = PART * CHANNELS / ranks / MESSAGE[contender](ranks)
    cost = getattr(cost_model, f"{contender}_all_reduce_cost")(ranks)
    busy = [row for row in rows if row["gpu"] > queue]
    halves = [[row for row in busy if (row["size"] > last) == beyond] for beyond in (False, True)]
    if min(map(len, halves)) < 2:
        return None
    short, long = (
        cost_model.fit_alpha_beta([row["size"] for row in half], [row["seconds"] for row in half], cost)
        for half in halves
    )
    return Floor(queue, short, long, cost, last)


def floors(record: Mapping[str, Any]) -> str:
    """The model of each of a GPU record's own all-reduces, as text: what it is, how far off at most, and the sizes from
    which on it says the ring is faster, beside those measured."""
    lines, found = [], {}
    for entry in record["series"]:
        who, rows = entry["contender"], entry["rows"]
        if entry["collective"] != "all_reduce" or who not in MESSAGE:
            continue
        floor = floor_of(rows, who, record["ranks"])
        if floor is None:
            continue
        found[who] = floor
        far, left_out = errors(floor, rows)
        worst, at = max((abs(value), size) for size, value in far.items())
        strays = ""
        if left_out:
            sizes = " and ".join(human(size, 3) for size in left_out)
            times = " and ".join(f"{times:.1f}" for times in left_out.values())
            strays = f"; left out: {sizes}, whose queueing took {times} times the median"
        lines.append(
            f"{who.replace('_', '-'):9s} queued in {floor.queue * 1e6:3.0f} us (median); "
            f"{1 / floor.short.beta / 1e9:3.0f} GB/s, long messages {1 / floor.long.beta / 1e9:3.0f} GB/s: "
            f"at most {worst:.0%} off (at {human(at, 3)}){strays}"
        )
    measured = clocks.clock_of(record)
    if "ring" in found:
        lines += [
            f"so the ring overtakes {who.replace('_', '-')} at {human(crossing(floor, found['ring']), 3)} by this "
            f"model, at {human(clocks.crossing(measured[who], measured['ring']) or math.nan, 3)} measured"
            for who, floor in found.items()
            if who != "ring"
        ]
    return "\n".join(lines)


def errors(floor: Floor, rows: Sequence[Mapping[str, float]]) -> tuple[dict[float, float], dict[float, float]]:
    """({size: (measured - model) / measured}, {size: queue / Q}); the second are the rows that the model leaves out,
    because their own queueing decided and took more than STRAY times Q."""
    strays = {
        row["size"]: row["queue"] / floor.queue for row in rows if row["queue"] > max(STRAY * floor.queue, row["gpu"])
    }
    far = {row["size"]: 1 - floor.time(row["size"]) / row["seconds"] for row in rows if row["size"] not in strays}
    return far, strays


def crossing(first: Floor, second: Floor) -> float:
    """The size in bytes from which on `second` is the faster one: where first's GPU part takes as long as second's
    queueing (second's own GPU part still being the shorter one)."""
    fit, cost = first.short, first.cost
    return (second.queue - cost.messages * fit.alpha) / (cost.share * fit.beta)
