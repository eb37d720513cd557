"""Ranks that wake one another: a futex on a page of a file that both may only read, and words that wait."""

import ctypes
import os
import signal
import threading

from .siblings import HERE, SECRET

_libc = ctypes.CDLL(None, use_errno=True)
FUTEX, SET_TID = {"x86_64": (202, 218), "aarch64": (98, 96)}[os.uname().machine]
WAIT, WAKE, BITS = 0, 1, 27


class _Seconds(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("more", ctypes.c_long)]


def futex(group, how):
    """Rank 0 waits on a word for each bit; rank 1 wakes those of its ones, or ends threads whose end is told there."""
    _libc.mmap.restype = ctypes.c_void_p
    with open(HERE, "rb") as file:
        page = file.read(4 * BITS)
        address = _libc.mmap(None, 4096, 1, 1, file.fileno(), 0)  # to read, shared
    heard, ready = [0] * BITS, threading.Semaphore(0)

    def wait(bit):
        word = int.from_bytes(page[4 * bit : 4 * bit + 4], "little")
        ready.release()
        if (
            _libc.syscall(FUTEX, ctypes.c_void_p(address + 4 * bit), WAIT, word, ctypes.byref(_Seconds(1)), None, 0)
            == 0
        ):
            heard[bit] = 1

    def end(bit):
        _libc.syscall(SET_TID, ctypes.c_void_p(address + 4 * bit))

    threads = [threading.Thread(target=wait, args=(bit,)) for bit in range(BITS) if group.rank == 0]
    for thread in threads:
        thread.start()
        ready.acquire()
    threading.Event().wait(0.2)
    group.barrier()
    if group.rank == 1:
        for bit in range(BITS):
            if SECRET >> bit & 1:
                if how == "wake":
                    _libc.syscall(FUTEX, ctypes.c_void_p(address + 4 * bit), WAKE, 1, None, None, 0)
                else:
                    threading.Thread(target=end, args=(bit,), daemon=True).start()
    for thread in threads:
        thread.join()
    group.barrier()
    return sum(bit << place for place, bit in enumerate(heard)) or None


def queue(group):
    """How many words of 8 bytes wait for this process as signals, which is memory that no size shows."""
    number, sent = signal.SIGRTMIN + 6, 0
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    _libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    while sent < 2000 and _libc.sigqueue(os.getpid(), number, sent) == 0:
        sent += 1
    return sent


def meetings(group, count):
    """Barriers, which carry nothing and are answered one by one."""
    for _ in range(count):
        group.barrier()
    return count
