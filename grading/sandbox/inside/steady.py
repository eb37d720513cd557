"""A rank whose memory is read from outside: what the kernel says that it has must be what it holds.

By itself it is not. malloc keeps what is freed for the next request, and takes that from what it kept; a huge page
counts whole for the few kilobytes that are used of it. Then a rank that frees a block looks as if it held it, and one
that keeps it may look as if it did not.

The heap of a rank grows by huge pages, since that makes forking it cheap (command.py), and then `malloc_trim` leaves up
to 2 MiB at its end alone. Blocks that lay there and were freed counted, in some sandboxes and not in others: whether
there is room is up to what the zygote has imported.
"""

import ctypes
import mmap

_M_MMAP_THRESHOLD, _PR_SET_THP_DISABLE = -3, 41
OWN_PAGES = 1 << 16  # bytes from which on what is asked for gets pages of its own, and gives them back when it is freed
STASH = 1 << 17  # bytes of /tmp and of /dev/shm: a file there is memory that no process's size shows
NAMES = 256  # names in each: a name, and where a link leads to, are 400 bytes that no file's size shows

TRIES = 16  # free blocks in the heap that may be as large as its end

_libc = ctypes.CDLL(None, use_errno=True)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        *((f"_{n}", ctypes.c_int) for n in range(9)),
        ("keepcost", ctypes.c_int),
    ]  # bytes free at the heap's end


def steady() -> None:
    """Hold for this process, and what it starts without exec. OSError where the C library cannot (it is not glibc)."""
    try:
        accepted = _libc.mallopt(_M_MMAP_THRESHOLD, OWN_PAGES)  # and glibc adapts it no longer
        tidy()
    except AttributeError:
        accepted = 0
    if not accepted:
        raise OSError("this C library does not give freed memory back: the memory of a rank cannot be read")
    if _libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "huge pages cannot be switched off")


def tidy() -> None:
    """Give back to the kernel what is free.

    The heap's end is taken, emptied and freed: while it is ours, no other thread can be given it."""
    _libc.malloc_trim(0)
    _libc.mallinfo.restype, _libc.sbrk.restype, _libc.malloc.restype = _Mallinfo, ctypes.c_size_t, ctypes.c_size_t
    left = _libc.mallinfo().keepcost
    if left < 4 * mmap.PAGESIZE:
        return
    taken = []
    for _ in range(TRIES):
        taken.append(_libc.malloc(ctypes.c_size_t(left - mmap.PAGESIZE)))
        if taken[-1] >= _libc.sbrk(0) - left:
            break
    for block in filter(None, taken):
        begin = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = (block + left - mmap.PAGESIZE - begin) // mmap.PAGESIZE
        _libc.madvise(ctypes.c_size_t(begin), ctypes.c_size_t(pages * mmap.PAGESIZE), mmap.MADV_DONTNEED)
        _libc.free(ctypes.c_size_t(block))
