"""The folder that a release goes to. It is somebody else's: it may hold links, odd things, and be full.

Every step down a path opens the next folder without following links, and files are moved into the folder so opened;
so a link that appears while a release runs leads nowhere either. A file is written whole beside (`.labs/incoming`) and
moved into place, so that it is the old text or the new one and never a part, whenever a release is killed.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import LabError

LABS = ".labs"
_INCOMING = "incoming"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Blocked(Exception):
    """A part of a path is a link or no folder. `str()` is that part's path."""


class Other:
    """What `read` returns for something that is no plain file: a link, a folder, a pipe."""


OTHER = Other()


class Target:
    """An open target folder, made if it is not there, and locked against a second release. Use it in a `with`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with contextlib.ExitStack() as opened:
            root.mkdir(parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the root itself may be a link
            opened.callback(os.close, self._root)
            try:
                self._labs = self._step(self._root, LABS, create=True)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise LabError(f"{root / LABS} is a link or no folder: move it away, and release again") from None
                raise
            opened.callback(os.close, self._labs)
            try:
                fcntl.flock(self._labs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LabError(f"another release into {root} is running: wait for its end") from None
            self._close = opened.pop_all()

    def __enter__(self) -> "Target":
        return self

    def __exit__(self, *exc: object) -> None:
        self._close.close()

    def read(self, path: str) -> bytes | Other | None:
        """A file's bytes; None if nothing is there; OTHER if it is no plain file. Blocked if it cannot be reached."""
        with self._folder_of(path) as (folder, name):
            if folder is None:
                return None
            try:
                # Non-blocking: opening a pipe would wait for a writer.
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    return OTHER
                raise
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                return OTHER
            with open(file, "rb") as opened:
                return opened.read()

    def write(self, path: str, data: bytes, executable: bool = False) -> None:
        """Put a file in place, whole. One that is there keeps its permissions. Blocked as `read`."""
        with self._folder_of(path, create=True) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_INCOMING, dir_fd=self._labs)  # of a release that was killed
            new = os.open(
                _INCOMING,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                0o777 if executable else 0o666,
                dir_fd=self._labs,
            )
            try:
                with open(new, "wb") as file:
                    file.write(data)
                    with contextlib.suppress(FileNotFoundError):
                        os.fchmod(new, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))
                os.replace(_INCOMING, name, src_dir_fd=self._labs, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_INCOMING, dir_fd=self._labs)
                raise

    def remove(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        with self._folder_of(path) as (folder, name):
            if folder is None:
                return
            os.unlink(name, dir_fd=folder)
        while "/" in path:
            path = path.rpartition("/")[0]
            with self._folder_of(path) as (folder, name):
                try:
                    os.rmdir(name, dir_fd=folder)
                except OSError:  # something is in it
                    return

    @contextlib.contextmanager
    def _folder_of(self, path: str, create: bool = False) -> Iterator[tuple[int | None, str]]:
        """(open folder that holds the path, its last name); the folder is None if it does not exist."""
        *parts, name = path.split("/")
        if any(part in ("", ".", "..") for part in (*parts, name)):
            raise Blocked(path)
        with contextlib.ExitStack() as opened:
            folder = self._root
            for depth, part in enumerate(parts, 1):
                try:
                    folder = self._step(folder, part, create)
                except FileNotFoundError:
                    yield None, name
                    return
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise Blocked("/".join(parts[:depth])) from None
                    raise
                opened.callback(os.close, folder)
            yield folder, name

    @staticmethod
    def _step(folder: int, name: str, create: bool) -> int:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)
