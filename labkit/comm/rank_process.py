"""One rank process, as its caller sees it: its three connections, and what is known of it."""

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from labkit.comm.autopsy import Evidence
from labkit.comm.ledger import Ledger, read_sink
from labkit.comm.serialization import unpack
from labkit.comm.worker import HEADER
from labkit.errors import LabError


class Output:
    """The reading end of a pipe: passes whole lines on to the caller's stream, each with `prefix`, up to `room` bytes."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name, self.prefix = name, prefix
        self.room: int | None = None
        self.stream: TextIO | None = None
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self.last_words, self.end, self._partial = b"", False, b""

    def handle(self, events: int) -> None:
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

    def tail(self, lines: int) -> list[str]:
        return self.last_words.decode("utf-8", "replace").strip().splitlines()[-lines:]

    def close(self) -> None:
        os.close(self.fd)


class RankProcess:
    """One rank process. control: frames in both directions (labkit.comm.worker); out, err: what it prints."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.pid = rank, size, 0
        self.had = (0.0, 0.0)  # its `times` when its job began (labkit.comm.processor)
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        prefix = f"[rank {rank}] " if size > 1 else ""
        self.out, self.err = self.outputs = Output("stdout", prefix), Output("stderr", prefix)
        self.theirs = [theirs.detach(), self.out.theirs, self.err.theirs]
        self.said, self.to_send = bytearray(), memoryview(b"")
        self.end = False  # it has closed its connection, or died: that would wake the caller for ever
        self.status: int | None = None  # its exit status; minus the signal that ended it
        self.goal = ""  # what it says next if all is well: then it has "returned"
        self.fresh()

    def fresh(self, output_limit: int | None = None) -> None:
        self.state, self.order = "running", float("inf")
        self.answer, self.out.room, self.err.room = b"", output_limit, output_limit
        self.ledger: Ledger | None = None
        self.failure: dict[str, Any] = {}  # `describe_error` of what it raised, and the exception itself

    def send(self, data: bytes) -> None:
        """Queue data, which leaves as the rank takes it."""
        # Two sides that both wait to write would wait for ever.
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

    def handle(self, events: int) -> None:
        if events & select.POLLOUT:
            self.flush()
        if events & ~select.POLLOUT:
            self.take()

    def take(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.control.recv(1 << 20):
                self.said += data
            self.end = True
        for kind, content in self._frames():
            if kind == "ledg":
                self.ledger = Ledger.from_json(json.loads(content))
            elif kind == "fail":
                self.failure, self.state, self.order = unpack(content), "raised", time.perf_counter()
                try:
                    self.failure["error"] = unpack(self.failure["error"])
                except Exception:  # a class that only the rank could import
                    self.failure["error"] = None
            elif kind == self.goal:
                self.state, self.answer = "returned", content

    def _frames(self) -> Iterator[tuple[str, bytes]]:
        while len(self.said) >= HEADER.size:
            kind, length = HEADER.unpack_from(self.said)
            if len(self.said) < HEADER.size + length:
                return
            content = bytes(memoryview(self.said)[HEADER.size : HEADER.size + length])
            del self.said[: HEADER.size + length]
            yield kind.decode().strip(), content

    def died(self, status: int) -> None:
        self.take()  # a result that was sent before the end counts
        self.status, self.end = status, True
        if self.state == "running":
            self.state, self.order = "died", time.perf_counter()

    def evidence(self, now: float, sink: str) -> Evidence:
        ledger = self.ledger or read_sink(sink.format(rank=self.rank), self.rank, self.size)
        status = self.status if self.state == "died" else None
        return Evidence(self.rank, ledger, self.state, now=now, order=self.order, status=status, **self.failure)

    def refuse(self, what: str) -> NoReturn:
        """Raise the LabError of a rank that failed before the function ran."""
        if self.state == "raised":
            error = self.failure["error"]
            if isinstance(error, LabError):
                raise error
            raise LabError(f"rank {self.rank} {what}: {self.failure['text']}\n{self.failure['traceback']}") from error
        self.err.forward(last=True)
        raise LabError(f"rank {self.rank} {what}: its process died (status {self.status}) {' '.join(self.err.tail(3))}")

    def close(self) -> None:
        for output in self.outputs:
            output.forward(last=True)
            output.close()
        self.control.close()
