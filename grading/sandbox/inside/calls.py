"""Which system calls a rank may make: a filter of the kernel's, from a list of what is allowed.

What is not on the list does not exist for a rank (ENOSYS): so a kernel newer than the list brings it nothing. Left out
is what shows or changes something that processes share past all namespaces: the machine's memory and load (sysinfo),
priorities and processors, which pages of a file are in memory (mincore, preadv2, io_submit, hints), locks and watches
on files, keys, terminals, other namespaces, memory that no process's size shows (memfd, System V, locked pages; and
what waits in the kernel for whoever comes: a connection that nobody has accepted, a datagram whose sender is gone, an
open file on its way to another process). No task needs any of it: a rank has one socket, and speaks to the broker.
"""

from __future__ import annotations

import errno
import struct
from functools import cache

# Allowed with any arguments. The numbers are of x86-64 and arm64; None: it has no such call.
# fmt: off
ALLOWED = {
    # files, each with the permissions that it has
    "read": (0, 63), "write": (1, 64), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "creat": (85, None), "close": (3, 57), "close_range": (436, 436), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "futimesat": (261, None), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82),
    "fdatasync": (75, 83), "umask": (95, 166), "statfs": (137, 43), "fstatfs": (138, 44), "getxattr": (191, 8),
    "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11), "llistxattr": (195, 12),
    "flistxattr": (196, 13), "copy_file_range": (326, 285), "sendfile": (40, 71),
    # descriptors
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "signalfd": (282, None), "signalfd4": (289, 74),
    # sockets, of its own network and of the families below; nobody can listen, so each end of a stream is an open file
    "bind": (49, 200), "connect": (42, 203),
    "getsockname": (51, 204), "getpeername": (52, 205), "sendto": (44, 206), "recvfrom": (45, 207),
    "shutdown": (48, 210), "setsockopt": (54, 208), "getsockopt": (55, 209),
    # its memory
    "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "brk": (12, 214),
    "msync": (26, 227), "membarrier": (324, 283), "get_mempolicy": (239, 236),
    # processes, of its own namespace
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "wait4": (61, 260),
    "waitid": (247, 95), "exit": (60, 93), "exit_group": (231, 94), "getpid": (39, 172), "gettid": (186, 178),
    "getppid": (110, 173), "getpgrp": (111, None), "getpgid": (121, 155), "setpgid": (109, 154), "getsid": (124, 156),
    "setsid": (112, 157), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "arch_prctl": (158, None),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "futex": (202, 98),
    "futex_waitv": (449, 449), "rseq": (334, 293), "capget": (125, 90), "getrlimit": (97, 163),
    "getrusage": (98, 165), "times": (100, 153), "uname": (63, 160), "getcpu": (309, 168), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    # signals, to its own processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sigaltstack": (131, 132), "pause": (34, None), "alarm": (37, None), "setitimer": (38, 103),
    "getitimer": (36, 102), "restart_syscall": (219, 128),
    # time, and what it may know of its own place
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "timer_create": (222, 107), "timer_settime": (223, 110),
    "timer_gettime": (224, 108), "timer_getoverrun": (225, 109), "timer_delete": (226, 111), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_getattr": (315, 275), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sched_rr_get_interval": (148, 127), "getpriority": (140, 141), "getrandom": (318, 278),
}
# fmt: on
# Allowed with some arguments only: see `program`.
CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_PRCTL = {"x86_64": 157, "aarch64": 167}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_MADVISE = {"x86_64": 28, "aarch64": 233}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}  # socket, socketpair
_PR_SET_DUMPABLE = 4
_COMMANDS = (0, 1, 2, 3, 4, 1030, 1031, 1032)  # of fcntl: descriptors, flags, pipes; locks and hints mark a file
# of ioctl: is it a terminal, its size and owner, what is there to read, blocking and closing
_ASKED = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PAGE_OUT = (20, 21)  # of madvise: cold, out
_FAMILIES = (1, 2, 10)  # unix, IPv4, IPv6; others (vsock!) know no network namespace
_STREAM, _SOCKET_FLAGS = 1, 0x80800  # the one kind of socket; close-on-exec and non-blocking, which come with it
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # the machines that there is a filter for
# BPF: load a word, mask, jumps, return
_LOAD, _AND, _JUMP, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NAMESPACES = 0x7E020000 | 0x00000080  # clone's flags: user, pid, net, ipc, uts, cgroup, mount; and time


@cache  # the zygote makes it, ranks have it
def program(machine: str) -> bytes:
    """The filter as BPF for `machine` ("x86_64" or "aarch64")."""
    deny, absent = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    code = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, AUDIT[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the 32-bit numbers of x32 would pass by the list
        code += [(_JGE, 0, 1, 0x40000000), (_RETURN, 0, 0, deny)]
    column = 0 if machine == "x86_64" else 1
    code += _any_of({number for numbers in ALLOWED.values() if (number := numbers[column]) is not None})
    code += [(_JEQ, 0, 1, _CLONE3), (_RETURN, 0, 0, absent)]  # its flags cannot be read: use clone
    code += _argument(CLONE[machine], 0, {}, bits=_NAMESPACES & ~0x80)
    code += _argument(_PRCTL[machine], 0, {_PR_SET_DUMPABLE: deny})
    code += _argument(_MADVISE[machine], 2, dict.fromkeys(_PAGE_OUT, deny))
    code += _argument(_FCNTL[machine], 1, dict.fromkeys(_COMMANDS, _ALLOW), otherwise=deny)
    code += _argument(_IOCTL[machine], 1, dict.fromkeys(_ASKED, _ALLOW), otherwise=_ERROR | errno.ENOTTY)
    for number in _SOCKETS[machine]:
        code += _socket(number)
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
    code += [(_RETURN, 0, 0, absent)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _any_of(numbers: set[int]) -> list[tuple]:
    """Allow these calls; any other goes on behind it. By halves, as the kernel runs the filter for each number there is
    whenever a rank installs it: asked for one after the other that took a fiftieth of a good rank's time."""
    borders = sorted(n for number in numbers for n in (number, number + 1) if (n in numbers) != (n - 1 in numbers))

    def between(first: int, after: int) -> list[tuple]:
        """For a number that lies behind borders[:first] and before borders[after:]."""
        if first == after:  # behind an odd number of borders it is one of them
            return [(_RETURN, 0, 0, _ALLOW)] if first % 2 else [(_JUMP, 0, 0, None)]
        middle = (first + after) // 2
        below, above = between(first, middle), between(middle + 1, after)
        return [(_JGE, 0, 1, borders[middle]), (_JUMP, 0, 0, len(below)), *below, *above]

    code = between(0, len(borders))
    return [(*step[:3], len(code) - place - 1 if step[3] is None else step[3]) for place, step in enumerate(code)]


def _argument(number: int, which: int, answers: dict[int, int], otherwise: int = _ALLOW, bits: int = 0) -> list[tuple]:
    """For call `number`: the answer by the low word of its argument `which`; EPERM if it has any of these `bits`."""
    block = [(_LOAD, 0, 0, 16 + 8 * which)]
    if bits:
        block += [(_JSET, 0, 1, bits), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    for value, answer in answers.items():
        block += [(_JEQ, 0, 1, value), (_RETURN, 0, 0, answer)]
    block.append((_RETURN, 0, 0, otherwise))
    return [(_JEQ, 0, len(block), number), *block]


def _socket(number: int) -> list[tuple]:
    """For call `number`, socket or socketpair: a stream of one of the families."""
    block = [(_LOAD, 0, 0, 16)]
    block += [(_JEQ, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]  # past the next line
    block.append((_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT))
    block += [(_LOAD, 0, 0, 24), (_AND, 0, 0, 0xFFFFFFFF ^ _SOCKET_FLAGS), (_JEQ, 0, 1, _STREAM)]
    block += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.ESOCKTNOSUPPORT)]
    return [(_JEQ, 0, len(block), number), *block]
