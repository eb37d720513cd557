"""Zips that strangers made and folders that they may still own: the plain files in them.

Nothing of a zip is unpacked to a disk. In a folder everything can be exchanged at any time; so every step down starts
from a folder that is open and follows no link. What a zip may hold against its reader, and what is done:

    names that lead elsewhere ("../x", "/etc/x", "C:\\x")      left out, and reported
    links and other things that are no plain files             left out, and reported
    one name twice                                             the last holds, as for unzip, and it is reported
    a bomb: little that unpacks to much                        unpacking ends at the caps, whatever the header claims
    an endless list of members                                 the list's size is looked at before it is read
    methods other than "stored" and "deflated", passwords      left out, and reported (LZMA may ask for 4 GiB at once)
    names in no encoding, backslashes of old Windows tools     read as UTF-8 where they are that, else as CP437
"""

import contextlib
import itertools
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from grading.intake.names import MAX_DEPTH, clean, noise

MAX_DIRECTORY = 4 << 20  # bytes of a zip's list of members: 40,000 files with long names
_END, _END_SIZE = b"PK\5\6", 22
_LOCATOR, _END64 = b"PK\6\7", b"PK\6\6"
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    OverflowError,
    struct.error,
    MemoryError,
    LookupError,
)
MAX_IN_FOLDER = 20_001  # names read of one folder: one more than anybody looks at
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for a writer
LINK, ODD = "is a link, and links are not followed", "is no plain file"
HARD_LINK = "has a second name somewhere (a hard link), and may be somebody else's file: copy it"


class BadArchive(Exception):
    """Nothing in it can be read. `str()` says why, as the end of a sentence."""


@dataclass(frozen=True)
class Member:
    """One file of an archive or a folder: its name as it stands ("/" between folders), and how to get at what is in it.

    fault   why it is not read, as the end of a sentence; "" if it is
    """

    name: str
    fault: str
    _open: Callable[[], IO[bytes]]

    def read(self, limit: int) -> bytes:
        """At most so many bytes, whatever a header claims. Raises BadArchive."""
        with _as_bad_archive(), self._open() as opened:
            return opened.read(limit)

    def copy(self, to: IO[bytes], limit: int) -> int:
        """Write it to an open file; how many bytes it has, and limit + 1, with no more written, if more than so many.
        Raises BadArchive."""
        done = 0
        with contextlib.ExitStack() as stack:
            with _as_bad_archive():
                opened = stack.enter_context(self._open())
            while True:
                with _as_bad_archive():
                    piece = opened.read(1 << 20)
                if not piece or done + len(piece) > limit:
                    return limit + 1 if piece else done
                to.write(piece)  # a full disk here is no fault of the archive
                done += len(piece)


@contextlib.contextmanager
def _as_bad_archive() -> Iterator[None]:
    try:
        yield
    except FAULTS as error:
        why = f"read ({error.strerror})" if isinstance(error, OSError) else f"unpacked ({type(error).__name__})"
        raise BadArchive(f"cannot be {why}") from None


def members(file: IO[bytes], max_directory: int = MAX_DIRECTORY) -> Iterator[Member]:
    """The plain files of a zip. Whether their names are harmless is for `names.harmless` to say.

    `file` must stay open while they are read. Raises BadArchive."""
    try:
        if _directory_size(file) > max_directory:
            raise BadArchive("lists more files than any submission needs")
        file.seek(0)
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except FAULTS as error:
        raise BadArchive(f"is damaged or no zip ({type(error).__name__})") from None
    for info in infos:
        name = _name(info)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if name.endswith("/") and kind in (0, stat.S_IFDIR):
            continue
        if kind == stat.S_IFLNK:
            fault = LINK
        elif kind not in (0, stat.S_IFREG):
            fault = ODD
        elif info.flag_bits & 1:
            fault = "has a password"
        elif info.compress_type not in _METHODS:
            fault = "is packed by a method that is not read here: make the zip with your system's own tool"
        else:
            fault = ""
        yield Member(name, fault, partial(archive.open, info))


def _name(info: zipfile.ZipInfo) -> str:
    """A member's name: UTF-8 also where an archive does not say so (as macOS makes them), "/" for "\\",
    and without the "./" that some tools begin with."""
    name = info.filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/").removeprefix("./")


def _directory_size(file: IO[bytes]) -> int:
    """Bytes of the list of members, as the record at the end claims and zipfile will read at once."""
    end = file.seek(0, 2)
    file.seek(max(0, end - (1 << 16) - _END_SIZE))
    tail = file.read()
    start = len(tail) - _END_SIZE
    if start < 0 or not (tail[start : start + 4] == _END and tail[-2:] == b"\0\0"):
        start = tail.rfind(_END)
    if start < 0 or start + _END_SIZE > len(tail):
        raise zipfile.BadZipFile
    size = struct.unpack_from("<L", tail, start + 12)[0]
    if start >= 20 and tail[start - 20 : start - 16] == _LOCATOR:
        at = struct.unpack_from("<Q", tail, start - 12)[0]
        # zipfile looks for the long record directly before its locator, and newer ones where the locator says.
        for place in (at, end - len(tail) + start - 20 - 56):
            if 0 <= place <= end - 56:
                file.seek(place)
                record = file.read(56)
                if record[:4] == _END64:
                    size = max(size if size != 0xFFFFFFFF else 0, struct.unpack_from("<Q", record, 40)[0])
    return size


def walk(top: int, prefix: str = "", steps: tuple[str, ...] = ()) -> Iterator[Member]:
    """All files below the open folder `top`, sorted folder by folder; also what is there and is no plain file.

    prefix, steps   the folder below it to begin with: its path as text, and its names on the disk

    What systems and tools leave about (`names.noise`) and virtual environments are left out without a word."""
    with contextlib.ExitStack() as opened:
        folder = top
        for step in steps:
            folder = os.open(step, FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        with os.scandir(folder) as scan:
            inside = sorted(entry.name for entry in itertools.islice(scan, MAX_IN_FOLDER))
        if "pyvenv.cfg" in inside:
            return
        for entry in inside:
            name, here = prefix + clean(entry), (*steps, entry)
            if noise(clean(entry)):
                continue
            try:
                status = os.stat(entry, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    yield Member(name, _fault(status), partial(open_plain, top, *here))
                elif len(here) >= MAX_DEPTH:
                    yield Member(name, f"lies more than {MAX_DEPTH} folders deep", _nothing)
                else:
                    yield from walk(top, f"{name}/", here)
            except OSError as error:
                yield Member(name, f"cannot be read ({error.strerror})", _nothing)


def file_at(path: Path) -> Member:
    """What lies there and is no folder."""
    return Member(clean(path.name), _fault(os.lstat(path)), partial(open_plain, None, os.fspath(path)))


def _fault(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return LINK if stat.S_ISLNK(status.st_mode) else ODD
    return HARD_LINK if status.st_nlink > 1 else ""


def _nothing() -> IO[bytes]:
    raise OSError(0, ODD)


def open_plain(top: int | None, *names: str) -> IO[bytes]:
    """Open a plain file: names of folders, and its own, below the open folder `top` (None: the working directory)."""
    with contextlib.ExitStack() as opened:
        for name in names[:-1]:
            top = os.open(name, FOLDER, dir_fd=top)
            opened.callback(os.close, top)
        file = os.open(names[-1], _FILE, dir_fd=top)
    if why := _fault(os.fstat(file)):
        os.close(file)
        raise OSError(0, why)
    return open(file, "rb")
