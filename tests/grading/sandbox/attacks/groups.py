"""Attacks by the process group: signals, niceness and I/O priority are given to all that are in it, whatever namespaces
they are in. Who shares it with the zygote reaches all ranks, and the submissions after this one."""

import contextlib
import ctypes
import os
import signal
import time


def signals(group, numbers):
    """Rank 1 tells rank 0 numbers below 256 past the broker: each bit is one of two signals that end nobody who has no
    handler for them. What rank 0 heard. They meet after each: of two signals that wait at once one may be lost."""
    pair, heard = (signal.SIGURG, signal.SIGWINCH), []
    for bit, number in enumerate(pair):
        signal.signal(number, lambda *_, bit=bit: heard.append(bit))
    group.barrier()
    for number in numbers:
        for bit in range(8):
            if group.rank == 1:
                os.kill(0, pair[number >> bit & 1])
            group.barrier()
    if group.rank == 1:
        return numbers
    return [sum(bit << n for n, bit in enumerate(heard[at : at + 8])) for at in range(0, len(heard), 8)]


def slow_down(group):
    """The lowest priority, for the processor and the disk, for all in this group: the next submission's ranks are born
    with what their zygote has."""
    with contextlib.suppress(OSError):  # for bubblewrap's own process, who is another user; all others have it
        os.setpriority(os.PRIO_PGRP, 0, 19)
    ctypes.CDLL(None).syscall({"x86_64": 251, "aarch64": 30}[os.uname().machine], 2, 0, 3 << 13)  # ioprio_set: idle
    return "slow"


def signal_all(group, number):
    """End or stop whoever is in this group. Process 1 of a namespace cannot do that to itself."""
    os.kill(0, number)
    time.sleep(0.2)
    return "still here"
