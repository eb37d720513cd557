"""The plain files of a folder that a student may still own: between two looks everything in it can be exchanged.

So every step down, when listing and when opening a file later, starts from a folder that is open and follows no link.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from grading.intake.archive import LINK, ODD
from grading.intake.names import clean
from grading.intake.paths import EXCHANGE_FILES, MAX_DEPTH, noise

MAX_IN_FOLDER = 20_001  # names read of one folder: one more than anybody looks at
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for a writer


@dataclass(frozen=True)
class Walked:
    """One thing in the folder: its path there ("/" between folders, as text), and why it is not read ("" if it is)."""

    name: str
    fault: str
    steps: tuple[str, ...]  # the names on disk

    def open(self, top: int) -> BinaryIO:
        """Open the file below the open folder `top`. OSError if it is no plain file any more."""
        return open_plain(top, *self.steps)


def walk(top: int) -> Iterator[Walked]:
    """All files below the open folder `top`, sorted folder by folder; also what is there and is no plain file.

    Left out without a word: what systems and tools leave about (`paths.noise`), virtual environments, and nbgrader's
    own files at the top."""
    for walked in _walk(top, "", ()):
        if walked.name not in EXCHANGE_FILES:
            yield walked


def _walk(folder: int, prefix: str, steps: tuple[str, ...]) -> Iterator[Walked]:
    with os.scandir(folder) as scan:
        inside = sorted(entry.name for entry in itertools.islice(scan, MAX_IN_FOLDER))
    if "pyvenv.cfg" in inside:
        return
    for entry in inside:
        name, here = prefix + clean(entry), (*steps, entry)
        if noise(clean(entry)):
            continue
        try:
            kind = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISREG(kind):
                yield Walked(name, "", here)
            elif not stat.S_ISDIR(kind):
                yield Walked(name, LINK if stat.S_ISLNK(kind) else ODD, here)
            elif len(here) >= MAX_DEPTH:
                yield Walked(name, f"lies more than {MAX_DEPTH} folders deep", here)
            else:
                inner = os.open(entry, FOLDER, dir_fd=folder)
                try:
                    yield from _walk(inner, f"{name}/", here)
                finally:
                    os.close(inner)
        except OSError as error:
            yield Walked(name, f"cannot be read ({error.strerror})", here)


def open_plain(top: int | None, *names: str) -> BinaryIO:
    """Open a plain file: names of folders, and its own, below the open folder `top` (None: the working directory)."""
    with contextlib.ExitStack() as opened:
        for name in names[:-1]:
            top = os.open(name, FOLDER, dir_fd=top)
            opened.callback(os.close, top)
        file = os.open(names[-1], _FILE, dir_fd=top)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, ODD)
    return open(file, "rb")
