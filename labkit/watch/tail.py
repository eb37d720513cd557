"""New lines of a JSON-lines file that somebody else is writing.

Three things happen to such a file. It grows; then only what is new is read. Its last line is not whole yet; then that
line waits. Or it is cut back and grows again (a resumed run drops the steps that it does anew, labkit.record.run), or
another file takes its place (`--fresh`); then what was read before is void, and the whole is read again. The cut may
have happened between two looks, so the size does not tell it: the last line that was read is compared with what
stands in its place now. A line that was done again has other seconds in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.record.clean import restore
from labkit.record.read import parse

MOST = 8 << 20  # bytes read at a look: a long record comes in parts, and the page answers between them


class Tail:
    """`read` gives what came since the last time. `behind`: bytes of whole lines that were left for the next look;
    `torn`: lines that are no JSON objects."""

    def __init__(self, file: Path, most: int = MOST) -> None:
        self.file, self.most = file, most
        self.behind, self.torn = 0, 0
        self._at, self._last, self._inode = 0, b"", 0
        self.written: float | None = None  # when the file was last written, by its file system's clock

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """(new lines, whether they replace all that were given before). A file that is not there is an empty one."""
        try:
            with open(self.file, "rb") as stream:
                about = os.fstat(stream.fileno())
                anew = self._at > 0 and not self._same(stream, about)
                if anew:
                    self._at, self._last, self.torn = 0, b"", 0
                self._inode, self.written = about.st_ino, about.st_mtime
                stream.seek(self._at)
                content = stream.read(self.most)
                if len(content) == self.most and b"\n" not in content:  # one line longer than a look
                    content += stream.readline()
        except OSError:
            anew = self._at > 0
            self._at, self._last, self.behind, self.written = 0, b"", 0, None
            return [], anew
        whole = content.rfind(b"\n") + 1
        self.behind = max(0, about.st_size - self._at - len(content))
        if whole:
            self._at += whole
            self._last = content[content.rfind(b"\n", 0, whole - 1) + 1 : whole]
        lines = [parse(line) for line in content[:whole].split(b"\n")[:-1]]
        found = [restore(line) for line in lines if line is not None]
        self.torn += len(lines) - len(found)
        return found, anew

    def _same(self, stream: Any, about: os.stat_result) -> bool:
        """Does the line that was read last still stand where it stood?"""
        if about.st_ino != self._inode or about.st_size < self._at:
            return False
        stream.seek(self._at - len(self._last))
        return stream.read(len(self._last)) == self._last


def newest(*tails: Tail) -> float | None:
    """When one of the files was last written, in seconds since 1970 by their file system's clock; None: none is
    there."""
    with suppress(ValueError):
        return max(tail.written for tail in tails if tail.written is not None)
    return None
