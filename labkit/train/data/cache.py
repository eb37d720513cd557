"""Something costly, built once, by whichever process comes first, and never seen half done."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import LabError


def cache_root() -> Path:
    """Return $LABKIT_CACHE, or ~/.cache/labkit."""
    try:
        return Path(os.environ.get("LABKIT_CACHE") or Path.home() / ".cache" / "labkit").expanduser()
    except RuntimeError:  # no HOME, and no entry in passwd
        raise LabError("this user has no home folder: set LABKIT_CACHE to a folder that you may write to") from None


def built_once(
    folder: Path,
    build: Callable[[Path], None],
    is_whole: Callable[[Path], bool],
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Return `folder`, built by `build(empty folder)` unless `is_whole(folder)`. LabError: the cache cannot be written."""
    try:
        if is_whole(folder):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(folder.name + ".lock"), on_wait) as alone:
            if is_whole(folder):  # somebody built it while we waited
                return folder
            if alone:
                for left in folder.parent.glob(f"{folder.name}.building-*"):
                    shutil.rmtree(left, ignore_errors=True)
            _build_and_rename(folder, build, is_whole)
    except OSError as err:
        raise LabError(
            f"cannot write the cache {folder.parent} ({err.strerror or err}): free some space there, "
            "or set LABKIT_CACHE to a folder that can be written"
        ) from err
    return folder


def _build_and_rename(folder: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> None:
    beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    try:
        build(beside)
        for path in beside.iterdir():  # a rename that outlives a power cut must not outlive the contents
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        try:
            beside.rename(folder)
        except OSError as err:  # only without a lock: another process was first
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_whole(folder):
                raise
    finally:  # also on Ctrl-C
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _lock(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold an exclusive lock; yield False where the file system has none to give."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as err:
            if err.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            yield False
            return
        yield True  # closing the file drops the lock
