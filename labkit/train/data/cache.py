"""Something costly, built once, by whichever process comes first, and never seen half done."""

import fcntl
import os
import shutil
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
    folder: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool], on_wait: Callable[[], None]
) -> None:
    """Have `folder` built by `build(empty folder)` unless `is_whole(folder)`. LabError: the cache cannot be written."""
    if is_whole(folder):
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock"), on_wait):
            if not is_whole(folder):  # or somebody built it while we waited
                _build_and_rename(folder, build)
    except OSError as err:
        fix = "free some space there, or set LABKIT_CACHE to another folder"
        raise LabError(f"cannot write the cache {folder.parent} ({err.strerror or err}): {fix}") from err


def _build_and_rename(folder: Path, build: Callable[[Path], None]) -> None:
    beside = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed builder left
    try:
        beside.mkdir()
        build(beside)
        for path in beside.iterdir():  # a rename that outlives a power cut must not outlive the contents
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        beside.rename(folder)
    finally:  # also on Ctrl-C
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock."""
    with path.open("a") as file:  # closing it drops the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
