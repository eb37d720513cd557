"""The filter of system calls, run here as the kernel runs it: for both machines, whatever this one is."""

import errno
import struct

import pytest

from grading.sandbox import filters
from tests.grading.test_run import needs_sandbox

pytestmark = needs_sandbox

ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
ABSENT, AGAIN = ERROR | errno.ENOSYS, ERROR | errno.EAGAIN
STEPS = 64  # of the filter for a call: the kernel takes them for each number there is when a rank installs it
HIGH = 1 << 32  # of an int's register, which the kernel ignores


def answer(code: bytes, words: list[int]) -> tuple[int, int]:
    """(what the filter returns, the steps it took) for a call's 32-bit words: number, machine, ..., arguments."""
    steps, at, value = 0, 0, 0
    while True:
        operation, yes, no, number = struct.unpack_from("=HBBI", code, 8 * at)
        at, steps = at + 1, steps + 1
        if operation == 0x20:
            value = words[number // 4]
        elif operation == 0x54:
            value &= number
        elif operation == 0x05:
            at += number
        elif operation == 0x06:
            return number, steps
        else:
            holds = {0x15: value == number, 0x25: value > number, 0x35: value >= number, 0x45: bool(value & number)}
            at += yes if holds[operation] else no


def data(number: int, machine: str, *arguments: int) -> list[int]:
    given = [*arguments, *(0,) * (6 - len(arguments))]
    return [number, filters.MACHINES[machine], 0, 0, *(w for one in given for w in (one & 0xFFFFFFFF, one >> 32))]


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_nobody_sends_a_signal_as_the_kernel_would(machine):
    """A rank is process 1 of its namespace: only the kernel's SIGKILL ends it, and is taken for a lack of memory."""
    for name in ("rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        got, _ = answer(filters.program(machine), data(filters.number(name, machine), machine))
        assert got != ALLOW


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_the_filter_allows_what_is_on_the_list_and_nothing_else(machine):
    code = filters.program(machine)
    allowed = {filters.number(name, machine) for name in filters.ALLOWED.split()}
    by_argument = {filters.number(name, machine) for name, _, where in filters.rules() if where}
    assert len([number for number in allowed if number >= 0]) > 100
    for number in (*range(2000), 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF, *range(0x40000000, 0x40000400)):  # the last: x32's
        got, steps = answer(code, data(number, machine))
        assert steps <= STEPS, number
        if number not in by_argument:
            x32 = machine == "x86_64" and number >= 0x40000000
            assert got in ((KILL, ABSENT) if x32 else (ALLOW,) if number in allowed else (ABSENT,)), number
    words = data(0, machine)
    words[1] = 0x40000003  # a call of another machine's, by the same kernel
    assert answer(code, words)[0] == KILL


# What one process can see of another by it: marks on a file, its pages in memory, the machine's load, numbers dealt from
# one row, queues and memory in the kernel, another's memory. Each was an attack that worked without the filter.
SHARED = """
    flock inotify_init1 inotify_add_watch fadvise64 mincore preadv2 io_submit io_uring_setup sysinfo pidfd_open membarrier
    shmget shmat mq_open bind listen accept accept4 sendmsg recvmsg memfd_create mlock ptrace process_vm_readv
    setpriority ioprio_set sched_setaffinity setrlimit add_key keyctl unshare setns mount umount2
"""


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_what_processes_share_is_not_there(machine):
    for name in SHARED.split():
        number = filters.number(name, machine)
        assert number < 0 or answer(filters.program(machine), data(number, machine))[0] == ABSENT, name


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (0x11,), ALLOW),
        ("clone", (0x10000000,), ABSENT),
        ("clone", (0x1011,), ABSENT),  # with a descriptor of the process
        ("clone3", (), ABSENT),
        ("clone", (0x3D0F00,), ALLOW),  # a thread
        ("clone", (0x3D0B00,), ABSENT),  # with open files of its own
        ("mmap", (0, 0, 3, 0x22), ALLOW),
        ("mmap", (0, 0, 3, 0x01), ALLOW),
        *(("mmap", (0, 0, 3, flags), ABSENT) for flags in (0x21, 0x23, 0x4021, 0x21 + HIGH)),  # shared, of no file
        ("getsockopt", (0, 1, 3), ALLOW),
        ("getsockopt", (0, 1, 57), ABSENT),  # a cookie
        ("prctl", (15,), ALLOW),
        ("prctl", (4,), ABSENT),  # dumpable
        ("madvise", (0, 0, 4), ALLOW),
        ("madvise", (0, 0, 21), ABSENT),  # out of memory
        ("madvise", (0, 0, 21 + HIGH), ABSENT),
        ("fcntl", (0, 1), ALLOW),
        *(("fcntl", (0, how), ABSENT) for how in (6, 37, 1024, 1036)),  # locks, a lease, how long a text will live
        ("ioctl", (0, 0x541B), ALLOW),
        ("ioctl", (0, 0x541B + HIGH), ALLOW),
        *(("ioctl", (0, how), ABSENT) for how in (0x5412, 0x40045431)),  # types into a terminal, unlocks a new one
        ("prlimit64", (0, 7, 0), ALLOW),
        ("prlimit64", (0, 7, 1), ABSENT),
        ("prlimit64", (0, 7, HIGH), ABSENT),
        ("socket", (1, 0x80001), ALLOW),
        ("socketpair", (10, 1), ALLOW),
        ("socket", (1, 2), ABSENT),  # datagrams
        ("socket", (40, 1), ABSENT),  # vsock
        ("socket", (1 + HIGH, 2 + HIGH), ABSENT),
        *(("futex", (0, op | 128), ALLOW) for op in range(13)),
        *(("futex", (0, op), AGAIN) for op in (0, 9, 0x100, 0x109, HIGH)),  # waits on what others may have, too
        *(("futex", (0, op), ABSENT) for op in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 1 + HIGH)),
        ("futex_waitv", (), ABSENT),
    ],
)
def test_the_filter_looks_at_arguments(call, arguments, expected):
    for machine in filters.MACHINES:
        number = filters.number(call, machine)
        assert answer(filters.program(machine), data(number, machine, *arguments))[0] == expected, machine
