"""Files put in place whole, zips that do not depend on the day, and folders that one process at a time writes into."""

import contextlib
import fcntl
import io
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from labkit.errors import LabError


def put(path: Path, content: bytes | Callable[[IO[bytes]], object], mode: int = 0o666) -> None:
    """Put a file in place: whoever reads it sees the old one or the new one, also after a kill. The caller is its only
    writer; what a killed one left beside it is replaced.

    content   bytes, or a function that writes them into an open file
    mode      its permissions, less what the process's umask takes away
    """
    beside = path.with_name(f".{path.name[:100]}.part")
    beside.unlink(missing_ok=True)
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def zipped(files: Mapping[str, bytes], executable: Collection[str] = ()) -> bytes:
    """A zip of these files in their order, with no time in it: the same files give the same bytes."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if name in executable else 0o100644) << 16
            archive.writestr(info, data)
    return whole.getvalue()


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a file's or a folder's lock, which ends with the process. LabError(busy) if another one holds it."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if path.is_dir() else os.O_CREAT), 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(busy) from None
        yield
    finally:
        os.close(handle)
