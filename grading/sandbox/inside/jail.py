"""What shuts one rank in, away from its siblings: namespaces, an empty /proc, limits, a system-call filter.

Two ranks of one submission must share nothing but the broker, or a "collective" could run past the ledger. So each
gets user, process, network, message and mount namespaces of its own, an own small /tmp, no /proc, and none of the calls
by which processes on one kernel can still whisper (file locks, inotify, keys, memory files, the page cache).

Every defence has a name. The attack tests switch them off one at a time, and then the attack must succeed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from functools import cache

NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "mount": 0x00020000,
    "uts": 0x04000000,
}
DEFENCES = ("namespaces", "proc", "tmp", "limits", "capabilities", "syscalls", "descriptors")
MIB = 1 << 20
mapped = 0  # bytes of address space that a rank is born with: a CUDA build of torch maps gigabytes of libraries

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which a child must be born with
_python.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_MS_NOSUID, _MS_NODEV, _MS_RDONLY = 2, 4, 1
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 22, 24, 38, 4


def fork(off: frozenset[str]) -> int:
    """Like os.fork, but the child is in namespaces of its own, as process 1 of a new process namespace.

    One clone() in place of fork, unshare and another fork; for a process without threads, as the zygote is."""
    if "namespaces" in off:
        return os.fork()
    uid, gid = os.getuid(), os.getgid()
    _python.PyOS_BeforeFork()
    flags = ctypes.c_ulong(sum(NAMESPACES.values()) | signal.SIGCHLD)
    pid = _python.syscall(_CLONE[platform.machine()], flags, 0, 0, 0, 0)
    if pid != 0:
        _python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
        return pid
    _python.PyOS_AfterFork_Child()
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        print(f"sandbox: {error}", flush=True)
        os._exit(120)
    return 0


def shut(off: frozenset[str], limits: dict[str, int], keep: int) -> None:
    """In the rank, before any code of a student: everything else. Descriptors above `keep` are closed.

    limits   bytes of memory beyond what is there now ("memory"), of a file and of /tmp ("disk"); "processes"; "files"
    """
    if "descriptors" not in off:
        os.closerange(keep + 1, 1 << 16)
    if "namespaces" not in off:
        if "tmp" not in off:
            for path in (os.environb[b"TMPDIR"], b"/dev/shm"):
                _mount(path, 0, b"size=%d,nr_inodes=4096,mode=1777" % limits["disk"])
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
    ):
        resource.setrlimit(what, (value, value))


def _drop_capabilities() -> None:
    """None now, and none by a later exec: what was mounted stays mounted."""
    _call("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("=Ii", 0x20080522, 0)
    _call("capset", _libc.capset(header, struct.pack("=6I", *[0] * 6)))


# -- system calls -----------------------------------------------------------------------------------------------------
# Refused with EPERM. On one line: x86-64, arm64.
_REFUSED = {
    # memory that no process's size shows
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "userfaultfd": (323, 282),
    "mlock": (149, 228),
    "mlockall": (151, 230),
    "mlock2": (325, 284),
    # another process's memory, or its life
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    # whispering through a file that both can read: marks left on it, and which of its pages are in memory
    "flock": (73, 32),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "fadvise64": (221, 223),
    "mincore": (27, 232),
    "preadv2": (327, 286),
    "readahead": (187, 213),
    "cachestat": (451, 451),
    # a limit of processor time ends a process by SIGKILL, and that must mean "from outside"
    "setrlimit": (160, 164),
    # keys, other namespaces, mounts, the kernel
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "personality": (135, 92),
    "seccomp": (317, 277),
}
_OLD_X86 = {"inotify_init": 253}
_CLONE = {"x86_64": 56, "aarch64": 220}
_PRCTL = {"x86_64": 157, "aarch64": 167}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_MADVISE = {"x86_64": 28, "aarch64": 233}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}  # socket, socketpair
_CLONE3 = 435
_COMMANDS = (0, 1, 2, 3, 4, 1030, 1031, 1032)  # of fcntl: descriptors, flags, pipes; locks and hints mark a file
_PAGE_OUT = (20, 21)  # of madvise: cold, out
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink; others (vsock!) know no network namespace
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF: load a word, jumps, return
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACE = sum(NAMESPACES.values()) | 0x02000000 | 0x00000080  # and cgroup, time


@cache  # the zygote makes it, ranks have it
def program(machine: str) -> bytes:
    """The filter as BPF for `machine` ("x86_64" or "aarch64")."""
    column = 0 if machine == "x86_64" else 1
    refused = [numbers[column] for numbers in _REFUSED.values()]
    if machine == "x86_64":
        refused += _OLD_X86.values()
    deny = _ERROR | errno.EPERM
    code = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the 32-bit numbers of x32 would pass by the list
        code += [(_JGE, 0, 1, 0x40000000), (_RETURN, 0, 0, deny)]
    for number in refused:
        code += [(_JEQ, 0, 1, number), (_RETURN, 0, 0, deny)]
    code += [(_JEQ, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]  # its flags cannot be read: use clone
    code += _argument(_CLONE[machine], 0, {}, bits=_NEW_NAMESPACE & ~0x80)
    code += _argument(_PRCTL[machine], 0, {_PR_SET_DUMPABLE: deny})
    code += _argument(_MADVISE[machine], 2, dict.fromkeys(_PAGE_OUT, deny))
    code += _argument(_FCNTL[machine], 1, dict.fromkeys(_COMMANDS, _ALLOW), otherwise=deny)
    for number in _SOCKETS[machine]:
        code += _argument(number, 0, dict.fromkeys(_FAMILIES, _ALLOW), otherwise=_ERROR | errno.EAFNOSUPPORT)
    # prlimit may read limits: then the third argument is a null pointer, both words of it.
    code += [
        (_JEQ, 0, 6, _PRLIMIT[machine]),
        (_LOAD, 0, 0, 32),
        (_JEQ, 0, 3, 0),
        (_LOAD, 0, 0, 36),
        (_JEQ, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, deny),
    ]
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _argument(number: int, which: int, answers: dict[int, int], otherwise: int = _ALLOW, bits: int = 0) -> list[tuple]:
    """For call `number`: the answer by the low word of its argument `which`; EPERM if it has any of these `bits`."""
    block = [(_LOAD, 0, 0, 16 + 8 * which)]
    if bits:
        block += [(_JSET, 0, 1, bits), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    for value, answer in answers.items():
        block += [(_JEQ, 0, 1, value), (_RETURN, 0, 0, answer)]
    block.append((_RETURN, 0, 0, otherwise))
    return [(_JEQ, 0, len(block), number), *block]


def _filter_calls() -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    machine = platform.machine()
    if machine not in _AUDIT:
        raise OSError(f"no system-call filter for {machine}")
    code = program(machine)
    _call("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("seccomp", _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0))


def _call(what: str, status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
