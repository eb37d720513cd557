"""The broker: the other end of every rank's only socket.

It matches sends with receives and computes collectives (the same matching as ranks on threads use), and keeps each
rank's ledger itself. So the ledger that a check reads holds what really crossed, whatever the rank's own process
believes; and who waits for whom is known here, not asked.

Everything that comes from a rank is a claim about itself, read as data: JSON heads of capped size, bodies of the length
that their shapes demand, dtypes from torch's own names. A frame that breaks a rule ends that rank's call, and nothing
else.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from grading.sandbox.frames import Broken, failure, line, tensor_of, typed
from labkit.comm.group import REDUCIBLE
from labkit.comm.ledger import COLLECTIVES, Event, Ledger
from labkit.comm.link import HEADER, MAX_BODY, MAX_HEAD, frame_head, raw
from labkit.comm.rendezvous import RankEnded, Rendezvous, _Pending
from labkit.comm.transport import Collective, Op

# What ranks may make this process hold. Beyond that they flood, and their call ends.
MAX_ANSWER = 16 << 20  # bytes of one rank's packed answer
MAX_HELD = 512 << 20  # bytes of all ranks: half messages, calls that are not complete, results not yet fetched
MAX_OPEN = 4096  # one rank's calls that are not complete
MAX_EVENTS = 40_000  # of one rank; a ledger keeps 100,000, and a forbidden call must not drop out of it
MAX_READ = 1 << 18  # bytes read at a time: the deadline is looked at in between


class _Meeting(Rendezvous):
    """A rendezvous that tells which ops and contributions have been completed since it was last asked."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.completed: list[_Pending] = []

    def _complete(self, *items: _Pending) -> None:
        super()._complete(*items)
        self.completed += items


@dataclass
class _Call:
    """A post or a collective. `left`: its ops that are not complete; `fill`: what its answer brings."""

    left: int
    first: Event
    events: list[Event]
    fill: list[torch.Tensor]
    held: int
    waited: bool = False


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
        self.inbox, self.outbox = bytearray(), deque()
        self.calls: list[_Call] = []
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
        self.owners: dict[_Pending, tuple[Member, int]] = {}
        self.transports = [self.rendezvous.transport(rank) for rank in range(self.size)]
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
            elif kind == "wait":
                self._wait(member, head)
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

    def _post(self, member: Member, head: dict[str, Any], body: bytearray) -> None:
        where, blocking, start = line(head["where"], 300), bool(head["blocking"]), 0
        ops, fill = [], []
        if not head["ops"]:
            raise Broken("a post of nothing")
        for kind, peer, dtype, shape in head["ops"]:
            if (
                kind not in ("send", "recv")
                or type(peer) is not int
                or not 0 <= peer < self.size
                or peer == member.rank
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
        events, batch = [], None
        for op in ops:
            event = member.ledger.begin(
                op.kind,
                op.peer,
                op.tensor.numel() * op.tensor.element_size(),
                dtype=str(op.tensor.dtype).removeprefix("torch."),
                shape=tuple(op.tensor.shape),
                batch=batch,
                blocking=blocking,
                where=where,
            )
            batch = event.batch
            events.append(event)
        held = self._hold(member, len(body), fill)
        self._started(member, self.rendezvous.post(member.rank, ops), events, fill, held)

    def _collective(self, member: Member, head: dict[str, Any], body: bytearray) -> None:
        kind, op, root, where = head["kind"], head["op"], head["root"], line(head["where"], 300)
        if (
            kind not in COLLECTIVES
            or op not in (None, "sum", "max", "min", "prod")
            or not (root is None or (type(root) is int and 0 <= root < self.size))
        ):
            raise Broken("a collective that is none")
        tensor = out = None
        size = 0
        if kind != "barrier":
            dtype, shape, length = typed(head["dtype"], head["shape"])
            tensor = tensor_of(body, 0, length, dtype, shape)
            if length != len(body):
                raise Broken("a collective that is longer than it says")
            size = length * (self.size if kind == "all_gather" else 1)
            if kind == "all_gather":
                out = torch.empty((self.size * shape[0], *shape[1:]), dtype=dtype)
            elif kind == "reduce_scatter":
                out = torch.empty((shape[0] // self.size, *shape[1:]), dtype=dtype)
        if (kind in ("all_reduce", "reduce_scatter") and (op is None or dtype not in REDUCIBLE)) or (
            kind == "broadcast" and root is None
        ):
            raise Broken("a collective that is none")
        event = member.ledger.begin(
            kind,
            root,
            size,
            dtype=head["dtype"] if tensor is not None else "",
            shape=tuple(tensor.shape) if tensor is not None else (),
            op=op,
            blocking=bool(head["blocking"]),
            where=where,
        )
        call = Collective(kind, tensor, out, op, root, where)
        fill = [tensor if out is None else out] if tensor is not None else []
        held = self._hold(member, len(body), fill)
        self._started(member, [self.rendezvous.contribute(member.rank, call)], [event], fill, held)

    def _started(self, member: Member, items: list[_Pending], events: list[Event], fill: list, held: int) -> None:
        number = len(member.calls)
        member.calls.append(_Call(len(items), events[0], events, fill, held))
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
            if event is not None:
                member.ledger.finish(event)
        member.held -= call.held
        self.send(member, "comp", {"of": number}, *(raw(tensor) for tensor in call.fill))
        call.events, call.fill = [], []

    def _wait(self, member: Member, head: dict[str, Any]) -> None:
        number = head["of"]
        if type(number) is not int or not 0 <= number < len(member.calls):
            raise Broken("a wait for nothing")
        call = member.calls[number]
        if call.waited:
            return
        self._hold(member, 0, [])
        call.waited = True
        event = member.ledger.begin("wait", call.first.peer, of=call.first.index, where=line(head["where"], 300))
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
