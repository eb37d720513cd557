"""Attacks by which two ranks would talk past the broker, or one take the other's inputs: rank 1 knows a number and
wants rank 0 to have it, and their group may carry nothing but meeting points. Each gives what rank 0 found, or None."""

import contextlib
import ctypes
import errno
import fcntl
import glob
import mmap
import os
import signal
import socket
import struct
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

    def by_ptrace():
        if pid == os.getpid():
            return None
        _call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 16, pid, 0, 0)  # attach
        os.waitpid(pid, 0)
        into = ctypes.c_uint64()
        _call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 2, pid, address, ctypes.byref(into))
        _call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 17, pid, 0, 0)  # detach
        return into.value or None

    return _over(group, lambda: None, {"file": by_file, "call": by_call, "ptrace": by_ptrace}[how])


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


def terminal(group):
    """A new terminal: who opens its other side writes into it."""
    kept = []

    def open_one():
        kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        fcntl.ioctl(kept[0], 0x40045431, b"\0\0\0\0")  # unlock

    def write():
        with open("/dev/pts/0", "w") as file:
            file.write(f"{SECRET}\n")

    if group.rank == 0:
        with contextlib.suppress(OSError):
            open_one()
    group.barrier()
    return _over(group, write, lambda: int(os.read(kept[0], 100)) if kept else None)


def shared_memory(group):
    """System V's shared memory, found by a number."""
    get, attach = {"x86_64": (29, 30), "aarch64": (194, 196)}[os.uname().machine]

    def leave():
        address = _call(attach, _call(get, 913, 4096, 0o1666), 0, 0)
        ctypes.c_uint64.from_address(address).value = SECRET

    def find():
        return ctypes.c_uint64.from_address(_call(attach, _call(get, 913, 4096, 0o666), 0, 0)).value

    return _over(group, leave, find)


def message_queue(group):
    """A POSIX message queue, found by a name."""
    make = {"x86_64": 240, "aarch64": 180}[os.uname().machine]
    send, receive = make + 2, make + 3
    size = (ctypes.c_long * 8)(0, 1, 8)

    def leave():
        _call(send, _call(make, b"q", os.O_RDWR | os.O_CREAT, 0o666, size), struct.pack("Q", SECRET), 8, 0, 0)

    def find():
        into = ctypes.create_string_buffer(8)
        _call(receive, _call(make, b"q", os.O_RDWR | os.O_NONBLOCK, 0, 0), into, 8, 0, 0)
        return struct.unpack("Q", into.raw)[0]

    return _over(group, leave, find)


def abstract_socket(group):
    """A socket with a name and no file."""
    kept = []
    with contextlib.suppress(OSError):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        if group.rank == 0:
            kept[0].bind("\0meeting")
            kept[0].setblocking(False)
    group.barrier()

    def leave():
        if kept:
            kept[0].sendto(str(SECRET).encode(), "\0meeting")

    return _over(group, leave, lambda: int(kept[0].recv(100)) if kept else None)


# -- marks on a file that both can only read --------------------------------------------------------------------------
def file_lock(group, how):
    """A lock is a bit, and there are many files."""
    file = os.open(HERE, os.O_RDONLY)

    def leave():
        if how == "whole":
            fcntl.flock(file, fcntl.LOCK_EX)
        else:  # F_OFD_SETLK: the place of the lock is the secret
            fcntl.fcntl(file, 37, struct.pack("hhqqixxxx", fcntl.F_RDLCK, 0, SECRET, 1, 0))
        return file

    def find():
        if how == "whole":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return SECRET
            return None
        asked = fcntl.fcntl(file, 36, struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_GETLK
        kind, _, start, _, _ = struct.unpack("hhqqixxxx", asked)
        return start if kind != fcntl.F_UNLCK else None

    return _over(group, leave, find)


def watched_file(group):
    """Whoever watches a file sees that another opens it, and when."""
    watch = []

    def begin():
        watch.append(_libc.inotify_init1(os.O_NONBLOCK))
        _libc.inotify_add_watch(watch[0], HERE.encode(), 0x20)  # IN_OPEN

    if group.rank == 0:
        begin()
    group.barrier()
    return _over(
        group, lambda: open(HERE).close(), lambda: SECRET if watch[0] >= 0 and os.read(watch[0], 100) else None
    )


def page_cache(group):
    """Which pages of a file are in memory: one rank throws them out, the other asks without reading them."""
    files = [
        name
        for name in sorted(glob.glob(f"{os.path.dirname(os.__file__)}/encodings/cp*.py"))
        if os.path.getsize(name) > 4096
    ][:27]
    assert len(files) == 27  # sources that nobody reads: what runs are their .pyc

    def leave():
        for bit, name in enumerate(files):
            with open(name, "rb") as file:
                file.read(4096)
                if not SECRET >> bit & 1:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def find():
        found = 0
        for bit, name in enumerate(files):
            with open(name, "rb") as file, contextlib.suppress(BlockingIOError):
                found |= bool(os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)) << bit
        return found

    return _over(group, leave, find)


def hint(group):
    """How long what is written to a file is expected to live: kept with the file, for all who have it open."""
    file = os.open(HERE, os.O_RDONLY)
    return _over(
        group,
        lambda: fcntl.fcntl(file, 1036, struct.pack("Q", 5)),
        lambda: SECRET if fcntl.fcntl(file, 1035, bytes(8)) == struct.pack("Q", 5) else None,
    )


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


def in_flight(group):
    """A user's descriptors that are sent and not yet received, all together."""
    a, b = socket.socketpair()
    a.setblocking(False)

    def leave():
        kept = []
        with contextlib.suppress(OSError):
            for _ in range(8):
                kept.append(socket.socketpair())
                kept[-1][0].setblocking(False)
                for _ in range(40):
                    socket.send_fds(kept[-1][0], [b"x"], [0] * 100)
        group.kept = kept

    def find():
        try:
            for _ in range(20):
                socket.send_fds(a, [b"x"], [0] * 10)
        except OSError as error:
            return SECRET if error.errno == errno.ETOOMANYREFS else None
        return None

    found = _over(group, leave, find)
    a.close()
    b.close()
    return found


def file_times(group):
    """Everybody may write to /dev/null, and who may write to a file may set its times to now."""

    def leave():
        time.sleep(0.05)
        os.utime("/dev/null")

    before = os.stat("/dev/null").st_mtime_ns
    return _over(group, leave, lambda: SECRET if os.stat("/dev/null").st_mtime_ns != before else None)


def machine(group):
    """How many processes the machine has, and how much memory is free."""
    into = (ctypes.c_ulong * 64)()

    def count():
        if _libc.sysinfo(into) != 0:
            raise OSError(ctypes.get_errno(), "")
        return ctypes.cast(ctypes.byref(into, 80), ctypes.POINTER(ctypes.c_ushort))[0]

    def leave():
        for _ in range(40):
            if os.fork() == 0:
                time.sleep(60)  # ended with its rank
                os._exit(0)

    begin = 0
    if group.rank == 0:
        with contextlib.suppress(OSError):
            begin = count()
    group.barrier()
    return _over(group, leave, lambda: SECRET if begin and count() >= begin + 30 else None)


def huge_pages(group):
    """The kernel counts all huge pages that processes were given, in a file beside the one that glibc reads."""
    folder = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/anon_fault_alloc"
    path = next((f"{top}/{folder}" for top in ("", "/host") if os.path.exists(f"/{top}/{folder}")), None)
    if path is None:
        return None

    def count():
        with open(path) as file:
            return int(file.read())

    def leave():
        memory = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(14)  # MADV_HUGEPAGE
        for at in range(0, len(memory), 2 << 20):
            memory[at] = 1

    before = count()
    group.barrier()
    return _over(group, leave, lambda: SECRET if count() >= before + 100 else None)


def counted(group, how):
    """Numbers that all get from one row: of a process's descriptor, and a socket's cookie (4096 at a time for each
    processor)."""

    def last():
        if how == "cookies":
            return max(int.from_bytes(end.getsockopt(1, 57, 8), "little") for _ in range(2100) for end in _pair())
        child = os.fork()
        if child == 0:
            os._exit(0)
        descriptor = os.pidfd_open(child)
        try:
            return 100 * os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)
            os.waitpid(child, 0)

    before = 0
    if group.rank == 0:
        with contextlib.suppress(OSError):
            before = last()
    group.barrier()
    return _over(
        group,
        lambda: [last() for _ in range(3 if how == "cookies" else 90)],
        lambda: SECRET if before and last() - before > 8500 else None,
    )


def _pair():
    ends = socket.socketpair()
    yield from ends
    for end in ends:
        end.close()
