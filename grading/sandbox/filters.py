"""Which system calls a rank may make: a filter of the kernel's, made by libseccomp from lists of what is allowed.

What is not on the list does not exist for a rank (ENOSYS): so a kernel newer than the list brings it nothing, nor does
a name that this machine's libseccomp does not know. Left out is what shows or changes something that processes share
past all namespaces: the machine's memory and load (sysinfo), priorities and processors, which pages of a file are in
memory (mincore, preadv2, io_submit, hints), locks and watches on files, futexes on a file's pages, keys, terminals,
numbers that the kernel deals to all from one row (of process descriptors, socket cookies, unnamed addresses),
memory barriers of the whole machine, other namespaces, memory that no process's size shows (memfd, System V, locked
pages, shared memory of no file, which stays when a process lets go of its pages; a thread's own open files; and what
waits in the kernel for whoever comes: a connection that nobody has accepted, a datagram whose sender is gone, an open
file on its way to another process). No task needs any of it: a rank has one socket, and speaks to the broker.
"""

import ctypes
import errno
import os
import platform
from functools import cache
from typing import NamedTuple

from labkit.errors import LabError

ALLOWED = """
    read write open openat openat2 creat close close_range stat fstat lstat newfstatat statx lseek pread64 pwrite64
    readv writev preadv pwritev access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd chdir fchdir
    rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat link linkat symlink symlinkat chmod fchmod fchmodat
    fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat truncate ftruncate fallocate fsync fdatasync
    umask statfs fstatfs getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr copy_file_range sendfile
    dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
    epoll_pwait2 eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4
    connect getsockname getpeername sendto recvfrom shutdown munmap mremap mprotect brk msync get_mempolicy
    fork vfork execve execveat wait4 waitid exit exit_group getpid gettid getppid getpgrp getpgid setpgid getsid setsid
    getuid geteuid getgid getegid getresuid getresgid getgroups arch_prctl set_tid_address set_robust_list
    get_robust_list rseq capget getrlimit getrusage times uname getcpu
    kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait
    sigaltstack pause alarm setitimer getitimer restart_syscall
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time timer_create timer_settime timer_gettime
    timer_getoverrun timer_delete sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval getpriority getrandom
"""
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # what there is a filter for, and how the kernel calls it
_NAMESPACES = 0x7E021000  # clone's flags: user, pid, net, ipc, uts, cgroup, mount; and a process's descriptor
_THREAD, _FILES = 0x10000, 0x400  # clone's flags, too: a thread, the same table of open files
_SHARED, _NO_FILE = 1, 0x20  # mmap's flags
_PRIVATE, _CLOCK = 128, 256  # futex's flags: of this process alone; by the wall clock
_FAMILIES = 1, 2, 10  # unix, IPv4, IPv6; others (vsock!) know no network namespace
_SOCKET_FLAGS = 0x80800  # close-on-exec and non-blocking, which come with a socket's kind
# Values that an argument of a call may have: which argument, which values.
_VALUES = {
    "fcntl": (1, (0, 1, 2, 3, 4, 1030, 1031, 1032)),  # descriptors, flags, pipes; locks and hints mark a file
    # is it a terminal, its size and owner, what is there to read, blocking and closing
    "ioctl": (1, (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    "getsockopt": (2, (3, 4, 38, 39)),  # a socket's kind, error, protocol, family
    "madvise": (2, (0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19)),  # not: cold, out, mergeable
    # a parent's end, dumpable, the own name, no new rights, a mapping's name
    "prctl": (0, (1, 3, 15, 16, 38, 39, 0x53564D41)),
}
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_BAD_ARCH, _OPTIMIZE, _BY_HALVES = 2, 8, 2  # attributes; as the kernel runs it for each number when a rank installs it
_MASKED = 7  # libseccomp's comparison of an argument's bits
_WORD = 0xFFFFFFFF  # an int: of such an argument the kernel ignores the rest


class _Compare(ctypes.Structure):
    _fields_ = [("which", ctypes.c_uint), ("how", ctypes.c_int), ("bits", ctypes.c_uint64), ("value", ctypes.c_uint64)]


class Where(NamedTuple):
    """Holds where argument `which` has `value` in these `bits`."""

    which: int
    value: int
    bits: int = _WORD


def rules() -> list[tuple[str, int, tuple[Where, ...]]]:
    """(call, what the kernel does, for which arguments). Whatever no rule allows is ENOSYS: clone3 too, whose flags
    cannot be read."""
    found: list[tuple[str, int, tuple[Where, ...]]] = [(name, _ALLOW, ()) for name in ALLOWED.split()]
    found += [(name, _ALLOW, (Where(n, value),)) for name, (n, values) in _VALUES.items() for value in values]
    found.append(("clone", _ALLOW, (Where(0, 0, _NAMESPACES | _THREAD),)))
    found.append(("clone", _ALLOW, (Where(0, _THREAD | _FILES, _NAMESPACES | _THREAD | _FILES),)))
    found.append(("mmap", _ALLOW, (Where(3, 0, _SHARED),)))
    found.append(("mmap", _ALLOW, (Where(3, _SHARED, _SHARED | _NO_FILE),)))
    found.append(("prlimit64", _ALLOW, (Where(2, 0, 2**64 - 1),)))  # may read limits: sets none
    for name in ("socket", "socketpair"):
        found += [(name, _ALLOW, (Where(0, one), Where(1, 1, _WORD ^ _SOCKET_FLAGS))) for one in _FAMILIES]
    # A word of a file that many may only read is a bell for all of them: who waits there is found by whoever wakes, and
    # a thread's end wakes, too. Who joins a thread (FUTEX_WAIT, FUTEX_WAIT_BITSET) is answered that it has changed.
    found.append(("futex", _ALLOW, (Where(1, _PRIVATE, _PRIVATE),)))
    again = _ERROR | errno.EAGAIN
    found += [("futex", again, (Where(1, wait, _WORD ^ _CLOCK),)) for wait in (0, 9)]
    return found


@cache
def program(machine: str) -> bytes:
    """The filter as BPF for `machine` ("x86_64" or "aarch64"). LabError without libseccomp, or for another machine."""
    library = _library()
    if machine not in MACHINES:
        raise LabError(f"there is no system-call filter for {machine}: grade on an x86-64 or arm64 machine")
    context = library.seccomp_init(_ERROR | errno.ENOSYS)
    file = os.memfd_create("filter")
    try:
        if machine != platform.machine():
            _did(library.seccomp_arch_add(context, MACHINES[machine]))
            _did(library.seccomp_arch_remove(context, library.seccomp_arch_native()))
        _did(library.seccomp_attr_set(context, _BAD_ARCH, _KILL))
        _did(library.seccomp_attr_set(context, _OPTIMIZE, _BY_HALVES))
        for name, action, where in rules():
            known = library.seccomp_syscall_resolve_name(name.encode())
            if known == -1:
                continue  # newer than this libseccomp: not allowed
            compared = (_Compare * max(1, len(where)))(*(_Compare(w.which, _MASKED, w.bits, w.value) for w in where))
            _did(library.seccomp_rule_add_array(context, action, known, len(where), compared))
        _did(library.seccomp_export_bpf(context, file))
        return os.pread(file, 1 << 20, 0)
    finally:
        os.close(file)
        library.seccomp_release(context)


def number(call: str, machine: str) -> int:
    """A call's number on a machine; below zero: it has no such call, or this libseccomp does not know it."""
    return _library().seccomp_syscall_resolve_name_arch(MACHINES[machine], call.encode())


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        raise LabError(
            "libseccomp is not installed, and it makes the system-call filter: sudo apt install libseccomp2"
        ) from None
    u32, i32, context = ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p
    library.seccomp_init.restype, library.seccomp_init.argtypes = context, [u32]
    library.seccomp_release.argtypes, library.seccomp_release.restype = [context], None
    library.seccomp_arch_native.restype, library.seccomp_arch_native.argtypes = u32, []
    library.seccomp_arch_add.argtypes = library.seccomp_arch_remove.argtypes = [context, u32]
    library.seccomp_attr_set.argtypes = [context, i32, u32]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_syscall_resolve_name_arch.argtypes = [u32, ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [context, u32, i32, ctypes.c_uint, ctypes.POINTER(_Compare)]
    library.seccomp_export_bpf.argtypes = [context, i32]
    return library


def _did(status: int) -> None:
    if status < 0:
        raise LabError(f"libseccomp makes no system-call filter: {os.strerror(-status)}")
