"""Which rank is slow? Each rank's own seconds of a step: without those in which it stood in a call of its groups.

All ranks of a synchronous training take the same time a step: the fast ones wait for the slow one inside a collective.
So the time of a step names nobody. The time that a rank spent outside of all calls does, and the ledger (the
communication log) knows when each call began and returned. `OwnSeconds` is a hook that writes it into each step's line:

    train(..., Parts(model, hooks=[OwnSeconds()]))        "rank_seconds": [0.31, 0.30, 0.52, 0.31]

The health page's alarm names a slow rank by it. The hook sees what the ledger sees: calls of a `Group`, and of meshes
made with `ledger=True`. FSDP2 over a mesh without a ledger waits unseen, and all ranks look alike. On CUDA a call
returns before the GPU has done it, so the hook refuses it.
"""

from __future__ import annotations

import time
from itertools import takewhile

import torch

from labkit.comm.ledger import CALLS, Ledger
from labkit.errors import LabError
from labkit.train.loop import Hook, Loop


class OwnSeconds(Hook):
    """Writes `rank_seconds`, [ranks], into each step's line: from the step's beginning until its gradients are there,
    less what the rank waited. It costs one small all-reduce a step. LabError on CUDA."""

    def __init__(self) -> None:
        self.begin: dict[int, float] = {}  # by rank: ranks that are threads may share one hook

    def on_start(self, loop: Loop) -> None:
        if loop.group.device.type == "cuda":
            raise LabError(
                "a rank's own seconds come from the ledger, which on CUDA knows when calls returned, not when the GPU "
                "did them: profile instead (labkit.record.kernels)"
            )

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
