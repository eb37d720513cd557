"""Ledgers laid side by side: which call of one rank meets which of another.

The n-th send from a to b meets the n-th recv on b from a, and the n-th collective of a rank meets the n-th collective
of every other. So a call is stuck exactly when its counterpart has not been made, and it is wrong when the
counterpart differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.comm.ledger import COLLECTIVES, Event, Ledger


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
        self.size = len(ledgers)
        self.usable = not any(ledger.gaps for ledger in ledgers)
        self.sends: dict[tuple[int, int], dict[int, Event]] = {}  # (from, to): number: event
        self.recvs: dict[tuple[int, int], dict[int, Event]] = {}  # (from, to), too
        self.collectives: list[dict[int, Event]] = [{} for _ in ledgers]
        for rank, ledger in enumerate(ledgers):
            for event in list(ledger.events):
                if event.kind == "send":
                    self.sends.setdefault((rank, event.peer), {})[event.seq] = event
                elif event.kind == "recv":
                    self.recvs.setdefault((event.peer, rank), {})[event.seq] = event
                elif event.kind in COLLECTIVES:
                    self.collectives[rank][event.seq] = event
        # How many of each have been made: the highest number seen, since old events may have been dropped.
        self.sent = {channel: max(numbers) + 1 for channel, numbers in self.sends.items()}
        self.received = {channel: max(numbers) + 1 for channel, numbers in self.recvs.items()}
        self.joined = [max(numbers, default=-1) + 1 for numbers in self.collectives]

    def missing(self, rank: int, event: Event) -> list[int]:
        """The ranks that have not made the call that `event` of `rank` needs."""
        if event.kind in COLLECTIVES:
            return [r for r in range(self.size) if r != rank and self.joined[r] <= event.seq]
        sending = event.kind == "send"
        made = self.received.get((rank, event.peer), 0) if sending else self.sent.get((event.peer, rank), 0)
        return [] if made > event.seq else [event.peer]

    def mismatch(self) -> Mismatch | None:
        """The first meeting of calls that do not fit, if any."""
        found = [*self._message_mismatches(), *self._collective_mismatches()]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def _message_mismatches(self) -> Iterator[tuple[float, Mismatch]]:
        for (src, dst), sends in self.sends.items():
            recvs = self.recvs.get((src, dst), {})
            for seq, send in sends.items():
                recv = recvs.get(seq)
                if recv is not None and (send.bytes, send.dtype) != (recv.bytes, recv.dtype):
                    yield (
                        max(send.begin, recv.begin),
                        Mismatch(
                            src,
                            [src, dst],
                            send.where,
                            f"Rank {src} sends {_what(send)} to rank {dst} ({send.where}), but rank {dst} expects "
                            f"{_what(recv)} there ({recv.where}): the two must agree on what their message number "
                            f"{seq + 1} is.{_advice(send, recv)}",
                            True,
                        ),
                    )

    def _collective_mismatches(self) -> Iterator[tuple[float, Mismatch]]:
        for seq in sorted(set().union(*self.collectives)):
            calls = {rank: by_seq[seq] for rank, by_seq in enumerate(self.collectives) if seq in by_seq}
            groups: dict[tuple, list[int]] = {}
            for rank, e in calls.items():
                groups.setdefault((e.kind, e.op, e.peer, e.dtype, e.bytes), []).append(rank)
            if len(groups) > 1:
                most, *others = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
                odd = [rank for ranks in others for rank in ranks]
                told = "; ".join(
                    f"{say_ranks(ranks)} called {_described(calls[ranks[0]])}" for ranks in [most, *others]
                )
                tie = len(most) == len(others[0])
                blame = "one of them is wrong" if tie else f"{say_ranks(odd)} left the common order"
                yield (
                    max(e.begin for e in calls.values()),
                    Mismatch(
                        odd[0],
                        sorted(calls),
                        calls[odd[0]].where,
                        f"The ranks' collective number {seq + 1} differs: {told}; {blame}.",
                    ),
                )
                return


def say_ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _what(event: Event) -> str:
    return f"{list(event.shape)} of {event.dtype} ({event.bytes} bytes)"


def _advice(send: Event, recv: Event) -> str:
    if send.dtype != recv.dtype or len(send.shape) != 1 or len(recv.shape) != 1:
        return ""
    return " Ragged chunks differ in length: like= must be the chunk you receive, not the one you send."


def _described(e: Event) -> str:
    inside = [e.op, f"root {e.peer}" if e.peer is not None else None, _what(e) if e.dtype else None]
    inside = ", ".join(i for i in inside if i)
    return f"{e.kind}{f'({inside})' if inside else ''} at {e.where}"
