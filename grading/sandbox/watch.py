"""What a tree of processes uses, read from /proc from outside: memory, processor time, and how long it had to wait for
a processor.

Limits of the kernel's own bind one process; a submission may have many. So the whole tree is added up here, several
times a second. Memory that two processes share is counted once (its proportional share: Pss), so that forked ranks,
which share torch, do not look like five torches.
"""

from __future__ import annotations

import os

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """The process `root` and all its descendants, as far as they are alive."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children(pid)
        if len(found) > 100_000:
            break
    return found


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that are alive."""
    return [int(child) for task in _tasks(pid) for child in _read(f"/proc/{pid}/task/{task}/children").split()]


def running(pids: list[int], but: list[int]) -> int:
    """How many threads of these processes want a processor now, without the main threads of the processes `but`."""
    count = 0
    for pid in pids:
        for task in _tasks(pid):
            if not (pid in but and int(task) == pid):
                count += _read(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()[:1] == ["R"]
    return count


def files(pid: int) -> int:
    """How many files it has open; 0 where that cannot be read."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _read(path: str) -> str:
    """A small file of /proc; "" once its process is gone."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def memory_of(pids: list[int]) -> int:
    """Bytes that are these processes' own: anonymous and shared memory, not files."""
    return sum(map(memory, pids))


def at_most(pids: list[int]) -> int:
    """Bytes that these processes' own memory cannot exceed: what they share is counted for each. A hundredth of the
    price of `memory_of`, which looks at every page."""
    total = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += 1024 * int(line.split()[1])
    return total


def memory(pid: int) -> int:
    """Bytes that are its own. Where that cannot be read: all that is resident, shared or not."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in file) if rest}
        return 1024 * (int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"]))
    except (OSError, KeyError, ValueError):
        pass
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def times(pid: int) -> tuple[float, float]:
    """(seconds of processor used, seconds of waiting for one) of a process's main thread; (0, 0) once it is gone."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            used, waited, _ = file.read().split()
        return int(used) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def total(pid: int) -> float:
    """Seconds of processor that a process has used, with its children that have ended and been waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(int(ticks) for ticks in fields[11:15]) / _TICK
    except (OSError, ValueError, IndexError):
        return 0.0


def starvation() -> bool:
    """Whether this kernel tells how long a process waited for a processor."""
    return os.path.exists("/proc/self/schedstat")
