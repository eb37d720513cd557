"""What the notebook runs, on real ranks: given, so that a cell is one line and its data are real.

    filling        which addends are in which chunk of which rank, after every step of a collective
    on_wire        a collective's messages, replayed on a topology: the virtual wire's clock
    sweep_on_wire  its time for many vector sizes
    autopsy_of     what is left of a function whose ranks wait for each other

Everything here uses ranks on threads: functions from a notebook cell work, and four ranks start in milliseconds.
Clocks of this machine are `bench.run_bench`'s business: it uses processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm.ledger import Ledger
from labkit.comm.outcome import RanksFailed
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Replay, replay


class Watched:
    """A group that keeps a copy of `x_L` before each `sendrecv`: the state after every step."""

    def __init__(self, group, x_L: torch.Tensor):
        self.group, self.x_L = group, x_L
        self.states: list[torch.Tensor] = []
        self.rank, self.size, self.device, self.ledger = group.rank, group.size, group.device, group.ledger

    def sendrecv(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.states.append(self.x_L.clone())
        return self.group.sendrecv(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


def filling(all_reduce: Callable, N: int = 4) -> torch.Tensor:
    """Watch `all_reduce(x, group)` work. Rank r brings 2**r in each of its N chunks, so that a chunk's value tells, bit
    by bit, whose addends are in it.

    Returns:
        [steps + 1, N ranks, N chunks] int64: the values before the first step, and after each. Works for a wrong ring
        too (an addend that came twice shows as another rank's bit): look at it when a check fails.
    """

    def job(group) -> torch.Tensor:
        x_L = torch.full((N,), 2.0**group.rank)
        watched = Watched(group, x_L)
        all_reduce(x_L, watched)
        return torch.stack([*watched.states, x_L])

    by_rank = run_ranks(job, size=N, backend="threads")
    steps = min(len(states) for states in by_rank)
    return torch.stack([states[:steps] for states in by_rank], dim=1).long()


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
