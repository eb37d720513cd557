"""What shuts one rank in, away from its siblings: namespaces, an empty /proc, limits, a system-call filter.

Two ranks of one submission must share nothing but the broker, or a "collective" could run past the ledger. So each
gets user, process, network, message and mount namespaces of its own, an own small /tmp, no /proc, and none of the calls
by which processes on one kernel can still whisper (file locks, inotify, keys, memory files, the page cache).

Every defence has a name. The attack tests switch them off one at a time, and then the attack must succeed.
"""

import ctypes
import importlib.util
import os
import resource
import signal
import struct
from collections.abc import Sequence

NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "mount": 0x00020000,
    "uts": 0x04000000,
}
MIB = 1 << 20
SIGNALS = 64  # that may wait in the kernel: each holds a word of the sender's, and shows in no process's size
mapped = 0  # bytes of address space that a rank is born with: a CUDA build of torch maps gigabytes of libraries
program, clone = b"", 0  # the filter of system calls, and clone's number: see grading/sandbox/filters.py
USERS = 64  # user ids that a sandbox has for its ranks, one after another
first_user: int | None = None  # of these; None where the zygote cannot give any: it is an ordinary user itself
_born = 0  # ranks so far

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which a child must be born with
_python.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_MS_NOSUID, _MS_NODEV, _MS_RDONLY = 2, 4, 1
_REMOUNT = 0x20 | 0x1000 | _MS_RDONLY | _MS_NOSUID  # MS_REMOUNT, MS_BIND: this mount alone
NODES = ("null", "full", "random", "urandom")  # of /dev; not zero: mapped, it is shared memory of no file
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_KEEPCAPS = 22, 24, 38, 8


def fork(off: frozenset[str]) -> int:
    """Like os.fork, but the child is in namespaces of its own, as process 1 of a new process namespace, and leads a
    session of its own: signals and priorities are given to process groups as well, past all namespaces, and a group
    that it shared with its siblings and the zygote would be theirs too."""
    pid = _clone(off)
    if pid == 0 and "session" not in off:
        os.setsid()
    return pid


def _clone(off: frozenset[str]) -> int:
    """One clone() in place of fork, unshare and another fork; for a process without threads, as the zygote is."""
    global _born
    if "namespaces" in off:
        return os.fork()
    uid, gid, own = os.getuid(), os.getgid(), None
    if first_user is not None and "users" not in off:
        own, _born = first_user + _born % USERS, _born + 1
    mapped_already, mapping = os.pipe()
    _python.PyOS_BeforeFork()
    flags = ctypes.c_ulong(sum(NAMESPACES.values()) | signal.SIGCHLD)
    pid = _python.syscall(clone, flags, 0, 0, 0, 0)
    if pid != 0:
        number = ctypes.get_errno()
        _python.PyOS_AfterFork_Parent()
        os.close(mapped_already)
        try:
            if pid < 0:
                raise OSError(number, f"clone: {os.strerror(number)}")
            if own is not None:  # only who has the right outside of the new namespace may map another user into it
                _map(pid, own, own)
                os.write(mapping, b"x")
        finally:
            os.close(mapping)
        return pid
    _python.PyOS_AfterFork_Child()
    try:
        os.close(mapping)
        if own is None:
            _map("self", uid, gid)
        elif os.read(mapped_already, 1):
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
        else:
            raise OSError("the zygote could not give it a user")
        os.close(mapped_already)
    except OSError as error:
        print(f"sandbox: {error}", flush=True)
        os._exit(120)
    return 0


def _map(pid: int | str, uid: int, gid: int) -> None:
    """Make a user and a group the only ones of a process's namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        file = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def keep_capabilities() -> None:
    """Before root becomes another user: what `become_able` will need is kept."""
    _call("prctl", _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))


def become_able() -> None:
    """Afterwards: may set users and groups, and nothing else."""
    both = 1 << 6 | 1 << 7  # CAP_SETGID, CAP_SETUID
    _capabilities(both)


def shut(off: frozenset[str], limits: dict[str, int], keep: int, hidden: Sequence[str] = ()) -> None:
    """In the rank, before any code of a student: everything else. Descriptors above `keep` are closed.

    limits   bytes of memory beyond what is there now ("memory"), of a file and of /tmp ("disk"); names in /tmp
             ("names", 4096 if nothing is said); "processes"; "files" that are open
    hidden   packages whose folders are empty from here on: a fresh interpreter cannot import them
    """
    if "descriptors" not in off:
        os.closerange(keep + 1, 1 << 16)
    if "namespaces" not in off:
        if "tmp" not in off:
            room = b"size=%d,nr_inodes=%d,mode=1777" % (limits["disk"], limits.get("names", 4096))
            for path in (os.environb[b"TMPDIR"], b"/dev/shm"):
                _mount(path, 0, room)
        if "packages" not in off:
            for name in hidden:
                for folder in _folders(name):
                    _mount(os.fsencode(folder), _MS_RDONLY, b"size=4096,nr_inodes=2,mode=555")
        if "nodes" not in off:
            for name in NODES:  # whoever may write to a device may also set its times, which all see
                _call(f"mount /dev/{name}", _libc.mount(None, f"/dev/{name}".encode(), None, _REMOUNT, None))
        if "proc" not in off:
            # Over /proc, not in its place: siblings are visible in it, and what one user owns, one user may read.
            _mount(b"/proc", _MS_RDONLY, b"size=4096,nr_inodes=2,mode=555")
    os.chdir("/submission")
    if "limits" not in off:
        _limit(limits)
    if "capabilities" not in off:
        _drop_capabilities()
    if "syscalls" not in off:
        _filter_calls()


def _folders(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _mount(path: bytes, flags: int, options: bytes) -> None:
    _call(f"mount {path.decode()}", _libc.mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID | _MS_NODEV | flags, options))


def _limit(limits: dict[str, int]) -> None:
    for what, value in (
        (resource.RLIMIT_AS, mapped + limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, SIGNALS),
    ):
        resource.setrlimit(what, (value, value))


def _drop_capabilities() -> None:
    """None now, and none by a later exec: what was mounted stays mounted."""
    _call("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _capabilities(0)


def _capabilities(mask: int) -> None:
    """Effective and permitted ones; none is inherited by another program."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _call("capset", _libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _filter_calls() -> None:
    _call("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("seccomp", _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(_Program(len(program) // 8, program)), 0, 0))


def _call(what: str, status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
