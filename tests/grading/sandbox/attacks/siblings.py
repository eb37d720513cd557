"""Attacks by which two ranks would talk past the broker, or one take the other's inputs: rank 1 knows a number and
wants rank 0 to have it, and their group may carry nothing but meeting points. Each gives what rank 0 found, or None."""

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import threading
import time

import torch

SECRET = 0x5EC12E7
HERE = __file__
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number, *args):
    result = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def _over(group, leave, find):
    """Rank 1 leaves the secret, both meet, rank 0 finds it, both meet."""
    found, kept = None, None
    for turn, act in ((1, leave), (0, find)):
        if group.rank == turn:
            try:
                kept = act()
            except (OSError, ValueError, AttributeError):
                kept = None
            found = kept if turn == 0 else None
        group.barrier()
    return found


# -- memory -----------------------------------------------------------------------------------------------------------
def memory(group, how):
    """Read the sibling's memory: its process's number and the address are no secret between the two."""
    secret = ctypes.c_uint64(SECRET if group.rank == 1 else 0)
    _libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # Yama: whoever wants to may
    where = group.all_gather(torch.tensor([os.getpid(), ctypes.addressof(secret)])).reshape(-1, 2).tolist()
    pid, address = where[1]

    def by_file():
        with open(f"/proc/{pid}/mem", "rb") as file:
            file.seek(address)
            return struct.unpack("Q", file.read(8))[0] or None

    def by_call():
        into = ctypes.c_uint64()
        local, remote = (ctypes.c_uint64 * 2)(ctypes.addressof(into), 8), (ctypes.c_uint64 * 2)(address, 8)
        _call({"x86_64": 310, "aarch64": 270}[os.uname().machine], pid, local, 1, remote, 1, 0)
        return into.value or None

    return _over(group, lambda: None, {"file": by_file, "call": by_call}[how])


def kill(group):
    """End the sibling, so that only one answer counts."""
    pids = group.all_gather(torch.tensor([os.getpid()])).tolist()
    if group.rank == 0 and pids[1] != os.getpid():
        os.kill(pids[1], signal.SIGKILL)
    group.barrier()


# -- places that both can write to ------------------------------------------------------------------------------------
def folder(group, path):
    """A file in a folder for everybody."""

    def leave():
        with open(f"{path}/left", "w") as file:
            file.write(str(SECRET))

    def find():
        with open(f"{path}/left") as file:
            return int(file.read())

    return _over(group, leave, find)


def shared_memory(group):
    """System V's shared memory, found by a number."""
    get, attach = {"x86_64": (29, 30), "aarch64": (194, 196)}[os.uname().machine]

    def leave():
        address = _call(attach, _call(get, 913, 4096, 0o1666), 0, 0)
        ctypes.c_uint64.from_address(address).value = SECRET

    def find():
        return ctypes.c_uint64.from_address(_call(attach, _call(get, 913, 4096, 0o666), 0, 0)).value

    return _over(group, leave, find)


# -- marks on a file that both can only read --------------------------------------------------------------------------
def file_lock(group):
    """A lock is a bit, and there are many files. Of a region: its place is the secret."""
    file = os.open(HERE, os.O_RDONLY)

    def leave():
        fcntl.fcntl(file, 37, struct.pack("hhqqixxxx", fcntl.F_RDLCK, 0, SECRET, 1, 0))  # F_OFD_SETLK
        return file

    def find():
        asked = fcntl.fcntl(file, 36, struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_GETLK
        kind, _, start, _, _ = struct.unpack("hhqqixxxx", asked)
        return start if kind != fcntl.F_UNLCK else None

    return _over(group, leave, find)


FUTEX, SET_TID = {"x86_64": (202, 218), "aarch64": (98, 96)}[os.uname().machine]
WAIT, WAKE, BITS = 0, 1, 27


class _Seconds(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("more", ctypes.c_long)]


def futex(group, how):
    """A page of a file that both may only read is a bell: rank 0 waits on a word for each bit; rank 1 wakes those of
    its ones, or ends threads whose end is told there."""
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


def waiting(group, seconds=0.1):
    """Time itself: so late for a meeting is a one, in time a zero. Slow, and nothing here defends against it."""
    found = 0
    for bit in range(8):
        group.barrier()
        begin = time.monotonic()
        if group.rank == 1 and 0xA5 >> bit & 1:
            time.sleep(seconds)
        group.barrier()
        found |= (time.monotonic() - begin > seconds / 2) << bit
    return found


# -- what the kernel keeps for a user, a file of everybody's, or the whole machine -------------------------------------
def pipe_pages(group):
    """A user's pipes hold so many pages together; who comes later gets small ones."""
    kept = []

    def leave():
        for _ in range(100):
            kept.append(os.pipe())
            with contextlib.suppress(OSError):
                fcntl.fcntl(kept[-1][0], 1031, 1 << 20)  # F_SETPIPE_SZ

    def size():
        reader, writer = os.pipe()
        try:
            return fcntl.fcntl(reader, 1032)
        finally:
            os.close(reader)
            os.close(writer)

    usual = size()
    group.barrier()  # or rank 1 may ask what is usual when rank 0 has taken all
    return _over(group, leave, lambda: SECRET if size() < usual else None)


def file_times(group):
    """Everybody may write to /dev/null, and who may write to a file may set its times to now."""

    def leave():
        time.sleep(0.05)
        os.utime("/dev/null")

    before = os.stat("/dev/null").st_mtime_ns
    return _over(group, leave, lambda: SECRET if os.stat("/dev/null").st_mtime_ns != before else None)
