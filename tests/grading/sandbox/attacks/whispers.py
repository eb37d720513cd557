"""Ways between two ranks that stay open: what one does, another can see in what the machine has left. Rank 1 knows
bits, rank 0 finds them, window by window of a clock that both have; no message is sent. How many bits a second each
carries, `python -m tests.grading.sandbox.whispers` measures."""

import contextlib
import ctypes
import fcntl
import os
import time

import torch


def _windows(group, bits, window):
    """The times at which the windows begin, the same on both ranks."""
    group.barrier()
    start = (int(time.monotonic() / 0.25) + 2) * 0.25
    return [start + number * window for number in range(bits + 1)]


def _until(moment):
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def _split(seen, known):
    """Bits from one measurement a window: above or below the middle between the first two windows, which are 0, 1."""
    if known is not None:
        return known
    middle, above = (seen[0] + seen[1]) / 2, seen[1] > seen[0]
    return [int((value > middle) == above) for value in seen[2:]]


def processor(group, bits, window):
    """A busy processor: rank 1 computes or sleeps, and rank 0 counts how often it comes round."""
    at, seen = _windows(group, len(bits) + 2, window), []
    os.getpid()
    for begin, end, bit in zip(at, at[1:], [0, 1, *bits]):
        _until(begin)
        count = 0
        if group.rank == 0 or bit:
            while time.monotonic() < end:
                count += 1
        seen.append(count)
    return _split(seen, bits if group.rank else None)


def inodes(group, bits, window):
    """Pipes of all processes are numbered from one row, a thousand at a time for each processor: rank 1 makes many, and
    rank 0 sees how far the row went on."""

    def last():
        found = 0
        for _ in range(600):  # as many as empty one processor's thousand
            reader, writer = os.pipe()
            found = max(found, os.fstat(reader).st_ino)
            os.close(reader)
            os.close(writer)
        return found

    at, seen = _windows(group, len(bits) + 2, window), []
    for begin, end, bit in zip(at, at[1:], [0, 1, *bits]):
        _until(begin)
        if group.rank == 1:
            while bit and time.monotonic() < end - window / 4:
                last()
        else:
            before = last()
            _until(end - window / 5)
            seen.append(last() - before)
    return _split(seen, bits if group.rank else None)


def pipes(group, bits, window):
    """A user's pipes hold so many pages together: rank 1 takes all, and what rank 0 opens then is small. Only where
    both are one user: where an ordinary user grades."""
    at, seen = _windows(group, len(bits) + 2, window), []
    for begin, bit in zip(at, [0, 1, *bits]):
        kept = []
        _until(begin + window * (1 - group.rank) / 2)
        if group.rank == 1 and bit:
            for _ in range(100):
                kept.append(os.pipe())
                with contextlib.suppress(OSError):
                    fcntl.fcntl(kept[-1][0], 1031, 1 << 20)  # F_SETPIPE_SZ
            _until(begin + window * 0.75)
        elif group.rank == 0:
            kept.append(os.pipe())
            seen.append(fcntl.fcntl(kept[-1][0], 1032))
        for end in kept:
            os.close(end[0])
            os.close(end[1])
    return _split(seen, bits if group.rank else None)


def lateness(group, bits, window):
    """Meeting points that come late or in time: messages, since barriers are few. (The ledger shows them; no value
    crosses.)"""
    found, other, nothing = [], 1 - group.rank, torch.zeros(1)
    for bit in bits:
        group.sendrecv(nothing, dst=other, src=other)
        begin = time.monotonic()
        if group.rank == 1 and bit:
            time.sleep(window)
        group.sendrecv(nothing, dst=other, src=other)
        found.append(int(time.monotonic() - begin > window / 2))
    return found


def page_cache(group, bits, window):
    """Files that nobody has read since the machine started: rank 1 reads those of its ones, and rank 0 sees which come
    quickly. Each bit once, for ever."""
    top, files = os.path.dirname(os.__file__), []
    for folder, folders, names in os.walk(top):
        folders.sort()
        files += [os.path.join(folder, name) for name in sorted(names) if name.endswith((".h", ".txt", ".pyi", ".rst"))]
        if len(files) > 40 * len(bits):
            break
    files = files[-len(bits) :]

    def read(name):
        begin = time.perf_counter()
        with open(name, "rb") as file:
            file.read(1)
        return time.perf_counter() - begin

    if group.rank == 1:
        for name, bit in zip(files, bits):
            if bit:
                read(name)
    group.barrier()
    if group.rank == 1:
        return bits
    seen = [read(name) for name in files]
    middle = (min(seen) * max(seen)) ** 0.5
    return [int(value < middle) for value in seen]


def names(group, bits, window):
    """Names that no folder has: the kernel remembers for everybody that one was asked for, so a second question is
    answered sooner. Nobody can have asked before for a name that holds the time."""
    group.broadcast(begin := torch.tensor([time.time()], dtype=torch.float64), src=0)
    ask = ctypes.CDLL(None).access
    asked = [f"{os.path.dirname(os.__file__)}/{begin.item()}-{n}".encode() for n in range(len(bits) + 200)]
    if group.rank == 1:
        for name, bit in zip(asked, [0, 1] * 100 + bits):
            if bit:
                ask(name, 0)
    group.barrier()
    if group.rank == 1:
        return bits
    seen = []
    for name in asked:
        begin = time.perf_counter_ns()
        ask(name, 0)
        seen.append(time.perf_counter_ns() - begin)
    middle = (sorted(seen[:200:2])[50] + sorted(seen[1:200:2])[50]) / 2
    return [int(value < middle) for value in seen[200:]]
