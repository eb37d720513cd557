"""The virtual wire: how long would this communication take on that machine?

`replay(ledgers, topology)` takes what every rank asked for in a real run, in program order, clocks ignored, and moves
the messages over a topology's links in simulated time. The same ledgers give the same picture on any computer.

The rules, all of them:

1. Computing takes no time, except in spans (`group.compute`): a rank's next call begins when its last one is complete.
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
from typing import NamedTuple

from labkit.comm.ledger import Ledger
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
    kind: str
    group: str


class Span(NamedTuple):
    """What a rank computed, from when to when, in seconds."""

    rank: int
    label: str
    begin: float
    end: float


class LinkUse(NamedTuple):
    """What one link did: `busy` intervals (begin, end) in seconds, and their share of the replay's time."""

    busy: tuple[tuple[float, float], ...]
    utilisation: float


class Replay(NamedTuple):
    """The timeline, in seconds."""

    time: float  # when the last rank was done and the last message had arrived
    transfers: tuple[Transfer, ...]  # in order of begin
    ranks: tuple[float, ...]  # when each was done
    links: dict[str, LinkUse]  # every link of the topology, also the idle ones
    topology: Topology
    spans: tuple[Span, ...]  # in order of begin

    def busiest(self) -> str | None:
        """The link with the highest utilisation (the first by name if several), or None if nothing moved."""
        used = [(-use.utilisation, name) for name, use in self.links.items() if use.busy]
        return min(used)[1] if used else None


def replay(ledgers: Sequence[Ledger], topology: Topology) -> Replay:
    """Move the messages of `ledgers`, one for each rank, over `topology`. LabError names what cannot be replayed."""
    run = Simulation(ledgers, topology).run()
    done = [lane.done or 0 for lane in run.ranks]
    total = max([*done, *(message.end for message in run.finished)])
    moved = sorted(run.finished, key=lambda m: (m.begin, m.key()))
    of_link: dict[str, list[Message]] = {name: [] for name in topology.links}
    for message in moved:
        for name in message.links:
            of_link[name].append(message)
    links = {}
    for name, used in of_link.items():
        share = sum(m.end - m.begin for m in used) / total if total else 0.0
        links[name] = LinkUse(tuple((m.begin / TICKS, m.end / TICKS) for m in used), share)
    spans = [Span(c.lane.rank, c.event.label, c.begin / TICKS, c.end / TICKS) for c in run.computed]
    spans.sort(key=lambda span: (span.begin, span.rank))
    transfers = []
    for m in moved:
        assert m.sent is not None  # it is finished
        kind, group = (m.of.kind, m.of.group) if m.of is not None else ("send", m.sent.group)
        times = (m.ready / TICKS, m.begin / TICKS, m.end / TICKS)
        transfers.append(Transfer(m.src, m.dst, m.bytes, *times, m.links, m.sent.where, kind, group))
    ranks = tuple(end / TICKS for end in done)
    return Replay(total / TICKS, tuple(transfers), ranks, links, topology, tuple(spans))
