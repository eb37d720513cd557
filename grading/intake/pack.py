"""An attempt on its way into the collection: what is in it, its digest, and the one .zip that it becomes.

A student's own .zip stays as it is, byte for byte, unopened. Anything else is packed: `load` finds the same files in
the pack as in what was handed in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO

from grading.intake.contents import FOLDER, LINK, ODD, copied, open_plain, walk
from grading.intake.find import Entry
from grading.intake.names import clean

MAX_ATTEMPT = 1 << 30  # bytes of one attempt
MAX_FILES = 20_000


class TooMuch(Exception):
    """An attempt that is not collected. `str()` says why, as the end of a sentence."""


def digest_of(entry: Entry) -> str:
    """sha256 (hex) of an entry's content: of its bytes for a .zip, else of names and contents. OSError, TooMuch."""
    whole = hashlib.sha256()
    if _own_zip(entry):
        with open_plain(None, os.fspath(entry.path)) as file:
            _within(copied(file, whole.update, MAX_ATTEMPT))
        return whole.hexdigest()
    room = MAX_ATTEMPT
    for name, fault, opened in _contents(entry):
        one = hashlib.sha256()
        if not fault:
            with opened() as file:
                _within(copied(file, one.update, room))
                room -= file.tell()
        whole.update(f"{name}\0{fault}\0{one.hexdigest()}\n".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def pack(entry: Entry, to: IO[bytes]) -> dict[str, str]:
    """Write the entry as one .zip; what is left out of it, and why. OSError, TooMuch."""
    if _own_zip(entry):
        with open_plain(None, os.fspath(entry.path)) as file:
            _within(copied(file, to.write, MAX_ATTEMPT))
        return {}
    left_out, room = {}, MAX_ATTEMPT
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, fault, opened in _contents(entry):
            if fault:
                left_out[name] = fault
                continue
            info = zipfile.ZipInfo(name)  # with one date for all: the same files make the same archive
            info.compress_type = zipfile.ZIP_DEFLATED
            with opened() as file, archive.open(info, "w", force_zip64=True) as into:
                _within(copied(file, into.write, room))
                room -= file.tell()
    return left_out


def _own_zip(entry: Entry) -> bool:
    return len(entry.parts) == 1 and entry.path.suffix.lower() == ".zip" and stat.S_ISREG(os.lstat(entry.path).st_mode)


def _contents(entry: Entry) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """(path as `load` would call it, why it is left out or "", a function that opens it)."""
    alone, count = len(entry.parts) == 1, 0
    for name, path in entry.parts:
        name = name or clean(path.name)
        kind = os.lstat(path).st_mode
        if stat.S_ISREG(kind):
            yield name, "", partial(open_plain, None, os.fspath(path))
            continue
        if not stat.S_ISDIR(kind):
            yield name, LINK if stat.S_ISLNK(kind) else ODD, _nothing
            continue
        with contextlib.ExitStack() as opened:
            top = os.open(path, FOLDER)
            opened.callback(os.close, top)
            for walked in walk(top):
                count += 1
                if count > MAX_FILES:
                    raise TooMuch(f"has more than {MAX_FILES} files")
                yield ("" if alone else f"{name}/") + walked.name, walked.fault, partial(walked.open, top)


def _nothing() -> IO[bytes]:
    raise OSError(0, ODD)


def _within(whole: bool) -> None:
    if not whole:
        raise TooMuch(f"has more than {MAX_ATTEMPT >> 20} MiB")
