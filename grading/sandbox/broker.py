"""The broker: the other end of every rank's only socket.

It matches sends with receives and computes collectives (the same matching as ranks on threads use), and keeps each
rank's ledger itself. So the ledger that a check reads holds what really crossed, whatever the rank's own process
believes; and who waits for whom is known here, not asked.

Everything that comes from a rank is a claim about itself, read as data: JSON heads of capped size, bodies of the length
that their shapes demand, dtypes from torch's own names, groups by number out of those that its splits have given it. A
frame that breaks a rule ends that rank's call, and nothing else. A span of computing is a claim too: it is timed here,
and proves nothing.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grading.sandbox.frames import Broken, failure, line, tensor_of, typed
from labkit.comm.arguments import REDUCIBLE, dtype_name
from labkit.comm.group import told_split
from labkit.comm.ledger import WORLD, Event, GroupId, Ledger
from labkit.comm.link import HEADER, MAX_BODY, MAX_HEAD, frame_head, raw
from labkit.comm.rendezvous import Pending, RankEnded, Rendezvous
from labkit.comm.transport import Collective, Op

# What ranks may make this process hold. Beyond that they flood, and their call ends.
MAX_ANSWER = 16 << 20  # bytes of one rank's packed answer
MAX_HELD = 512 << 20  # bytes of all ranks: half messages, calls that are not complete, results not yet fetched
MAX_OPEN = 4096  # one rank's calls that are not complete
MAX_EVENTS = 40_000  # of one rank; a ledger keeps 100,000, and a forbidden call must not drop out of it
MAX_GROUPS = 64  # splits of one rank
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
    """A post or a collective. `left`: its ops that are not complete; `fill`: what its answer brings."""

    left: int
    events: list[Event | None]
    fill: list[torch.Tensor]
    held: int
    waited: bool = False
    gives: GroupId | None = None  # of a split: the group that this rank is in from its completion on


class Member:
    """One rank, seen from the broker."""

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
        self.splits = 0
        self.span: Event | None = None  # of computing, under way
        self.open: dict[int, Event | None] = {}  # number of an unfinished call -> its "wait" event, if any
        self.held = self.queued = 0  # bytes of its open calls, and of what it has not fetched yet

    @property
    def blocked(self) -> bool:
        """Whether it stands in a call of the group."""
        return bool(self.ledger.open())


class Broker:
    """The ranks of one call: `read` what they say, `write` what is due to them.

    off     defences to switch off, by name: "broker" is all its caps (tests only)
    """

    def __init__(self, links: list[socket.socket], off: frozenset[str] = frozenset()) -> None:
        self.start = time.perf_counter()
        self.size, self.capped = len(links), "broker" not in off
        self.rendezvous = _Meeting(self.size)
        self.owners: dict[Pending, tuple[Member, int]] = {}
        self.members = [Member(rank, self.size, link, self.start) for rank, link in enumerate(links)]
        self.version = 0  # grows with everything a rank does

    @property
    def fault(self) -> str | None:
        """Two ranks met in a call and did not mean the same: in words."""
        return self.rendezvous.fault

    # -- bytes ------------------------------------------------------------------------------------------------------
    def read(self, member: Member) -> bool:
        """Take what has arrived. False at the end of the connection."""
        try:
            data = member.link.recv(MAX_READ)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        member.inbox += data
        self._enough_room()
        while (frame := self._next(member)) is not None:
            self._take(member, *frame)
        return True

    def write(self, member: Member) -> None:
        """Send what is due, as far as the rank takes it."""
        try:
            while member.outbox:
                sent = member.link.send(member.outbox[0])
                member.queued -= sent
                if sent < len(member.outbox[0]):
                    member.outbox[0] = member.outbox[0][sent:]
                else:
                    member.outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            member.outbox.clear()  # it is gone; its guard says how
            member.queued = 0

    def send(self, member: Member, kind: str, head: dict[str, Any], *bodies: Any) -> None:
        views = [memoryview(body) for body in bodies if len(body)]
        for view in (memoryview(frame_head(kind, head, sum(map(len, views)))), *views):
            member.outbox.append(view)
            member.queued += len(view)
        self.write(member)

    def _next(self, member: Member) -> tuple[str, dict[str, Any], bytearray] | None:
        inbox = member.inbox
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
    def _take(self, member: Member, kind: str, head: dict[str, Any], body: bytearray) -> None:
        self.version += 1
        if member.state != "running":
            return  # it has said its last word
        try:
            if kind in ("post", "coll"):
                (self._post if kind == "post" else self._collective)(member, head, body)
            elif kind == "part":
                self._split(member, head)
            elif kind == "wait":
                self._wait(member, head)
            elif kind in ("span", "over"):
                self._span(member, head if kind == "span" else None)
            elif kind == "done":
                member.state, member.answer, member.changed = "returned", bytes(body), time.perf_counter()
            elif kind == "born":
                member.born = True
            elif kind == "fail":
                member.failure = failure(head)
                member.state, member.changed = "raised", time.perf_counter()
            else:
                raise Broken("a message of an unknown kind")
        except RankEnded:
            pass  # the rendezvous has a fault, or is over: the call ends now
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError, RuntimeError) as error:
            raise Broken(f"a message that is none ({type(error).__name__})") from None

    def _group(self, member: Member, head: dict[str, Any]) -> GroupId:
        """The group that a frame speaks of. Only its members may."""
        number = head["group"]
        if type(number) is not int or not 0 <= number < len(member.groups):
            raise Broken("a call in a group that is none")
        group = member.groups[number]
        if member.rank not in group.ranks:
            raise Broken(f'a call in group "{group.name}", of which it is no member')
        return group

    def _post(self, member: Member, head: dict[str, Any], body: bytearray) -> None:
        group = self._group(member, head)
        where, blocking, start = line(head["where"], 300), bool(head["blocking"]), 0
        ops, fill = [], []
        if not head["ops"]:
            raise Broken("a post of nothing")
        for kind, peer, dtype, shape in head["ops"]:
            if kind not in ("send", "recv") or type(peer) is not int or peer not in group.ranks or peer == member.rank:
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
        events: list[Event | None] = []
        batch = None
        for op in ops:
            event = member.ledger.begin(
                op.kind,
                op.peer,
                op.tensor.numel() * op.tensor.element_size(),
                dtype_name(op.tensor),
                tuple(op.tensor.shape),
                batch=batch,
                blocking=blocking,
                where=where,
                group=group.name,
            )
            batch = event.batch if event is not None else None
            events.append(event)
        held = self._hold(member, len(body), fill)
        self._started(member, self.rendezvous.post(group, member.rank, ops), _Call(len(ops), events, fill, held))

    def _collective(self, member: Member, head: dict[str, Any], body: bytearray) -> None:
        group = self._group(member, head)
        kind, op, src, where = head["kind"], head["op"], head["src"], line(head["where"], 300)
        if (
            kind not in MOVES
            or op not in (None, "sum", "max", "min", "prod")
            or not (src is None or (type(src) is int and src in group.ranks))
        ):
            raise Broken("a collective that is none")
        tensor = out = None
        size, ranks = 0, len(group.ranks)
        if kind != "barrier":
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
        event = member.ledger.begin(
            kind,
            src,
            size,
            dtype_name(tensor) if tensor is not None else "",
            tuple(tensor.shape) if tensor is not None else (),
            op=op,
            blocking=bool(head["blocking"]),
            where=where,
            group=group.name,
        )
        call = Collective(kind, tensor, out, op, src, where)
        fill = [tensor if out is None else out] if tensor is not None else []
        held = self._hold(member, len(body), fill)
        self._started(member, [self.rendezvous.contribute(group, member.rank, call)], _Call(1, [event], fill, held))

    def _split(self, member: Member, head: dict[str, Any]) -> None:
        """A group is cut into parts. When all its ranks have asked for the same, each is in its own."""
        group = self._group(member, head)
        name, parts, where = head["name"], [tuple(part) for part in head["parts"]], line(head["where"], 300)
        every = [rank for part in parts for rank in part]
        if (
            not isinstance(name, str)
            or not NAME.fullmatch(name)
            or name in (one.name for one in member.groups)
            or not all(type(rank) is int and rank in group.ranks for rank in every)
            or not all(part and part == tuple(sorted(part)) for part in parts)
            or len(set(every)) < len(every)
        ):
            raise Broken("a split that is none")
        member.splits += 1
        if self.capped and member.splits > MAX_GROUPS:
            raise Broken(f"more than {MAX_GROUPS} splits of one rank")
        call = Collective("split", op=told_split(name, parts), where=where)
        event = member.ledger.begin("split", op=call.op, where=where, group=group.name)
        gives = GroupId(name, next((part for part in parts if member.rank in part), ()))
        items = [self.rendezvous.contribute(group, member.rank, call)]
        self._started(member, items, _Call(1, [event], [], self._hold(member, 0, []), gives=gives))

    def _span(self, member: Member, head: dict[str, Any] | None) -> None:
        """A span of computing begins, or ends (no head)."""
        if (head is None) == (member.span is None):
            raise Broken("a span of computing inside another" if head else "the end of a span that has not begun")
        if head is None:
            member.ledger.finish(member.span)
            member.span = None
            return
        label, seconds, where = line(head["label"], 100), head["seconds"], line(head["where"], 300)
        if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds <= MAX_SPAN):
            raise Broken("a span of computing of no length")
        self._hold(member, 0, [])
        member.span = member.ledger.begin("compute", blocking=False, where=where, label=label, seconds=seconds)

    def _started(self, member: Member, items: Sequence[Pending], call: _Call) -> None:
        number = len(member.calls)
        member.calls.append(call)
        member.open[number] = None
        self.owners.update(dict.fromkeys(items, (member, number)))
        completed, self.rendezvous.completed = self.rendezvous.completed, []
        for item in completed:  # this call's, or another's that waited for it
            owner, number = self.owners.pop(item)
            owner.calls[number].left -= 1
            if not owner.calls[number].left:
                self._finish(owner, number)

    def _finish(self, member: Member, number: int) -> None:
        call, waiting = member.calls[number], member.open.pop(number)
        for event in (*call.events, waiting):
            member.ledger.finish(event)
        if call.gives is not None:
            member.groups.append(call.gives)
            if call.gives.ranks:
                member.ledger.join(call.gives)
        member.held -= call.held
        self.send(member, "comp", {"of": number}, *(raw(tensor) for tensor in call.fill))
        call.events[1:], call.fill = [], []  # what is waited for is the first

    def _wait(self, member: Member, head: dict[str, Any]) -> None:
        number = head["of"]
        if type(number) is not int or not 0 <= number < len(member.calls):
            raise Broken("a wait for nothing")
        call = member.calls[number]
        if call.waited:
            return
        self._hold(member, 0, [])
        call.waited = True
        event = member.ledger.begin_wait(call.events[0], line(head["where"], 300))
        if number in member.open:
            member.open[number] = event
        else:
            member.ledger.finish(event)

    def _hold(self, member: Member, sent: int, fill: list[torch.Tensor]) -> int:
        """Count a call's bytes against the rank. (torch.empty takes none before they are written.)"""
        held = sent + sum(tensor.numel() * tensor.element_size() for tensor in fill)
        member.held += held
        self._enough_room()
        if self.capped and len(member.open) >= MAX_OPEN:
            raise Broken(f"{len(member.open) + 1} calls of one rank, none of them complete")
        if self.capped and len(member.ledger.events) > MAX_EVENTS:
            raise Broken(f"more than {MAX_EVENTS} messages and collectives of one rank")
        return held

    def _enough_room(self) -> None:
        held = sum(member.held + member.queued + len(member.inbox) for member in self.members)
        if self.capped and held > MAX_HELD:
            raise Broken(f"messages of {held >> 20} MiB that nobody has received; {MAX_HELD >> 20} is the limit")
