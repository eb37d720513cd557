"""What a rank process prints on one of its streams, passed on to the caller's: whole lines, the rank in front."""

from __future__ import annotations

import os
import sys
from typing import TextIO


class Output:
    """The reading end of a pipe. `last_words` are the last bytes passed on; `end` says that nothing more can come.

    name     the caller's stream: "stdout" or "stderr", looked up when something is to be written
    prefix   in front of every line
    room     bytes that it may still print; None: no limit
    stream   where to write instead of the caller's stream
    """

    def __init__(self, name: str, prefix: str) -> None:
        self.name, self.prefix = name, prefix
        self.room: int | None = None
        self.stream: TextIO | None = None
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self.last_words, self.end, self._partial = b"", False, b""

    def deal(self, what: int) -> None:
        """With what `poll` saw."""
        self.forward()

    def forward(self, last: bool = False) -> None:
        """Pass on what has come: whole lines, or everything at the end of a job."""
        text = self._partial
        try:
            for _ in range(16):  # then let the others speak: a rank can write as fast as this reads
                data = os.read(self.fd, 1 << 16)
                if not data:
                    self.end = True
                    break
                text += data
        except OSError:
            pass
        lines, newline, rest = text.rpartition(b"\n")
        if rest and (last or len(rest) > 1 << 20):
            lines, rest = lines + newline + rest, b""
        self._partial = rest
        self.last_words = (self.last_words + lines + b"\n")[-4000:]
        if self.room is not None:
            if len(lines) > self.room >= 0:
                lines = lines[: self.room] + b"\n(this rank prints too much: the rest of its output is dropped)"
                self.room = -1
            elif self.room < 0:
                lines = b""
            else:
                self.room -= len(lines)
        if lines:
            stream = self.stream or getattr(sys, self.name)
            text_lines = lines.decode("utf-8", "replace").split("\n")
            stream.write("".join(f"{self.prefix}{line}\n" for line in text_lines))
            stream.flush()

    def said(self, lines: int) -> list[str]:
        """Its last lines."""
        return self.last_words.decode("utf-8", "replace").strip().splitlines()[-lines:]

    def close(self) -> None:
        os.close(self.fd)
