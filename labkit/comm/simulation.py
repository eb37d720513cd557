"""The virtual wire's engine: ranks that post messages, links that carry one at a time, and a clock that jumps.

The rules stand in `labkit.comm.wire`. Here is how they are kept exactly, in time that grows with the number of messages
only: the clock jumps from one end of a message to the next. In each instant, first everything that ends now ends; then
the ranks that were waiting for it go on, as far as they can; then whatever can start is put on the wire, longest ready
first.

Time is counted in whole attoseconds, so that what is equal on paper is equal here: with floats, adding the same times
in another order would let rounding decide who goes first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.comm.ledger import COLLECTIVES, Event, Ledger
from labkit.comm.topology import Topology
from labkit.errors import LabError

TICKS = 10**18  # attoseconds in a second


@dataclass(slots=True)
class Message:
    """A send and a receive that met, or the one that waits for the other."""

    src: int
    dst: int
    order: int
    sent: Event | None = None
    received: Event | None = None
    ready: int = 0
    begin: int | None = None
    end: int | None = None
    links: tuple[str, ...] = ()

    def key(self) -> tuple[int, int, int, int]:
        return self.ready, self.src, self.dst, self.order


class _Rank:
    """One rank's program and where it stands in it."""

    __slots__ = ("calls", "done", "holding", "next", "pending", "posted")

    def __init__(self, events: list[Event]) -> None:
        self.calls: list[list[Event]] = []  # what one call posted together
        for event in events:
            if self.calls and event.batch is not None and event.batch == self.calls[-1][0].batch:
                self.calls[-1].append(event)
            else:
                self.calls.append([event])
        self.next = 0
        self.pending: set[int] = set()  # indices of posted events that have not ended
        self.holding: set[int] = set()  # those of them that the present call waits for
        self.posted: dict[int, Event] = {}
        self.done: int | None = None


class Simulation:
    """All ranks and links, and the instant `now`. After `run()`: `finished` messages, and when each rank was `done`."""

    def __init__(self, ledgers: Sequence[Ledger], topology: Topology) -> None:
        by_rank = {ledger.rank: ledger for ledger in ledgers}
        if sorted(by_rank) != list(range(topology.size)) or len(ledgers) != topology.size:
            raise LabError(
                f"the virtual wire needs one ledger for each of the topology's {topology.size} ranks, "
                f"not those of ranks {sorted(ledger.rank for ledger in ledgers)}."
            )
        for ledger in ledgers:
            if ledger.gaps or ledger.dropped:
                raise LabError(
                    f"the ledger of rank {ledger.rank} is not complete (it was switched off for a while, or "
                    "grew over its limit): record the run again, shorter and with the ledger on."
                )
        self.topology = topology
        self.ranks = [_Rank(_replayable(by_rank[r], topology)) for r in range(topology.size)]
        self.now = 0
        self.channels: dict[tuple[int, int], deque[Message]] = {}  # halves that wait for the other half, oldest first
        self.counts: dict[tuple[int, int], int] = {}
        self.free_at: dict[str, int] = dict.fromkeys(topology.links, 0)
        self.queues: dict[str, list[tuple[tuple, Message]]] = {name: [] for name in topology.links}
        self.ending: list[tuple[int, tuple, Message]] = []  # heap of messages on the wire
        self.fresh: list[tuple[tuple, Message]] = []  # became ready at this instant
        self.finished: list[Message] = []
        self.at_barrier: set[int] = set()

    def run(self) -> Simulation:
        """Until nothing moves any more. LabError if somebody still waits then."""
        awake, freed = set(range(len(self.ranks))), set()
        while True:
            while awake:  # ranks go on, in this instant, as far as they can
                for r in sorted(awake):
                    self.advance(r)
                awake = self.release_barrier()
            self.start(freed)
            if not self.ending:
                break
            self.now = self.ending[0][0]
            freed = set()
            while self.ending and self.ending[0][0] == self.now:
                message = heapq.heappop(self.ending)[2]
                self.finished.append(message)
                freed.update(message.links)
                for r, event in ((message.src, message.sent), (message.dst, message.received)):
                    self.ranks[r].pending.discard(event.index)
                    self.ranks[r].holding.discard(event.index)
                    if not self.ranks[r].holding and r not in self.at_barrier:
                        awake.add(r)
        self.check_complete()
        return self

    # ---- ranks

    def advance(self, r: int) -> None:
        """Let rank r go on until it has to wait."""
        rank = self.ranks[r]
        while not rank.holding and rank.next < len(rank.calls):
            call = rank.calls[rank.next]
            rank.next += 1
            for event in call:
                if event.kind == "barrier":
                    self.at_barrier.add(r)
                elif event.kind == "wait":
                    rank.holding |= {event.of} & rank.pending
                else:
                    self.post(r, event)
                    if event.blocking:
                        rank.holding.add(event.index)
            if r in self.at_barrier:
                return
        if not rank.holding and rank.done is None and rank.next == len(rank.calls):
            rank.done = self.now

    def release_barrier(self) -> set[int]:
        if len(self.at_barrier) < len(self.ranks):
            return set()
        released, self.at_barrier = self.at_barrier, set()
        return released

    def post(self, r: int, event: Event) -> None:
        """One half of a message. If the other half is there, the message is ready now."""
        rank = self.ranks[r]
        rank.pending.add(event.index)
        rank.posted[event.index] = event
        sending = event.kind == "send"
        src, dst = (r, event.peer) if sending else (event.peer, r)
        queue = self.channels.setdefault((src, dst), deque())
        if queue and (queue[0].sent is None) == sending:
            message = queue.popleft()
        else:
            message = Message(src, dst, self.counts.get((src, dst), 0))
            self.counts[src, dst] = message.order + 1
            queue.append(message)
        if sending:
            message.sent = event
        else:
            message.received = event
        if message.sent and message.received:
            if message.sent.bytes != message.received.bytes:
                raise LabError(
                    f"rank {src} sends {message.sent.bytes} bytes to rank {dst} ({message.sent.where}), "
                    f"which expects {message.received.bytes} ({message.received.where}): make both sides "
                    "agree."
                )
            message.ready, message.links = self.now, self.topology.path(src, dst)
            self.fresh.append((message.key(), message))

    # ---- links

    def start(self, freed: set[str]) -> None:
        """Put on the wire whatever can start now, the longest ready first.

        A message that has to wait stands in the queue of that link of its path which gets free last: it cannot start
        earlier. So only the queues of links freed now need a look, and each only as long as its link stays free."""
        candidates = [(*self.queues[name][0], name) for name in freed if self.queues[name]]
        candidates += [(key, message, "") for key, message in self.fresh]
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
                size = message.sent.bytes
                message.begin = self.now
                message.end = self.now + round(self.topology.seconds(message.src, message.dst, size) * TICKS)
                for name in message.links:
                    self.free_at[name] = message.end
                heapq.heappush(self.ending, (message.end, key, message))
            if queue and self.queues[queue] and self.free_at[queue] <= self.now:
                heapq.heappush(candidates, (*self.queues[queue][0], queue))

    # ---- the end

    def check_complete(self) -> None:
        waiting = [r for r, rank in enumerate(self.ranks) if rank.done is None]
        if waiting:
            stuck = "; ".join(f"rank {r} waits in {self.stands_in(r)}" for r in waiting)
            raise LabError(f"this run cannot complete, on any wire: {stuck}. {self.cause(waiting)}")
        lost = [half for queue in self.channels.values() for half in queue]
        if lost:
            told = "; ".join(
                f"rank {m.src}'s send to rank {m.dst} ({m.sent.where}) is never received"
                if m.sent
                else f"rank {m.dst}'s receive from rank {m.src} ({m.received.where}) is never sent"
                for m in lost
            )
            raise LabError(f"this run leaves messages behind: {told}.")

    def held_by(self, r: int) -> list[Event]:
        return [self.ranks[r].posted[index] for index in sorted(self.ranks[r].holding)]

    def stands_in(self, r: int) -> str:
        if r in self.at_barrier:
            return f"barrier ({self.ranks[r].calls[self.ranks[r].next - 1][0].where})"
        return " and ".join(
            f"{e.kind} {'to' if e.kind == 'send' else 'from'} rank {e.peer} ({e.where})" for e in self.held_by(r)
        )

    def cause(self, waiting: list[int]) -> str:
        """What the waiting ranks have in common, in one sentence."""
        if self.at_barrier:
            outside = ", ".join(str(r) for r in range(len(self.ranks)) if r not in self.at_barrier)
            return f"A barrier needs all ranks, and rank {outside} is not there."
        events = [event for r in waiting for event in self.held_by(r)]
        gone = sorted({e.peer for e in events if self.ranks[e.peer].done is not None})
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


def _replayable(ledger: Ledger, topology: Topology) -> list[Event]:
    """The ledger's events, checked."""
    for event in ledger.events:
        if event.kind in COLLECTIVES and event.kind != "barrier":
            raise LabError(
                f"the virtual wire replays point-to-point messages, and rank {ledger.rank} calls "
                f"{event.kind} ({event.where}): write it from send and recv."
            )
        if event.kind in ("send", "recv"):
            a, b = (ledger.rank, event.peer) if event.kind == "send" else (event.peer, ledger.rank)
            if not topology.connected(a, b):
                raise LabError(
                    f"rank {ledger.rank} calls {event.kind} with rank {event.peer} ({event.where}), and "
                    f"{topology.name} has no way from rank {a} to rank {b}."
                )
    return ledger.events
