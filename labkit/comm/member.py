"""One rank process, seen from the caller: its four connections, and what is known of it.

control    frames in both directions (labkit.comm.serialization): jobs out, results back
out, err   what the rank prints, passed on line by line
report     the helper writes the rank's exit status here, when there is one
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import Any

from labkit.comm import forkserver
from labkit.comm.serialization import Reader

STATUS = struct.Struct("!I")


class Member:
    """One rank process and the caller's ends of its four connections."""

    def __init__(self, rank: int, size: int, setup: dict[str, Any]) -> None:
        self.rank, self.size = rank, size
        self.control, theirs = socket.socketpair()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.report, report = os.pipe()
        helper = forkserver.server()
        try:
            modules = [m for m in forkserver.WORTH_SHARING if m in sys.modules]
            if setup["device"] == "cpu":
                modules += [later for m, later in forkserver.ON_CPU.items() if m in sys.modules]
            answer = helper.request(
                {"do": "rank", "modules": modules, "helper": helper.process.pid, "setup": {**setup, "rank": rank}},
                [theirs.fileno(), out, err, report],
            )
            self.pid, self.helper = answer["pid"], helper
        finally:
            theirs.close()
            for fd in (out, err, report):
                os.close(fd)
        self.control.setblocking(False)
        for fd in (self.out, self.err):
            os.set_blocking(fd, False)
        self.reader, self.to_send = Reader(), memoryview(b"")
        self.partial = {self.out: b"", self.err: b""}
        self.last_words = b""
        self.ended: set[int] = set()  # connections that the rank has closed: each would wake the caller for ever
        self.status: int | None = None  # as os.waitpid gave it
        self.fresh()

    def fresh(self, output_limit: int | None = None) -> None:
        """Forget the last job."""
        self.state, self.value, self.ledger, self.failure, self.order = "running", None, None, {}, float("inf")
        self.phase, self.stale, self.room = "", False, output_limit

    def send(self, data: bytes) -> None:
        """Queue data. It leaves as the rank takes it: two sides that both wait to write would wait for ever."""
        self.to_send = memoryview(bytes(self.to_send) + data)
        self.flush()

    def flush(self) -> None:
        try:
            while self.to_send:
                self.to_send = self.to_send[self.control.send(self.to_send[: 1 << 20]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.to_send = memoryview(b"")  # it is gone: its exit status says how

    def take(self) -> list[tuple[str, bytes]]:
        frames = []
        try:
            while data := self.control.recv(1 << 20):
                frames += self.reader.feed(data)
            self.ended.add(self.control.fileno())
        except OSError:
            pass
        return frames

    def forward(self, fd: int, last: bool = False) -> None:
        """Pass on what the rank has written: whole lines, or everything at the end of a job."""
        text = self.partial[fd]
        try:
            for _ in range(16):  # then let the others speak: a rank can write as fast as this reads
                data = os.read(fd, 1 << 16)
                if not data:
                    self.ended.add(fd)
                    break
                text += data
        except OSError:
            pass
        lines, newline, rest = text.rpartition(b"\n")
        if rest and (last or len(rest) > 1 << 20):
            lines, rest = lines + newline + rest, b""
        self.partial[fd] = rest
        if fd == self.err:
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
            stream = sys.stdout if fd == self.out else sys.stderr
            prefix = f"[rank {self.rank}] " if self.size > 1 else ""
            stream.write("".join(f"{prefix}{line}\n" for line in lines.decode("utf-8", "replace").split("\n")))
            stream.flush()

    def read_status(self) -> None:
        if self.status is None:
            data = os.read(self.report, STATUS.size)
            self.status = STATUS.unpack(data)[0] if data else 0xFF00  # the helper died with it
            if self.state == "running":
                self.state, self.order = "died", time.perf_counter()

    def close(self) -> None:
        self.control.close()
        for fd in (self.out, self.err, self.report):
            os.close(fd)


def parse_trace(path: str) -> list[tuple[str, int, str]]:
    """The main thread's frames in the last dump that faulthandler wrote to this file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first, *lines = file.read().splitlines()
    except (OSError, ValueError):
        return []
    frames: list[tuple[str, int, str]] = []
    inside = False
    for line in lines:
        if line.startswith(("Thread 0x", "Current thread 0x")):
            inside = int(line.split("0x", 1)[1].split()[0], 16) == int(first, 16)
            if inside:
                frames = []
        elif inside and line.startswith('  File "'):
            file, _, rest = line[8:].rpartition('", line ')
            number, _, function = rest.partition(" in ")
            if number.isdigit():
                frames.append((file, int(number), function))
    return frames
