"""Writing files that others read meanwhile: they see the old one or the new one; a failure becomes one sentence."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.errors import LabError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def replace_file(target: Path, content: str | bytes) -> None:
    """Replace `target` whole, through to the disk. OSError: nothing has changed, and nothing is left beside it."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")  # two writers share no unfinished file
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


@contextmanager
def explained(place: str | Path, *, full: str = "", stop: str = "") -> Iterator[None]:
    """An OSError inside becomes a LabError: "could not write PLACE: why" and `stop`, or `full` where the disk is full."""
    try:
        yield
    except OSError as error:
        if full and error.errno in FULL:
            raise LabError(f"the disk is full: could not write {place}; {full}") from error
        raise LabError(f"could not write {place}: {error.strerror or error}{stop}") from error
