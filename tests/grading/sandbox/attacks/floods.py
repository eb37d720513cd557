"""Attacks that use too much: processes, memory, disk, output, open files, time. All are small and end by themselves,
so that they are harmless where their defence is off."""

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time


def forks(group, count, stay=0.0):
    """Start so many processes, which stay for so many seconds. How many there were."""
    pids = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                time.sleep(200)
                os._exit(0)
            pids.append(pid)
    except OSError:
        pass
    time.sleep(stay)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(pids)


def address_space(group, size):
    """Ask for memory without touching it. Whether it was given."""
    try:
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        return True
    except OSError:
        return False


def memory(group, children, size, stay, headless=False):
    """Each of several processes takes a little, and together it is much, for so many seconds. headless: its first thread
    ends, and /proc/PID shows no memory."""

    def take():
        block = bytearray(os.urandom(1) * size)
        time.sleep(200)
        os._exit(len(block) & 1)

    for _ in range(children):
        if os.fork() == 0:
            if headless:
                threading.Thread(target=take).start()
                ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
            take()
    time.sleep(stay)
    return "there was room"


def let_go(group, size, path):
    """Shared memory of no file (path: "", or a device that gives it), let go of: it stays, and no process's size shows
    it. How many bytes lie there, by what is read again."""
    try:
        file = os.open(path, os.O_RDWR) if path else -1
        kept = mmap.mmap(file, size)
    except OSError:
        return 0
    for at in range(0, size, 1 << 20):
        kept[at : at + (1 << 20)] = b"x" * (1 << 20)
        kept.madvise(mmap.MADV_DONTNEED)
    time.sleep(0.7)
    found = 0
    for at in range(0, size, 1 << 20):  # what is read counts as the process's until it is let go of again
        found += sum(kept[page] == ord("x") for page in range(at, at + (1 << 20), mmap.PAGESIZE)) * mmap.PAGESIZE
        kept.madvise(mmap.MADV_DONTNEED)
    return found


def disk(group, size, path):
    """Fill a disk. How many bytes were taken."""
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < size:
                written += file.write(bytes(min(1 << 20, size - written)))
    except OSError:
        pass
    return written


def output(group, size):
    """Print without end. (Not in one piece: a text of that length is memory.)"""
    for _ in range(size >> 16):
        sys.stdout.write("x" * (1 << 16))
    return "printed"


def sockets(group, count, stay):
    """Connections to itself, each with something in it: memory of the kernel's, in no process's size. They stay for so
    many seconds."""
    kept = []
    for _ in range(count // 2):
        a, b = socket.socketpair()
        a.send(bytes(1000))
        kept += [a, b]
    time.sleep(stay)
    return len(kept)


def daemon(group):
    """A grandchild that belongs to nobody, ignores every signal, and goes on."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in range(1, 65):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        time.sleep(15)
        os._exit(0)
    os.wait()
    return "returned"


def stubborn(group, seconds):
    """Ignore every signal, swallow every exception, and stay."""
    for number in range(1, 65):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            continue
    return "still here"


def crowd(group, helpers):
    """Let helpers keep the machine busy, so that this rank, which never ends, seems to have had no chance."""
    for _ in range(helpers):
        if os.fork() == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(15)
            while True:
                pass
    end = time.monotonic() + 15
    while time.monotonic() < end:
        pass


def pinned(group):
    """One helper is enough: beside it on one processor, and with a low priority, this rank runs a tenth of the time,
    however many processors are idle. (With the lowest one it may wait for seconds on a busy machine, and the kernel
    counts a wait only when it is over.)"""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    if os.fork() == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        while True:
            pass
    os.nice(10)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass


def limit_itself(group):
    """A limit of processor time ends its process by SIGKILL, as a machine does that is short of memory."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    while time.process_time() < 3:
        pass
    return "not limited"


def leave(group, status):
    """End the process in the student's own way."""
    os._exit(status)


def drip(group, seconds):
    """Always just in time."""
    time.sleep(seconds)
    return "in time"


def honest(group):
    """What the next case is worth after all these."""
    group.barrier()
    return group.size


def queue(group):
    """How many signals wait for this process, each in memory that no size shows."""
    number = signal.SIGRTMIN + 6
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    for _ in range(2000):
        os.kill(os.getpid(), number)
    return sum(signal.sigtimedwait({number}, 0) is not None for _ in range(2001))


def meetings(group, count):
    """Barriers, which carry nothing and are answered one by one."""
    for _ in range(count):
        group.barrier()
    return count
