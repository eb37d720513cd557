"""A group whose other end is a broker, which in grading stands outside the sandbox: one socket carries all messages.

Frames, in both directions: 4 letters, the length of a JSON head, the length of a body, then both.

    rank -> broker   born  {}                                isolated: now the student's code may come
                     post  {group, ops: [[kind, peer, dtype, shape], ...], blocking, where}  body: what is sent
                     coll  {group, kind, op, src, dtype, shape, blocking, where}            body: what it brings
                     part  {group, name, parts: [[rank, ...], ...], where}                   a collective: a split
                     wait  {of: number of a post, coll or part, where}
                     span  {label, seconds, where}           a span of computing begins        over {}   and ends
                     done  body: the packed answer           fail  {what went wrong}
    broker -> rank   job   {what to run}   body: its arguments
                     comp  {of}            body: what the recvs of that post receive, or the collective's result
                     seen  {}              answers a span, where the rank's memory is read: it stands still meanwhile

A rank's posts, collectives and splits are numbered 0, 1, 2, ...; group 0 is all ranks, k the part of its k-th split.
"""

import ctypes
import json
import socket
import struct
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch

from labkit.comm.callsite import caller
from labkit.comm.ledger import WORLD, GroupId
from labkit.comm.transport import Collective, Op, Transport, Wait, dtype_name
from labkit.errors import LabError

HEADER = struct.Struct("!4sIQ")
MAX_HEAD = 1 << 16  # bytes of a frame's JSON head
MAX_BODY = 64 << 20  # bytes of a frame's body; the course's largest are a few MiB


def frame_head(kind: str, head: dict[str, Any], body_bytes: int = 0) -> bytes:
    """Everything of a frame but its body."""
    text = json.dumps(head).encode()
    if len(text) > MAX_HEAD:
        raise LabError(f"a call with a head of {len(text)} bytes: at most {MAX_HEAD} travel, make the batch smaller")
    if body_bytes > MAX_BODY:
        raise LabError(f"a call of {body_bytes} bytes: at most {MAX_BODY} can travel in one")
    return HEADER.pack(kind.encode().ljust(4), len(text), body_bytes) + text


def read_frame(link: socket.socket) -> tuple[str, dict[str, Any], bytearray]:
    """The next frame from a blocking socket. EOFError at its end."""
    kind, head, body = HEADER.unpack(_exactly(link, HEADER.size))
    return kind.decode().strip(), json.loads(_exactly(link, head) or b"{}"), _exactly(link, body)


def _exactly(link: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = link.recv_into(view)
        if not got:
            raise EOFError("the broker has closed the connection")
        view = view[got:]
    return data


def raw(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's memory, which lives as long as this."""
    if not tensor.numel():
        return memoryview(b"")
    memory: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor
    return memoryview(memory).cast("B")


class _Line:
    """What the groups of one rank share: the socket, and the calls that are under way on it."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.number, self.groups = link, 0, 1
        self.open: dict[int, list[torch.Tensor]] = {}  # what has not come yet: number -> tensors to fill
        self.unseen = 0  # spans that the broker has not answered yet

    def start(
        self, kind: str, head: dict, bodies: list[memoryview], fill: list[torch.Tensor], blocking: bool = True
    ) -> Wait:
        start = frame_head(kind, head, sum(map(len, bodies)))
        number, self.number = self.number, self.number + 1
        self.open[number] = fill
        self.link.sendall(start)
        for body in bodies:
            self.link.sendall(body)
        return lambda: self.wait(number, blocking)

    def wait(self, number: int, blocking: bool) -> None:
        if not blocking:
            # From here on this rank may stand still: the broker can tell who waits for whom.
            self.link.sendall(frame_head("wait", {"of": number, "where": caller()}))
        while number in self.open:
            self._take()

    def seen(self) -> None:
        """Stand still until the broker has read this rank's memory."""
        self.unseen += 1
        while self.unseen:
            self._take()

    def _take(self) -> None:
        kind, head, body = read_frame(self.link)
        if kind == "seen":
            self.unseen -= 1
            return
        if kind != "comp":
            raise LabError(f"the broker sent {kind!r} where a completion was due")
        start, data = 0, memoryview(body)
        for tensor in self.open.pop(head["of"]):
            into = raw(tensor)
            if into:
                into[:] = data[start : start + len(into)]
            start += len(into)


class BrokerTransport(Transport):
    """One rank's end; link: a connected stream socket; tidy: gives free memory back before each span of computing."""

    def __init__(self, rank: int, size: int, link: socket.socket, tidy: Callable[[], object] | None = None) -> None:
        self.rank, self.device, self.tidy = rank, torch.device("cpu"), tidy
        self.group, self._number, self._line = GroupId(WORLD, tuple(range(size))), 0, _Line(link)

    def post(self, ops: Sequence[Op]) -> Wait:
        sends = [raw(op.tensor) for op in ops if op.kind == "send"]
        described = [[op.kind, op.peer, dtype_name(op.tensor), list(op.tensor.shape)] for op in ops]
        head = {"group": self._number, "ops": described, "blocking": ops[0].blocking, "where": ops[0].where}
        return self._line.start("post", head, sends, [op.tensor for op in ops if op.kind == "recv"], ops[0].blocking)

    def collective(self, call: Collective) -> Wait:
        tensor = call.tensor if call.tensor is not None else torch.empty(0)  # of a barrier
        head = {name: getattr(call, name) for name in ("kind", "op", "src", "blocking", "where")}
        head |= {"group": self._number, "dtype": dtype_name(tensor), "shape": list(tensor.shape)}
        result = call.out if call.out is not None else tensor
        return self._line.start("coll", head, [raw(tensor)], [result], call.blocking)

    def split(self, call: Collective, parts: Sequence[Sequence[int]], group: GroupId) -> Transport:
        head = {"group": self._number, "name": group.name, "parts": [list(part) for part in parts], "where": call.where}
        self._line.start("part", head, [], [])()
        made = copy(self)  # the same line
        made.group, made._number = group, self._line.groups
        self._line.groups += 1
        return made

    def span(self, label: str, seconds: float | None, where: str) -> None:
        if self.tidy is not None:
            self.tidy()
        self._line.link.sendall(frame_head("span", {"label": label, "seconds": seconds, "where": where}))
        if self.tidy is not None:
            self._line.seen()

    def over(self) -> None:
        self._line.link.sendall(frame_head("over", {}))
