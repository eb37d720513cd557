"""How long processes could run: a deadline of the clock would punish code for a busy machine."""

import time
from collections.abc import Sequence

ENOUGH = 0.5  # share of its time that the ranks must have been able to run before its deadline counts
STRETCH = 8.0  # times the deadline: then it is over in any case


def times(pid: int) -> tuple[float, float]:
    """(seconds of processor used, seconds of waiting for one) of a process's main thread; (0, 0) once it is gone."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            used, waited, _ = file.read().split()
        return int(used) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def since(before: tuple[float, float], now: tuple[float, float]) -> tuple[float, float]:
    """What passed between two answers of `times`; nothing where the process is gone by now."""
    return max(0.0, now[0] - before[0]), max(0.0, now[1] - before[1])


def family(pid: int) -> list[int]:
    """A process, and those that its main thread has started and that are alive; itself alone outside Linux."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [pid, *map(int, file.read().split())]
    except OSError:
        return [pid]


class Able:
    """Seconds since it was made for which processes could run; an eighth (1 / STRETCH) of the clock's at least."""

    def __init__(self) -> None:
        self.seconds, self._looked = 0.0, time.monotonic()
        self._had: dict[int, tuple[float, float]] = {}

    def look(self, pids: Sequence[int]) -> float:
        """The seconds so far. `pids`: who is to run now; to be asked several times a second."""
        had, self._had = self._had, {pid: times(pid) for pid in pids}
        spent, self._looked = time.monotonic() - self._looked, time.monotonic()
        away = lost(spent, [since(had[pid], now) for pid, now in self._had.items() if pid in had])
        self.seconds += max(spent - away, spent / STRETCH)
        return self.seconds


def lost(spent: float, each: Sequence[tuple[float, float]]) -> float:
    """Seconds of `spent` that dependent processes lost to waiting for a processor; each: their `times`."""
    # They wanted used + waited; what of it is more than `spent` was side by side. Never less than the worst off waited.
    wanted, waited = sum(map(sum, each)), sum(wait for _, wait in each)
    return max([waited * min(1.0, spent / wanted) if wanted > 0 else 0.0, *(wait for _, wait in each)])
