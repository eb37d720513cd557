"""The virtual wire's engine: ranks that post messages, links that carry one at a time, and a clock that jumps.

The rules stand in `labkit.comm.wire`. In each instant what ends now ends, then waiting ranks go on, then what can start
is put on the wire, longest ready first. Time is whole attoseconds: with floats, rounding would decide who goes first.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.comm.algorithms import REPLAYED, steps
from labkit.comm.ledger import EMPTY, Event, GroupId, Ledger
from labkit.comm.topology import Topology
from labkit.errors import LabError

TICKS = 10**18  # attoseconds in a second
Key = tuple[int, int, int, int]  # who goes first: ready, from, to, order


@dataclass(slots=True)
class Message:
    """A send and a receive that met, or the one that waits for the other."""

    src: int
    dst: int
    order: int
    sent: Event | None = None
    received: Event | None = None
    lanes: "list[tuple[Lane, Event]]" = field(default_factory=list)  # whoever posted a half
    of: Event | None = None  # the collective that it is part of
    ready: int = 0
    begin: int = 0
    end: int = 0
    links: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return self.sent.bytes if self.sent else 0

    def key(self) -> Key:
        return self.ready, self.src, self.dst, self.order


class Computed(NamedTuple):
    lane: "Lane"
    event: Event
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Lane:
    """A program and where its rank stands in it: the rank's own (number 0), or that of a collective beside it."""

    rank: int
    number: int
    calls: list[list[Event]]
    of: Event | None = None  # the collective
    scope: tuple = ()  # messages of a collective meet among themselves
    next: int = 0
    posted: dict[int, Event] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)  # indices of posted events that have not ended
    holding: set[int] = field(default_factory=set)  # those of them that the present call waits for
    done: int | None = None

    def __lt__(self, other: "Lane") -> bool:
        return (self.rank, self.number) < (other.rank, other.number)


class Simulation:
    def __init__(self, ledgers: Sequence[Ledger], topology: Topology) -> None:
        by_rank = {ledger.rank: ledger for ledger in ledgers}
        if sorted(ledger.rank for ledger in ledgers) != list(range(topology.size)):
            given = sorted(ledger.rank for ledger in ledgers)
            raise LabError(f"one ledger for each of the topology's {topology.size} ranks, not of ranks {given}.")
        for ledger in ledgers:
            if ledger.gaps or ledger.dropped:
                why = "it was switched off for a while, or grew over its limit"
                raise LabError(f"the ledger of rank {ledger.rank} is not complete: {why}. Record the run again.")
        self.topology = topology
        self.ledgers = [by_rank[r] for r in range(topology.size)]
        self.ranks = [Lane(r, 0, _program(by_rank[r], topology)) for r in range(topology.size)]
        self.lanes = len(self.ranks)  # made so far
        self.now = 0
        self.channels: dict[tuple, deque[Message]] = defaultdict(deque)  # halves without the other half, oldest first
        self.counts: Counter[tuple[int, int]] = Counter()
        self.free_at: dict[str, int] = dict.fromkeys(topology.links, 0)
        self.queues: dict[str, list[tuple[Key, Message]]] = {name: [] for name in topology.links}
        self.ending: list[tuple[int, Key, Message | Computed]] = []  # heap of what is under way
        self.fresh: list[Message] = []  # became ready at this instant
        self.awake: list[Lane] = []  # heap: they go on in this instant
        self.finished: list[Message] = []
        self.computed: list[Computed] = []
        # The collectives of a group: who has called its n-th, and what each rank has still to run, in order.
        self.called: dict[tuple[GroupId, int], dict[int, Event]] = defaultdict(dict)
        self.backlog: dict[tuple[GroupId, int], deque[Event]] = defaultdict(deque)

    def run(self) -> "Simulation":
        """Until nothing moves any more. LabError if somebody still waits then."""
        self.awake, freed = list(self.ranks), set[str]()
        while True:
            while self.awake:  # ranks go on, in this instant, as far as they can
                self.advance(heapq.heappop(self.awake))
            self.start(freed)
            if not self.ending:
                break
            self.now = self.ending[0][0]
            freed = set()
            while self.ending and self.ending[0][0] == self.now:
                item = heapq.heappop(self.ending)[2]
                if isinstance(item, Computed):
                    self.computed.append(item)
                    self.release(item.lane, item.event)
                    continue
                self.finished.append(item)
                freed.update(item.links)
                for lane, event in item.lanes:
                    self.release(lane, event)
        self.check_complete()
        return self

    # ---- ranks

    def advance(self, lane: Lane) -> None:
        """Let a program go on until it has to wait."""
        while not lane.holding and lane.next < len(lane.calls):
            call = lane.calls[lane.next]
            lane.next += 1
            for event in call:
                if event.kind == "wait":
                    if event.of in lane.pending:
                        lane.holding.add(event.of)
                    continue
                lane.pending.add(event.index)
                lane.posted[event.index] = event
                if event.blocking or event.kind == "compute":
                    lane.holding.add(event.index)
                if event.kind == "compute":
                    took = (event.end or event.begin) - event.begin if event.seconds is None else event.seconds
                    end = self.now + round(took * TICKS)
                    key = (self.now, lane.rank, lane.rank, -1 - event.index)
                    heapq.heappush(self.ending, (end, key, Computed(lane, event, self.now, end)))
                elif event.kind in ("send", "recv"):
                    self.post(lane, event)
                else:
                    self.call(lane.rank, event)
        if not lane.holding and lane.done is None and lane.next == len(lane.calls):
            lane.done = self.now
            if lane.of is not None:
                self.complete(lane.rank, lane.of)

    def release(self, lane: Lane, event: Event) -> None:
        lane.pending.discard(event.index)
        if event.index in lane.holding:
            lane.holding.remove(event.index)
            if not lane.holding:
                heapq.heappush(self.awake, lane)

    def post(self, lane: Lane, event: Event) -> None:
        """One half of a message. If the other half is there, the message is ready now."""
        sending, peer = event.kind == "send", event.peer if event.peer is not None else -1
        src, dst = (lane.rank, peer) if sending else (peer, lane.rank)
        scope = lane.scope or (self.ledgers[lane.rank].group_of(event),)
        queue = self.channels[*scope, src, dst]
        if queue and (queue[0].sent is None) == sending:
            message = queue.popleft()
        else:
            message = Message(src, dst, self.counts[src, dst], of=lane.of)
            self.counts[src, dst] += 1
            queue.append(message)
        message.lanes.append((lane, event))
        if sending:
            message.sent = event
        else:
            message.received = event
        if message.sent and message.received:
            if message.sent.bytes != message.received.bytes:
                raise LabError(
                    f"rank {src} sends {message.sent.bytes} bytes to rank {dst} ({message.sent.where}), "
                    f"which expects {message.received.bytes} ({message.received.where})."
                )
            message.ready, message.links = self.now, self.topology.path(src, dst)
            self.fresh.append(message)

    # ---- collectives

    def call(self, rank: int, event: Event) -> None:
        """A rank calls a collective. It runs when those that the rank called before it in this group are complete."""
        group = self.ledgers[rank].group_of(event)
        calls = self.called[group, event.seq]
        for other, theirs in calls.items():
            if (theirs.kind, theirs.bytes, theirs.peer) != (event.kind, event.bytes, event.peer):
                raise LabError(
                    f"rank {other} calls {theirs.kind} of {theirs.bytes} bytes ({theirs.where}) and rank {rank} "
                    f"{event.kind} of {event.bytes} ({event.where}) as collective number {event.seq + 1}{group.of}."
                )
        calls[rank] = event
        waiting = self.backlog[group, rank]
        waiting.append(event)
        if len(waiting) == 1:
            self.begin(group, rank)

    def begin(self, group: GroupId, rank: int) -> None:
        """The first of a rank's calls of a group runs: as a lane of its own, or, if it is empty, when all are there."""
        event = self.backlog[group, rank][0]
        if event.kind in REPLAYED:
            calls = [
                [Event(2 * n + i, kind, peer, size, where=event.where) for i, (kind, peer, size) in enumerate(parts)]
                for n, parts in enumerate(steps(event, group, rank))
            ]
            self.lanes += 1
            heapq.heappush(self.awake, Lane(rank, self.lanes, calls, event, (group, event.seq)))
            return
        calls_of = self.called[group, event.seq]
        if all(r in calls_of and self.backlog[group, r][0] is calls_of[r] for r in group.ranks):
            for r in group.ranks:
                self.complete(r, calls_of[r])

    def complete(self, rank: int, event: Event) -> None:
        group = self.ledgers[rank].group_of(event)
        waiting = self.backlog[group, rank]
        waiting.popleft()
        self.release(self.ranks[rank], event)
        if waiting:
            self.begin(group, rank)

    # ---- links

    def start(self, freed: set[str]) -> None:
        """Put on the wire whatever can start now, the longest ready first."""
        # A message that waits stands in the queue of that link of its path which gets free last: it cannot start before.
        # So only the queues of links freed now need a look, and each only as long as its link stays free.
        candidates = [(*self.queues[name][0], name) for name in freed if self.queues[name]]
        candidates += [(message.key(), message, "") for message in self.fresh]
        self.fresh = []
        heapq.heapify(candidates)
        while candidates:
            key, message, queue = heapq.heappop(candidates)
            if queue:
                if self.free_at[queue] > self.now:  # taken by one that was ready earlier: the rest of it waits on
                    continue
                heapq.heappop(self.queues[queue])
            last = max(message.links, key=self.free_at.__getitem__, default=None)
            if last is not None and self.free_at[last] > self.now:
                heapq.heappush(self.queues[last], (key, message))
            else:
                seconds = self.topology.seconds(message.src, message.dst, message.bytes)
                message.begin, message.end = self.now, self.now + round(seconds * TICKS)
                for name in message.links:
                    self.free_at[name] = message.end
                heapq.heappush(self.ending, (message.end, key, message))
            if queue and self.queues[queue] and self.free_at[queue] <= self.now:
                heapq.heappush(candidates, (*self.queues[queue][0], queue))

    # ---- the end

    def check_complete(self) -> None:
        waiting = [r for r, lane in enumerate(self.ranks) if lane.done is None]
        if waiting:
            stuck = "; ".join(f"rank {r} waits in {self.stands_in(r)}" for r in waiting)
            raise LabError(f"this run cannot complete, on any wire: {stuck}. {self.cause(waiting)}")
        left = [
            f"rank {r}'s {event.kind}{group.inside} ({event.where}) is never complete"
            for (group, r), events in self.backlog.items()
            for event in events
        ] or [
            f"rank {m.src}'s send to rank {m.dst} ({m.sent.where}) is never received"
            if m.sent
            else f"rank {m.dst}'s receive from rank {m.src} ({m.received.where if m.received else '?'}) is never sent"
            for queue in self.channels.values()
            for m in queue
        ]
        if left:
            raise LabError(f"this run leaves messages behind: {'; '.join(left)}.")

    def held_by(self, r: int) -> list[Event]:
        return [self.ranks[r].posted[index] for index in sorted(self.ranks[r].holding)]

    def stands_in(self, r: int) -> str:
        return " and ".join(
            f"{e.kind} {'to' if e.kind == 'send' else 'from'} rank {e.peer} ({e.where})"
            if e.kind in ("send", "recv")
            else f"{e.kind}{self.ledgers[r].group_of(e).inside} ({e.where})"
            for e in self.held_by(r)
        )

    def cause(self, waiting: list[int]) -> str:
        """What the waiting ranks have in common, in one sentence."""
        events = [event for r in waiting for event in self.held_by(r)]
        for (group, _), calls in self.called.items():
            missing = [str(r) for r in group.ranks if r not in calls]
            event = next((event for event in calls.values() if any(event is held for held in events)), None)
            if event is not None and missing:
                a = "An" if event.kind[0] == "a" else "A"
                return f"{a} {event.kind} needs all ranks{group.of}, and rank {', '.join(missing)} is not there."
        peers = {e.peer for e in events if e.kind in ("send", "recv") and e.peer is not None}
        gone = sorted(peer for peer in peers if self.ranks[peer].done is not None)
        if gone:
            return (
                f"Rank {', '.join(map(str, gone))} has already returned, without the matching calls: do all ranks "
                "take the same number of steps?"
            )
        if all(event.kind == "send" for event in events):
            return (
                "A send waits for its receive, and here nobody receives: let some ranks receive first, or post "
                "both at once (sendrecv, batch)."
            )
        return "They wait for each other in a circle: compare the order of their calls."


def _program(ledger: Ledger, topology: Topology) -> list[list[Event]]:
    """The ledger's events, checked: what each call posted together."""
    calls: list[list[Event]] = []
    who = f"rank {ledger.rank}"
    inside: Event | None = None  # the last span of computing that was timed here
    for event in ledger.events:
        if event.kind == "compute" and event.seconds is None:
            if event.end is None:
                raise LabError(f"{who}'s span {event.label!r} ({event.where}) has no end: use `with`, or seconds=.")
            inside = event
        elif inside is not None and inside.end is not None and event.begin < inside.end:
            raise LabError(
                f"{who} calls {event.kind} ({event.where}) inside its span of computing {inside.label!r} "
                f"({inside.where}): end the span before the call."
            )
        if event.kind in ("send", "recv"):
            peer = event.peer if event.peer is not None else -1
            a, b = (ledger.rank, peer) if event.kind == "send" else (peer, ledger.rank)
            if not topology.connected(a, b):
                way = f"{topology.name} has no way from rank {a} to rank {b}"
                raise LabError(f"{who} calls {event.kind} with rank {event.peer} ({event.where}), and {way}.")
        elif event.kind not in ("wait", "compute", *REPLAYED, *EMPTY):
            raise LabError(f"{who} calls {event.kind} ({event.where}): the virtual wire knows no algorithm for it.")
        if calls and event.batch is not None and event.batch == calls[-1][0].batch:
            calls[-1].append(event)
        else:
            calls.append([event])
    return calls
