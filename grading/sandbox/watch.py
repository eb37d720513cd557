"""What a tree of processes uses, read from /proc from outside: memory, processor time, and how long it had to wait for
a processor.

Limits of the kernel's own bind one process; a submission may have many. So the whole tree is added up here, several
times a second. Memory that two processes share is counted once (its proportional share: Pss), so that forked ranks,
which share torch, do not look like five torches.
"""

import ctypes
import os
import time
from contextlib import suppress

_libc = ctypes.CDLL(None)
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


def running(pids: list[int], mains: list[int]) -> tuple[int, int]:
    """How many threads of these processes want a processor now: those that are not the main thread of one of `mains`,
    and all."""
    helpers = every = 0
    for pid in pids:
        for task in _tasks(pid):
            wants = _read(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()[:1] == ["R"]
            helpers += wants and not (pid in mains and int(task) == pid)
            every += wants
    return helpers, every


class Room:
    """How much of the machine a tree of processes had, or could have had: what was idle, and of what was not no more
    than the tree used, nor more than its share in looks at who wants a processor. Processes that end unseen used more
    than it seems, and the looks know. And where the kernel shares out by sessions, threads are no measure: the looks
    take a tree's part of the threads for its part of the machine, and what it used knows."""

    def __init__(self) -> None:
        self.processors = os.sched_getaffinity(0)
        self.begin, self.idle = time.monotonic(), _idle(self.processors)
        self.looks, self.share = 0, 0.0
        self.used: dict[int, float] = {}  # seconds of processor of each process, when it was last seen

    def look(self, wanting: int, pids: list[int]) -> None:
        """`wanting` threads of the tree, whose processes these are, want a processor now; so does this process, and
        whoever else."""
        others = _wanting() - 1 - wanting
        self.looks += 1
        self.share += wanting / (wanting + others) if wanting and others > 0 else float(wanting > 0)
        self.used |= {pid: own for pid in pids if (own := used(pid))}

    def each(self, ranks: int) -> float:
        """Seconds for which each of so many ranks could run since it was made, had they the whole machine to share with
        nobody: then it is all of them, however many ranks stand in each other's way."""
        return self.seconds() / max(1e-9, min(max(1, ranks), len(self.processors), _quota()))

    def seconds(self) -> float:
        """Seconds of processor since it was made; 0 where the kernel does not tell, or before the first look."""
        idle = _idle(self.processors)
        if idle is None or self.idle is None or not self.looks:
            return 0.0
        spent = time.monotonic() - self.begin
        here = len(self.processors) * spent
        free = min(here, idle - self.idle)
        busy = min((here - free) * self.share / self.looks, sum(self.used.values()))
        return min(free + busy, _quota() * spent)


def _idle(processors: set[int]) -> float | None:
    """Seconds for which these processors had nothing to do, all together."""
    total, found = 0, False
    for line in _read("/proc/stat").splitlines():
        name, *ticks = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in processors and len(ticks) > 4:
            total, found = total + int(ticks[3]) + int(ticks[4]), True
    return total / _TICK if found else None


def _wanting() -> int:
    """How many threads of the whole machine want a processor now."""
    for line in _read("/proc/stat").splitlines():
        if line.startswith("procs_running"):
            return int(line.split()[1])
    return 1


def _quota() -> float:
    """How many processors this process's container gives it."""
    quota, period = [*_read("/sys/fs/cgroup/cpu.max").split(), "max", "max"][:2]
    if not quota.isdigit():  # the older kind
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else float("inf")


def files(pid: int) -> int:
    """How many files it has open; 0 where that cannot be read."""
    try:
        return len(os.listdir(f"{_living(pid)[0]}/fd"))
    except OSError:
        return 0


def _living(pid: int) -> tuple[str, str]:
    """The folder of a thread of the process that lives, and its status. Of a process whose first thread has ended,
    /proc/PID itself shows neither memory nor files."""
    for task in _tasks(pid):
        folder = f"/proc/{pid}/task/{task}"
        if "RssAnon:" in (status := _read(f"{folder}/status")):
            return folder, status
    return f"/proc/{pid}", ""


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
        for line in _living(pid)[1].splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += 1024 * int(line.split()[1])
    return total


IN_A_FILE = 1 << 20  # bytes that may lie in a pipe or a socket


def unnamed(pid: int) -> frozenset[str]:
    """The pipes, sockets and the like that it has open, as the kernel calls them."""
    found = set()
    with suppress(OSError):
        folder = f"{_living(pid)[0]}/fd"
        for name in os.listdir(folder):
            with suppress(OSError):
                # Every epoll has the same name, and holds words of its own.
                found.add((kind := os.readlink(f"{folder}/{name}")) + name * kind.startswith("anon_inode"))
    return frozenset(one for one in found if not one.startswith("/"))


def held(pid: int, own: frozenset[str] = frozenset()) -> int:
    """Bytes that a process and all that it has started may hold now: anonymous and shared memory, also what lies in
    swap or on huge pages, and the most that the kernel keeps for a pipe or a socket that is not one of `own`. Not what it
    was born with and shares: what it frees there and uses again it has. 0 where that cannot be read, or once it is gone."""
    every, total = tree(pid), 0
    for one in every:
        for line in _living(one)[1].splitlines():
            if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:", "HugetlbPages:")):
                total += 1024 * int(line.split()[1])
    total = max(0, total - shared(pid))
    return total + IN_A_FILE * len(frozenset().union(*map(unnamed, every)) - own) if total else 0


def shared(pid: int) -> int:
    """Bytes of anonymous memory that it shares: born with it, not written to. 0 if unreadable. Takes 5 ms."""
    folder, status = _living(pid)
    sizes = {line.split()[0]: int(line.split()[1]) for line in _read(f"{folder}/smaps_rollup").splitlines()[1:]}
    resident = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")), 0)
    # LazyFree: pages given back that the kernel has not taken yet. Their bytes can still be read.
    swapped = 2 * (sizes["Swap:"] - sizes["SwapPss:"]) if sizes else 0  # of two that share, each has half
    return 1024 * max(0, resident - sizes["Private_Dirty:"] - sizes["LazyFree:"] + swapped) if sizes else 0


def inside(pid: int) -> list[int]:
    """A process's numbers: here, and in each process namespace below, down to its own. [] once it is gone."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return [int(number) for number in line.split()[1:]]
    return []


def memory(pid: int) -> int:
    """Bytes that are its own. Where that cannot be read: all that is resident, shared or not."""
    folder = _living(pid)[0]
    try:
        with open(f"{folder}/smaps_rollup") as file:
            sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in file) if rest}
        return 1024 * (int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"]))
    except (OSError, KeyError, ValueError):
        pass
    try:
        with open(f"{folder}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def total(pid: int) -> float:
    """Seconds of processor that a process has used, with its children that have ended and been waited for."""
    return _seconds(pid, slice(11, 15))


def used(pid: int) -> float:
    """Seconds of processor that a process itself has used, with all its threads."""
    return _seconds(pid, slice(11, 13))


def _seconds(pid: int, fields: slice) -> float:
    try:
        return sum(int(ticks) for ticks in _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[fields]) / _TICK
    except ValueError:
        return 0.0


def standing(pid: int) -> tuple:
    """What other processes can change of a process, and what then stays: whether it is stopped, its priority, niceness,
    policy, I/O priority and processors. () once it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    try:
        number = {"x86_64": 252, "aarch64": 31}[os.uname().machine]  # ioprio_get
        disk = _libc.syscall(number, 1, pid)
        return fields[0] in "Tt", *fields[15:17], *fields[37:39], disk, tuple(sorted(os.sched_getaffinity(pid)))
    except (OSError, IndexError, KeyError):
        return ()


def starvation() -> bool:
    """Whether this kernel tells how long a process waited for a processor."""
    return os.path.exists("/proc/self/schedstat")
