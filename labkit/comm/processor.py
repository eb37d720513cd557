"""How long processes could run: a deadline in seconds of the clock would punish code for a busy machine.

A process that waited for a processor, as the kernel counts it, had no chance meanwhile. A deadline strikes once every
rank could run for `ENOUGH` of it, and after `STRETCH` times as long in any case. Where the kernel does not count
(outside Linux), nobody waited.
"""

from __future__ import annotations

ENOUGH = 0.25  # share of its time that a rank must have been able to run before its deadline counts
STRETCH = 4.0  # times the deadline: then it is over


def times(pid: int) -> tuple[float, float]:
    """(seconds of processor used, seconds of waiting for one) of a process's main thread; (0, 0) once it is gone."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            used, waited, _ = file.read().split()
        return int(used) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0
