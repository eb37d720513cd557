"""Writing files that others read meanwhile: they see the old one or the new one; a failure becomes one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.errors import LabError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def replace_file(target: Path, content: str | bytes) -> None:
    """Write `content` beside `target`, through to the disk, and rename it over it. OSError: nothing has changed, and
    nothing is left beside. The process id keeps two writers from sharing one unfinished file."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
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
    """Turns an OSError inside the block into a LabError: "could not write PLACE: why" and `stop`. full: what to say
    besides where the disk is full."""
    try:
        yield
    except OSError as error:
        if full and error.errno in _FULL:
            raise LabError(f"the disk is full: could not write {place}; {full}") from error
        raise LabError(f"could not write {place}: {error.strerror or error}{stop}") from error
