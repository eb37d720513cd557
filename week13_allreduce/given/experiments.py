"""What the notebook runs, on real ranks: given, so that a cell is one line and its data are real.

    filling        what is in which chunk of which rank after every step of a collective, and which message brought it
    on_wire        a collective's messages, replayed on a topology: the virtual wire's clock
    sweep_on_wire  its time for many vector sizes; virtual_clock: of the notebook's three
    talk_on_wire   the time of who talks to whom alone, without an algorithm
    autopsy_of     what is left of a function whose ranks wait for each other

Everything here uses ranks on threads: functions from a notebook cell work, and four ranks start in milliseconds.
Clocks of this machine are `bench.run_bench`'s business: it uses processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from labkit.comm.autopsy import RanksFailed
from labkit.comm.group import Recv, Send
from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Replay, replay
from week13_allreduce.topology import InOrder


class Filling(NamedTuple):
    """What was in every chunk of every rank, step by step, and which message brought it. int64, N ranks, N chunks.

    states     [steps + 1, N, N, N, N]: states[t, r, c, p, k] is how many times rank p's addend to chunk k is in what
               rank r holds as chunk c, before the first step (t = 0) and after each. Right is: k == c only, p once
    messages   for each step what each rank received in it: (from whom, its content [N, N] as above), or None; the
               content is None if it was no whole chunk
    """

    states: torch.Tensor
    messages: list[list[tuple[int, torch.Tensor | None] | None]]


class Watched:
    """A group that keeps a copy of `x_L` whenever a receive is posted, however it is posted, and of what it brings.

    A step ends where the next receive is posted, or where the function returns."""

    def __init__(self, group, x_L: torch.Tensor):
        self.group, self.x_L = group, x_L
        self.states: list[torch.Tensor] = []
        self.content: list[torch.Tensor | None] = []  # of each receive, in the order in which they were posted
        self.rank, self.size, self.device, self.ledger = group.rank, group.size, group.device, group.ledger

    def sendrecv(self, tensor, dst: int, src: int, like=None, out=None) -> torch.Tensor:
        return self._keep(self._posted(), self.group.sendrecv(tensor, dst=dst, src=src, like=like, out=out))

    def recv(self, src: int, like=None, out=None) -> torch.Tensor:
        return self._keep(self._posted(), self.group.recv(src, like=like, out=out))

    def irecv(self, src: int, like=None, out=None) -> Any:
        return _WatchedHandle(self, self._posted(), self.group.irecv(src, like=like, out=out))

    def batch(self, parts: Sequence[Send | Recv]) -> list[torch.Tensor | None]:
        posted = [self._posted() if isinstance(part, Recv) else None for part in parts]
        got = self.group.batch(parts)
        return [tensor if at is None else self._keep(at, tensor) for at, tensor in zip(posted, got)]

    def _posted(self) -> int:
        self.states.append(self.x_L.clone())
        self.content.append(None)
        return len(self.content) - 1

    def _keep(self, at: int, tensor: torch.Tensor) -> torch.Tensor:
        self.content[at] = tensor.detach().clone()
        return tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


class _WatchedHandle:
    """What `Watched.irecv` gives: it keeps what arrived once somebody waits for it."""

    def __init__(self, watched: Watched, at: int, handle: Any):
        self.watched, self.at, self.handle = watched, at, handle

    def wait(self) -> torch.Tensor:
        return self.watched._keep(self.at, self.handle.wait())


def filling(all_reduce: Callable, N: int = 4) -> Filling:
    """Watch `all_reduce(x, group)` work on tagged data, whatever calls it makes, and however wrong it is.

    Every chunk has N * N numbers. Rank p brings, in its chunk k, a single one at place p * N + k, else zeros. So the
    numbers in a chunk count, for each rank and each chunk, how many times that addend has come in: an addend that came
    twice, or from another chunk, shows. From whom a message came is read in the ledger."""

    def job(group) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        x_L = torch.zeros(N, N, N)  # [chunk, from rank, of chunk]
        x_L[range(N), group.rank, range(N)] = 1
        x_L = x_L.flatten()
        watched = Watched(group, x_L)
        all_reduce(x_L, watched)
        return [*watched.states, x_L], watched.content

    results = run_ranks(job, size=N, backend="threads")
    peers = [[event.peer for event in ledger.events if event.kind == "recv"] for ledger in results.ledgers]
    last = max(len(states) for states, _ in results)
    states = torch.stack([torch.stack([*held, *[held[-1]] * (last - len(held))]) for held, _ in results], dim=1)
    messages = [[_message(peers[r], results[r][1], t, N) for r in range(N)] for t in range(last - 1)]
    return Filling(states.round().long().view(last, N, N, N, N), messages)


def _message(peers: list, content: list, step: int, N: int) -> tuple[int, torch.Tensor | None] | None:
    if step >= len(peers):
        return None
    got = content[step]
    return peers[step], None if got is None or got.numel() != N * N else got.round().long().view(N, N)


def ledgers_of(collective: Callable, N: int, numel: int | None = None, **kwargs: Any) -> list[Ledger]:
    """The ledgers of `collective(x, group)` with N ranks, x of `numel` fp32 numbers (default: 16 a chunk)."""

    def job(group) -> None:
        collective(torch.ones(numel if numel is not None else 16 * N), group, **kwargs)

    return run_ranks(job, size=N, backend="threads", timeout=30.0).ledgers


def on_wire(collective: Callable, topology: Topology, nbytes: int, **kwargs: Any) -> Replay:
    """The virtual wire's clock: `collective(x, group)` with x of `nbytes` bytes a rank, on `topology`.

    It runs with a short vector, and the messages are then counted as if x were long: each is a fixed share of x."""
    N = topology.size
    return replay(_scaled(ledgers_of(collective, N, **kwargs), nbytes / (64 * N)), topology)


def sweep_on_wire(collective: Callable, topology: Topology, sizes: Sequence[int], **kwargs: Any) -> list[float]:
    """Seconds on the virtual wire for each vector size in bytes. One run, replayed for each."""
    N = topology.size
    ledgers = ledgers_of(collective, N, **kwargs)
    return [replay(_scaled(ledgers, size / (64 * N)), topology).time for size in sizes]


def virtual_clock(topology: Topology) -> dict[str, list[tuple[int, float]]]:
    """The notebook's three all-reduces on the virtual wire: a clock for clocks.py, from 1 KiB to 1 GiB."""
    from week13_allreduce import collectives

    sizes = [1 << k for k in range(10, 31, 2)]
    return {
        name: list(zip(sizes, sweep_on_wire(getattr(collectives, f"{name}_all_reduce"), topology, sizes)))
        for name in ("naive", "one_shot", "ring")
    }


def in_order(collective: Callable, order: Sequence[int]) -> Callable:
    """`collective`, run by the ranks in another order."""
    return lambda x, group, **kwargs: collective(x, InOrder(group, order), **kwargs)


def halving_and_doubling(r: int, N: int) -> list[tuple[int, float]]:
    """Who talks to whom in task 13.9, for `talk_on_wire`: (peer, share of the vector)."""
    distances = [N >> k for k in range(1, N.bit_length())]
    return [(r ^ d, d / N) for d in (*distances, *reversed(distances))]


def talk_on_wire(talk: Callable[[int, int], Sequence[tuple[int, float]]], topology: Topology, nbytes: float) -> Replay:
    """The virtual wire's clock of who talks to whom, without any data: talk(r, N) gives rank r's steps, in each a
    message of (peer, share of `nbytes`) both to and from that peer."""

    def job(group) -> None:
        for peer, share in talk(group.rank, group.size):
            part = torch.empty(round(share * SCALE))
            group.sendrecv(part, dst=peer, src=peer)

    ledgers = run_ranks(job, size=topology.size, backend="threads", timeout=30.0).ledgers
    return replay(_scaled(ledgers, nbytes / (4 * SCALE)), topology)


SCALE = 1 << 12  # numbers that stand for the whole vector


def autopsy_of(fn: Callable, *args: Any, N: int = 4, timeout: float = 3.0):
    """Run `fn(group, *args)` and return the autopsy of its failure; None if all ranks came home."""
    try:
        run_ranks(fn, *args, size=N, backend="threads", timeout=timeout)
    except RanksFailed as failed:
        return failed.autopsy
    return None


def _scaled(ledgers: list[Ledger], factor: float) -> list[Ledger]:
    """The same program with longer messages."""
    scaled = []
    for ledger in ledgers:
        data = ledger.to_json()
        for event in data["events"]:
            event["bytes"] = round(event["bytes"] * factor)
        scaled.append(Ledger.from_json(data))
    return scaled
