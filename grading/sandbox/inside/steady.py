"""A rank whose memory is read from outside: what the kernel says that it has must be what it holds.

By itself it is not. malloc keeps what is freed for the next request, and takes that from what it kept; a huge page
counts whole for the few kilobytes that are used of it. Then a rank that frees a block looks as if it held it, and one
that keeps it may look as if it did not.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD, _PR_SET_THP_DISABLE = -3, 41
OWN_PAGES = 1 << 16  # bytes from which on what is asked for gets pages of its own, and gives them back when it is freed
STASH = 1 << 17  # bytes of /tmp and of /dev/shm: a file there is memory that no process's size shows
NAMES = 256  # names in each: a name, and where a link leads to, are 400 bytes that no file's size shows

_libc = ctypes.CDLL(None, use_errno=True)


def steady() -> None:
    """Hold for this process, and what it starts without exec. OSError where the C library cannot (it is not glibc)."""
    try:
        told = _libc.mallopt(_M_MMAP_THRESHOLD, OWN_PAGES)  # and glibc adapts it no longer
        tidy()
    except AttributeError:
        told = 0
    if not told:
        raise OSError("this C library does not give freed memory back: the memory of a rank cannot be read")
    if _libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "huge pages cannot be switched off")


def tidy() -> None:
    """Give back to the kernel what is free."""
    _libc.malloc_trim(0)
