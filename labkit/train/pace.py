"""Which rank is slow? Each rank's own seconds of a step: without those in which it stood in a call of its groups.

    train(..., Parts(model, hooks=[OwnSeconds()]))        "rank_seconds": [0.31, 0.30, 0.52, 0.31]

Calls of FSDP2 over a mesh without a ledger are not seen.
"""

import time
from itertools import takewhile

import torch

from labkit.comm.ledger import CALLS, Ledger
from labkit.errors import LabError
from labkit.train.loop import Hook, Loop


class OwnSeconds(Hook):
    """Writes `rank_seconds`, [ranks], into each step's line, by one small all-reduce. LabError on CUDA."""

    def __init__(self) -> None:
        self.begin: dict[int, float] = {}  # by rank: ranks that are threads may share one hook

    def on_start(self, loop: Loop) -> None:
        if loop.group.device.type == "cuda":
            why = "the ledger knows when calls returned, not when the GPU did them"
            raise LabError(f"a rank's own seconds are not known on CUDA, since {why}: profile (labkit.record.kernels)")

    def before_step(self, loop: Loop) -> None:
        self.begin[loop.group.rank] = time.perf_counter()

    def after_backward(self, loop: Loop) -> None:
        ledger, now = loop.group.ledger, time.perf_counter()
        begin = self.begin[loop.group.rank]
        seconds = torch.zeros(loop.group.size, dtype=torch.float64, device=loop.group.device)
        seconds[loop.group.rank] = now - begin - sum_waits(ledger, begin - ledger.start)
        loop.group.all_reduce(seconds)
        loop.fields["rank_seconds"] = seconds.tolist()


def sum_waits(ledger: Ledger, since: float) -> float:
    """Return the seconds after `since` (on the ledger's clock) in which this rank stood in some call."""
    total, reach = 0.0, since
    recent = takewhile(lambda event: event.begin >= since, reversed(ledger.events))
    waits = [(e.begin, e.end) for e in recent if e.kind in CALLS and e.blocking and e.end is not None]
    for begin, end in reversed(waits):  # calls that were posted together count once
        total += max(0.0, end - max(reach, begin))
        reach = max(reach, end)
    return total
