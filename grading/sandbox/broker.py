"""The broker: the other end of every rank's only socket.

It matches sends with receives and computes collectives (the same matching as ranks on threads use), and keeps each
rank's ledger itself. So the ledger that a check reads holds what really crossed, whatever the rank's own process
believes; and who waits for whom is known here, not asked.

Everything that comes from a rank is a claim about itself, read as data: JSON heads of capped size, bodies of the length
that their shapes demand, dtypes from torch's own names, groups by number out of those that its splits have given it. A
frame that breaks a rule ends that rank's call, and nothing else. A span of computing is a claim too: it is timed here,
and proves nothing.
"""

import fcntl
import json
import re
import socket
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grading.sandbox.frames import Broken, failure, line, tensor_of, typed
from labkit.comm.arguments import REDUCIBLE, size_dtype_shape
from labkit.comm.group import format_split
from labkit.comm.ledger import WORLD, Event, GroupId, Ledger
from labkit.comm.link import HEADER, MAX_BODY, MAX_HEAD, frame_head, raw
from labkit.comm.rendezvous import Pending, RankEnded, Rendezvous
from labkit.comm.transport import Collective, Op

# What ranks may make this process hold. Beyond that they flood, and their call ends.
MAX_ANSWER = 16 << 20  # bytes of one rank's packed answer
MAX_HELD = 512 << 20  # bytes of all ranks: half messages, calls that are not complete, results not yet fetched
MAX_OPEN = 4096  # one rank's calls that are not complete
MAX_EVENTS = 5_000  # of one rank; a ledger keeps 100,000, and a forbidden call must not drop out of it
MAX_BARRIERS = 64  # of one rank: they carry no bytes, and cost this process as much as a message
MAX_GROUPS = 32  # splits of one rank
MAX_SPAN = 1e6  # seconds of computing in one span
MAX_READ = 1 << 18  # bytes read at a time: the deadline is looked at in between


MOVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")  # collectives that "coll" may ask for
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(#[0-9]{1,3})?(/[A-Za-z][A-Za-z0-9_+-]{0,31}(#[0-9]{1,3})?){0,3}")


class _Meeting(Rendezvous):
    """A rendezvous that tells which ops and contributions have been completed since it was last asked."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.completed: list[Pending] = []

    def _complete(self, *items: Pending) -> None:
        super()._complete(*items)
        self.completed += items


@dataclass
class _Call:
    """A post or a collective. `left`: its ops that are not complete; `fill`: what its answer brings, when the rank has
    said that it waits: who had it before could leave the wait out of the ledger, or tell it later."""

    left: int
    events: list[Event | None]
    fill: list[torch.Tensor]
    held: int
    waited: bool = False
    gives: GroupId | None = None  # of a split: the group that this rank is in from its completion on


class Endpoint:
    """The broker's end of one rank's socket, and what is known of the rank."""

    def __init__(self, rank: int, size: int, link: socket.socket, start: float) -> None:
        self.rank, self.link = rank, link
        self.ledger = Ledger(rank, size, start=start)
        self.state = "running"  # "running", "returned", "raised", "died"
        self.born = False  # it was shut in: whatever happens to it now is its own doing
        self.changed = float("inf")  # when it stopped running
        self.answer = b""
        self.failure: dict[str, Any] = {}
        self.inbox = bytearray()
        self.outbox: deque[memoryview] = deque()
        self.calls: list[_Call] = []
        self.groups = [GroupId(WORLD, tuple(range(size)))]  # by the rank's own numbers
        self.splits = self.barriers = 0
        self.span: Event | None = None  # of computing, under way
        self.open: dict[int, Event | None] = {}  # number of an unfinished call -> its "wait" event, if any
        self.held = self.queued = 0  # bytes of its open calls, and of what it has not fetched yet

    @property
    def blocked(self) -> bool:
        """Whether it stands in a call of the group."""
        return bool(self.ledger.open())


class Broker:
    """The ranks of one call: `read` what they say, `write` what is due to them.

    off     defences to switch off, by name (tests only): "broker" is all its caps, "waits" that results wait for a wait
    weigh   bytes of memory that a rank holds now. Then it is read at every span of computing, for the rank's ledger
    """

    def __init__(
        self, links: list[socket.socket], off: frozenset[str] = frozenset(), weigh: Callable[[int], int] | None = None
    ) -> None:
        self.start, self.weigh = time.perf_counter(), weigh
        self.size, self.off, self.capped = len(links), off, "broker" not in off
        self.rendezvous = _Meeting(self.size)
        self.owners: dict[Pending, tuple[Endpoint, int]] = {}
        self.endpoints = [Endpoint(rank, self.size, link, self.start) for rank, link in enumerate(links)]
        self.version = 0  # grows with everything a rank does

    @property
    def fault(self) -> str | None:
        """Two ranks met in a call and did not mean the same: in words."""
        return self.rendezvous.fault

    # -- bytes ------------------------------------------------------------------------------------------------------
    def read(self, endpoint: Endpoint) -> bool:
        """Take what has arrived. False at the end of the connection."""
        try:
            data = endpoint.link.recv(MAX_READ)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        endpoint.inbox += data
        self._enough_room()
        while (frame := self._next(endpoint)) is not None:
            self._take(endpoint, *frame)
        return True

    def write(self, endpoint: Endpoint) -> None:
        """Send what is due, as far as the rank takes it."""
        try:
            while endpoint.outbox:
                sent = endpoint.link.send(endpoint.outbox[0])
                endpoint.queued -= sent
                if sent < len(endpoint.outbox[0]):
                    endpoint.outbox[0] = endpoint.outbox[0][sent:]
                else:
                    endpoint.outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            endpoint.outbox.clear()  # it is gone; its guard says how
            endpoint.queued = 0

    def send(self, endpoint: Endpoint, kind: str, head: dict[str, Any], *bodies: Any) -> None:
        views = [memoryview(body) for body in bodies if len(body)]
        for view in (memoryview(frame_head(kind, head, sum(map(len, views)))), *views):
            endpoint.outbox.append(view)
            endpoint.queued += len(view)
        self.write(endpoint)

    def _next(self, endpoint: Endpoint) -> tuple[str, dict[str, Any], bytearray] | None:
        inbox = endpoint.inbox
        if len(inbox) < HEADER.size:
            return None
        kind, head, body = HEADER.unpack_from(inbox)
        if self.capped and (head > MAX_HEAD or body > (MAX_ANSWER if kind == b"done" else MAX_BODY)):
            raise Broken(
                f"a message of {head + body} bytes"
                if kind != b"done"
                else f"an answer of {body / 2**20:.0f} MiB, more than the {MAX_ANSWER >> 20} that a rank may"
            )
        if len(inbox) < HEADER.size + head + body:
            return None
        text = bytes(memoryview(inbox)[HEADER.size : HEADER.size + head])
        content = bytearray(memoryview(inbox)[HEADER.size + head : HEADER.size + head + body])
        del inbox[: HEADER.size + head + body]
        try:
            parsed = json.loads(text or b"{}")
            if not isinstance(parsed, dict):
                raise ValueError
            return kind.decode("ascii").strip(), parsed, content
        except (ValueError, RecursionError):
            raise Broken("a message that is none") from None

    # -- messages ---------------------------------------------------------------------------------------------------
    def _take(self, endpoint: Endpoint, kind: str, head: dict[str, Any], body: bytearray) -> None:
        self.version += 1
        if endpoint.state != "running":
            return  # it has said its last word
        try:
            if kind in ("post", "coll"):
                (self._post if kind == "post" else self._collective)(endpoint, head, body)
            elif kind == "part":
                self._split(endpoint, head)
            elif kind == "wait":
                self._wait(endpoint, head)
            elif kind in ("span", "over"):
                self._span(endpoint, head if kind == "span" else None)
            elif kind == "done":
                endpoint.state, endpoint.answer, endpoint.changed = "returned", bytes(body), time.perf_counter()
            elif kind == "born":
                endpoint.born = True
            elif kind == "fail":
                endpoint.failure = failure(head)
                endpoint.state, endpoint.changed = "raised", time.perf_counter()
            else:
                raise Broken("a message of an unknown kind")
        except RankEnded:
            pass  # the rendezvous has a fault, or is over: the call ends now
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError, RuntimeError) as error:
            raise Broken(f"a message that is none ({type(error).__name__})") from None

    def _group(self, endpoint: Endpoint, head: dict[str, Any]) -> GroupId:
        """The group that a frame speaks of. Only its members may."""
        number = head["group"]
        if type(number) is not int or not 0 <= number < len(endpoint.groups):
            raise Broken("a call in a group that is none")
        group = endpoint.groups[number]
        if endpoint.rank not in group.ranks:
            raise Broken(f'a call in group "{group.name}", of which it is no member')
        return group

    def _post(self, endpoint: Endpoint, head: dict[str, Any], body: bytearray) -> None:
        group = self._group(endpoint, head)
        where, blocking, start = line(head["where"], 300), bool(head["blocking"]), 0
        ops, fill = [], []
        if not head["ops"]:
            raise Broken("a post of nothing")
        for kind, peer, dtype, shape in head["ops"]:
            if (
                kind not in ("send", "recv")
                or type(peer) is not int
                or peer not in group.ranks
                or peer == endpoint.rank
            ):
                raise Broken("a message to nobody")
            dtype, shape, length = typed(dtype, shape)
            if kind == "send":
                tensor = tensor_of(body, start, length, dtype, shape)
                start += length
            else:
                tensor = torch.empty(shape, dtype=dtype)
                fill.append(tensor)
            ops.append(Op(kind, peer, tensor, where, blocking))
        if start != len(body):
            raise Broken("a message that is longer than it says")
        calls = ((op.kind, op.peer, *size_dtype_shape(op.tensor)) for op in ops)
        events = endpoint.ledger.begin_together(calls, blocking=blocking, where=where, group=group.name)
        held = self._hold(endpoint, len(body), fill)
        self._started(endpoint, self.rendezvous.post(group, endpoint.rank, ops), _Call(len(ops), events, fill, held))

    def _collective(self, endpoint: Endpoint, head: dict[str, Any], body: bytearray) -> None:
        group = self._group(endpoint, head)
        kind, op, src, where = head["kind"], head["op"], head["src"], line(head["where"], 300)
        if (
            kind not in MOVES
            or op not in (None, "sum", "max", "min", "prod")
            or not (src is None or (type(src) is int and src in group.ranks))
        ):
            raise Broken("a collective that is none")
        tensor = out = None
        size, ranks = 0, len(group.ranks)
        if kind == "barrier":
            endpoint.barriers += 1
            if self.capped and endpoint.barriers > MAX_BARRIERS:
                raise Broken(f"more than {MAX_BARRIERS} barriers of one rank")
        else:
            dtype, shape, length = typed(head["dtype"], head["shape"])
            tensor = tensor_of(body, 0, length, dtype, shape)
            if length != len(body):
                raise Broken("a collective that is longer than it says")
            size = length * (ranks if kind == "all_gather" else 1)
            if kind == "all_gather":
                out = torch.empty((ranks * shape[0], *shape[1:]), dtype=dtype)
            elif kind == "reduce_scatter":
                out = torch.empty((shape[0] // ranks, *shape[1:]), dtype=dtype)
            if kind in ("all_reduce", "reduce_scatter") and (op is None or dtype not in REDUCIBLE):
                raise Broken("a collective that is none")
        if kind == "broadcast" and src is None:
            raise Broken("a collective that is none")
        fields = (size, *size_dtype_shape(tensor)[1:]) if tensor is not None else (0, "", ())
        event = endpoint.ledger.begin(
            kind, src, *fields, op=op, blocking=bool(head["blocking"]), where=where, group=group.name
        )
        call = Collective(kind, tensor, out, op, src, where)
        fill = [tensor if out is None else out] if tensor is not None else []
        held = self._hold(endpoint, len(body), fill)
        self._started(endpoint, [self.rendezvous.contribute(group, endpoint.rank, call)], _Call(1, [event], fill, held))

    def _split(self, endpoint: Endpoint, head: dict[str, Any]) -> None:
        """A group is cut into parts. When all its ranks have asked for the same, each is in its own."""
        group = self._group(endpoint, head)
        name, parts, where = head["name"], [tuple(part) for part in head["parts"]], line(head["where"], 300)
        every = [rank for part in parts for rank in part]
        if (
            not isinstance(name, str)
            or not NAME.fullmatch(name)
            or name in (one.name for one in endpoint.groups)
            or not all(type(rank) is int and rank in group.ranks for rank in every)
            or not all(part and part == tuple(sorted(part)) for part in parts)
            or len(set(every)) < len(every)
        ):
            raise Broken("a split that is none")
        endpoint.splits += 1
        if self.capped and endpoint.splits > MAX_GROUPS:
            raise Broken(f"more than {MAX_GROUPS} splits of one rank")
        call = Collective("split", op=format_split(name, parts), where=where)
        event = endpoint.ledger.begin("split", op=call.op, where=where, group=group.name)
        gives = GroupId(name, next((part for part in parts if endpoint.rank in part), ()))
        items = [self.rendezvous.contribute(group, endpoint.rank, call)]
        self._started(endpoint, items, _Call(1, [event], [], self._hold(endpoint, 0, []), gives=gives))

    def _span(self, endpoint: Endpoint, head: dict[str, Any] | None) -> None:
        """A span of computing begins, or ends (no head)."""
        if (head is None) == (endpoint.span is None):
            raise Broken("a span of computing inside another" if head else "the end of a span that has not begun")
        if head is None:
            endpoint.ledger.finish(endpoint.span)
            endpoint.span = None
            return
        label, seconds, where = line(head["label"], 100), head["seconds"], line(head["where"], 300)
        if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds <= MAX_SPAN):
            raise Broken("a span of computing of no length")
        self._hold(endpoint, 0, [])
        endpoint.span = endpoint.ledger.begin("compute", blocking=False, where=where, label=label, seconds=seconds)
        if self.weigh is not None and endpoint.span is not None:
            # The rank stands still until it is answered, or a slow judge would read what it holds some blocks later.
            held = self.weigh(endpoint.rank)
            if not held:  # it was read before; a process whose first thread has gone shows nothing
                raise Broken("a process whose memory cannot be read")
            unread = int.from_bytes(fcntl.ioctl(endpoint.link, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
            endpoint.ledger.weighed[endpoint.span.index] = held + endpoint.queued + unread  # all its own
            self.send(endpoint, "seen", {})

    def _started(self, endpoint: Endpoint, items: Sequence[Pending], call: _Call) -> None:
        number = len(endpoint.calls)
        endpoint.calls.append(call)
        endpoint.open[number] = None
        self.owners.update(dict.fromkeys(items, (endpoint, number)))
        completed, self.rendezvous.completed = self.rendezvous.completed, []
        for item in completed:  # this call's, or another's that waited for it
            owner, number = self.owners.pop(item)
            owner.calls[number].left -= 1
            if not owner.calls[number].left:
                self._finish(owner, number)

    def _finish(self, endpoint: Endpoint, number: int) -> None:
        call, waiting = endpoint.calls[number], endpoint.open.pop(number)
        for event in (*call.events, waiting):
            endpoint.ledger.finish(event)
        if call.gives is not None:
            endpoint.groups.append(call.gives)
            if call.gives.ranks:
                endpoint.ledger.join(call.gives)
        call.events[1:] = []  # what is waited for is the first
        event = call.events[0]
        if not call.fill or call.waited or event is None or event.blocking or "waits" in self.off:
            self._answer(endpoint, number)

    def _answer(self, endpoint: Endpoint, number: int) -> None:
        call = endpoint.calls[number]
        endpoint.held -= call.held
        self.send(endpoint, "comp", {"of": number}, *(raw(tensor) for tensor in call.fill))
        call.fill = []

    def _wait(self, endpoint: Endpoint, head: dict[str, Any]) -> None:
        number = head["of"]
        if type(number) is not int or not 0 <= number < len(endpoint.calls):
            raise Broken("a wait for nothing")
        call = endpoint.calls[number]
        if call.waited:
            return
        self._hold(endpoint, 0, [])
        call.waited = True
        event = endpoint.ledger.begin_wait(call.events[0], line(head["where"], 300))
        if number in endpoint.open:
            endpoint.open[number] = event
        else:
            endpoint.ledger.finish(event)
            if call.fill:
                self._answer(endpoint, number)

    def _hold(self, endpoint: Endpoint, sent: int, fill: list[torch.Tensor]) -> int:
        """Count a call's bytes against the rank. (torch.empty takes none before they are written.)"""
        held = sent + sum(tensor.numel() * tensor.element_size() for tensor in fill)
        endpoint.held += held
        self._enough_room()
        if self.capped and len(endpoint.open) >= MAX_OPEN:
            raise Broken(f"{len(endpoint.open) + 1} calls of one rank, none of them complete")
        if self.capped and len(endpoint.ledger.events) > MAX_EVENTS:
            raise Broken(f"more than {MAX_EVENTS} messages and collectives of one rank")
        return held

    def _enough_room(self) -> None:
        held = sum(endpoint.held + endpoint.queued + len(endpoint.inbox) for endpoint in self.endpoints)
        if self.capped and held > MAX_HELD:
            raise Broken(f"messages of {held >> 20} MiB that nobody has received; {MAX_HELD >> 20} is the limit")
