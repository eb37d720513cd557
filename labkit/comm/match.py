"""Ledgers laid side by side: which call of one rank meets which of another, group by group."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.comm.callsite import given, with_owner
from labkit.comm.ledger import COLLECTIVES, Event, GroupId, Ledger, say_ranks

# What the ledgers know of two lengths that differ; who knows the neighbours knows which of the two it is.
EITHER = (
    "One of: like= or out= is another chunk than the one that comes; dst or src is another rank than you mean; or a "
    "message was left out, or posted too late."
)

Channels = dict[tuple[GroupId, int, int], dict[int, Event]]  # (group, from, to): number: event


@dataclass
class Mismatch:
    """Two or more ranks met in one call and did not mean the same."""

    guilty: int | None
    involved: list[int]
    call: str
    cause: str
    message: bool = False  # a send and its recv, not collectives


class Match:
    """All ledgers of a run, matched by message and collective number."""

    def __init__(self, ledgers: list[Ledger]) -> None:
        self.ledgers = ledgers
        self.usable = not any(ledger.gaps for ledger in ledgers)
        self.sends: Channels = defaultdict(dict)
        self.recvs: Channels = defaultdict(dict)
        # group: rank: number: event
        self.collectives: dict[GroupId, dict[int, dict[int, Event]]] = defaultdict(lambda: defaultdict(dict))
        for rank, ledger in enumerate(ledgers):
            for event in list(ledger.events):
                group = ledger.group_of(event)
                if event.kind == "send" and event.peer is not None:
                    self.sends[group, rank, event.peer][event.seq] = event
                elif event.kind == "recv" and event.peer is not None:
                    self.recvs[group, event.peer, rank][event.seq] = event
                elif event.kind in COLLECTIVES:
                    self.collectives[group][rank][event.seq] = event

    def missing(self, rank: int, event: Event) -> list[int]:
        """The ranks that have not made the call that `event` of `rank` needs."""
        group, peer = self.ledgers[rank].group_of(event), event.peer
        made: dict[int, dict[int, Event]] = {}  # by the ranks that it needs
        if event.kind in COLLECTIVES:
            calls = self.collectives.get(group, {})
            made = {r: calls.get(r, {}) for r in group.ranks if r != rank}
        elif event.kind == "send" and peer is not None:
            made = {peer: self.recvs.get((group, rank, peer), {})}
        elif event.kind == "recv" and peer is not None:
            made = {peer: self.sends.get((group, peer, rank), {})}
        # The last call's number: earlier ones may have been dropped.
        return [r for r, by_seq in made.items() if next(reversed(by_seq), -1) < event.seq]

    def mismatch(self) -> Mismatch | None:
        """The first meeting of calls that do not fit, if any."""
        found = [*self._message_mismatches(), *self._collective_mismatches()]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def _message_mismatches(self) -> Iterator[tuple[float, Mismatch]]:
        for (group, src, dst), sends in self.sends.items():
            recvs = self.recvs.get((group, src, dst), {})
            for seq, send in sends.items():
                recv = recvs.get(seq)
                if recv is None or (send.bytes, send.dtype) == (recv.bytes, recv.dtype):
                    continue
                cause = (
                    f"Rank {src} sends {_what(send)} to rank {dst} ({send.where}), but rank {dst} expects "
                    f"{_what(recv)} there ({recv.where}): the two must agree on what their message number "
                    f"{seq + 1}{group.inside} is."
                )
                if send.dtype == recv.dtype and len(send.shape) == len(recv.shape) == 1:
                    cause += f" {EITHER}"
                yield max(send.begin, recv.begin), Mismatch(src, [src, dst], send.where, cause, True)

    def _collective_mismatches(self) -> Iterator[tuple[float, Mismatch]]:
        for group, by_rank in self.collectives.items():
            for seq in sorted({seq for by_seq in by_rank.values() for seq in by_seq}):
                calls = {rank: by_rank[rank][seq] for rank in sorted(by_rank) if seq in by_rank[rank]}
                alike: dict[tuple, list[int]] = {}
                for rank, e in calls.items():
                    alike.setdefault((e.kind, e.op, e.peer, e.dtype, e.bytes), []).append(rank)
                if len(alike) > 1:
                    most, *others = sorted(alike.values(), key=lambda ranks: (-len(ranks), ranks))
                    odd = [rank for ranks in others for rank in ranks]
                    each = "; ".join(f"{say_ranks(r)} called {_format_call(calls[r[0]])}" for r in (most, *others))
                    tie = len(most) == len(others[0])
                    blame = "one of them is wrong" if tie else f"{say_ranks(odd)} left the common order"
                    cause = f"The ranks' collective number {seq + 1}{group.of} differs: {each}; {blame}."
                    met = max(e.begin for e in calls.values())
                    places = [calls[rank].where for rank in (*odd, *most)]
                    where = next((at for at in places if not given(at.rpartition(":")[0])), places[0])
                    yield met, Mismatch(odd[0], sorted(calls), where, cause)
                    break


def _what(event: Event) -> str:
    return f"{list(event.shape)} of {event.dtype} ({event.bytes} bytes)"


def _format_call(e: Event) -> str:
    parts = [e.op, f"src {e.peer}" if e.peer is not None else None, _what(e) if e.dtype else None]
    inside = ", ".join(part for part in parts if part)
    return f"{e.kind}{f'({inside})' if inside else ''} at {with_owner(e.where)}"
