"""The virtual wire: how long would this communication take on that machine?

`replay(ledgers, topology)` takes what every rank asked for (the ledgers of a real run, in program order, clocks
ignored) and moves the messages over a topology's links in simulated time. It is deterministic: the same ledgers give
the same picture on any computer, however loaded. A laptop's clock cannot do that, and often shows the opposite of what
a cluster would.

The rules, all of them:

1. Computing takes no time, except in the spans that somebody noted (`group.compute`): a rank that computes does nothing
   else for as long as its span takes. Apart from that it moves on to its next call as soon as its last one is complete.
2. A message is *ready* when both sides have posted it: sends are rendezvous, so a program that completes here needs no
   buffers anywhere. In each group, the n-th send from a to b meets the n-th receive on b from a.
3. It starts when it is ready and **all** links on its path are free, and keeps all of them until it ends: one message
   per link and direction at a time. Among those that could start, the one that was ready first goes first; ties go by
   sender, receiver, order. A message whose path is free may overtake an older one that still waits for another link.
4. It takes (sum of the latencies) + bytes / (smallest bandwidth): alpha + n * beta.
5. A blocking call is complete when all it posted has ended. `isend`, `irecv` and collectives with `async_op` are
   posted, and hold the rank up at `wait`.
6. A collective is the messages of its algorithm (labkit.comm.algorithms) among the ranks of its group: a program of
   its own on each rank, beside the rank's, and complete on a rank when this has run there. A rank runs the collectives
   of one group one after another, in the order of the calls, as on one NCCL stream; those of several groups at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.comm.ledger import WORLD, Ledger
from labkit.comm.simulation import TICKS, Message, Simulation
from labkit.comm.topology import Topology


class Transfer(NamedTuple):
    """One message on the wire, in seconds: `ready` (both sides posted), `begin`, `end`; kind: its collective or "send"."""

    src: int
    dst: int
    bytes: int
    ready: float
    begin: float
    end: float
    links: tuple[str, ...]
    where: str
    where_received: str
    kind: str = "send"
    group: str = WORLD


class Span(NamedTuple):
    """What a rank computed, from when to when, in seconds."""

    rank: int
    label: str
    begin: float
    end: float


@dataclass(frozen=True)
class LinkUse:
    """What one link did: `busy` intervals (begin, end) in seconds, `bytes` carried, `utilisation` of the replay's time."""

    busy: tuple[tuple[float, float], ...]
    bytes: int
    utilisation: float


@dataclass(frozen=True)
class Replay:
    """The timeline. `time`: when the last rank was done and the last message had arrived, in seconds.

    transfers   in order of begin; spans of computing likewise
    ranks       when each was done; waiting: its seconds until then without computing or a message on the wire
    links       by name, every link of the topology, also the idle ones
    """

    time: float
    transfers: tuple[Transfer, ...]
    ranks: tuple[float, ...]
    waiting: tuple[float, ...]
    links: dict[str, LinkUse]
    topology: Topology = field(repr=False)
    spans: tuple[Span, ...] = ()

    @property
    def bytes(self) -> int:
        """Payload that crossed between different ranks."""
        return sum(t.bytes for t in self.transfers if t.src != t.dst)

    def busiest(self) -> str | None:
        """The link with the highest utilisation (the first by name if several), or None if nothing moved."""
        used = [(-use.utilisation, name) for name, use in self.links.items() if use.busy]
        return min(used)[1] if used else None


def replay(ledgers: Sequence[Ledger], topology: Topology) -> Replay:
    """Move the messages of `ledgers` (one for each rank, any order) over `topology`.

    LabError names ranks, calls and lines: an incomplete ledger, a call without an algorithm, another number of ranks,
    two halves that differ in size, a missing link, a run that cannot complete.
    """
    return _timeline(Simulation(ledgers, topology).run(), topology)


def _timeline(run: Simulation, topology: Topology) -> Replay:
    done = [lane.done or 0 for lane in run.ranks]
    total = max([*done, *(message.end for message in run.finished)])
    moved = sorted(run.finished, key=lambda m: (m.begin, m.key()))
    of_link: dict[str, list[Message]] = {name: [] for name in topology.links}
    of_rank: list[list[tuple[int, int]]] = [[] for _ in run.ranks]  # (begin, end) of what a rank did
    for message in moved:
        for name in message.links:
            of_link[name].append(message)
        for r in {message.src, message.dst}:
            of_rank[r].append((message.begin, message.end))
    for span in run.computed:
        of_rank[span.lane.rank].append((span.begin, span.end))
    links = {}
    for name, used in of_link.items():
        share = sum(m.end - m.begin for m in used) / total if total else 0.0
        busy = tuple((m.begin / TICKS, m.end / TICKS) for m in used)
        links[name] = LinkUse(busy, sum(m.bytes for m in used), share)
    spans = [Span(c.lane.rank, c.event.label, c.begin / TICKS, c.end / TICKS) for c in run.computed]
    spans.sort(key=lambda span: (span.begin, span.rank))
    waiting = tuple((end - _covered(sorted(own), end)) / TICKS for end, own in zip(done, of_rank))
    transfers, ranks = tuple(map(_transfer, moved)), tuple(end / TICKS for end in done)
    return Replay(total / TICKS, transfers, ranks, waiting, links, topology, tuple(spans))


def _transfer(m: Message) -> Transfer:
    assert m.sent is not None and m.received is not None  # it is finished
    kind, group = (m.of.kind, m.of.group) if m.of is not None else ("send", m.sent.group)
    times = (m.ready / TICKS, m.begin / TICKS, m.end / TICKS)
    return Transfer(m.src, m.dst, m.bytes, *times, m.links, m.sent.where, m.received.where, kind, group)


def _covered(intervals: list[tuple[int, int]], until: int) -> int:
    """Ticks before `until` that at least one of the intervals (sorted) covers."""
    covered, reached = 0, 0
    for begin, end in intervals:
        end = min(end, until)
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
