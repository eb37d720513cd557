"""The race: the fastest all-reduce for given wires, on the virtual wire. Any algorithm. `lab race` runs it.

Your entry is `stretch/fastest.py`. Rules:

  - the sum of fp32 vectors, in place, the same bits on every rank. Every number is compared: it may be off by one
    rounding for each addition of numbers as large as the addends' sizes together;
  - point-to-point calls of `group` only. Messages are fp32, and all of them together carry at least 2 (N-1) n bytes:
    where ranks do the adding a sum needs that many (collectives.py), so whoever sends less sends something else;
  - time is the virtual wire's, without computing. Par is the ring in the order 0, 1, 2, ...: what the virtual wire
    takes for the library's all-reduce.

This file is read by the judge, at home and in grading, like the tests.
"""

from __future__ import annotations

import torch

from labkit.checks import call, expect, same, sent, tensors
from labkit.checks.traffic import LIBRARY
from labkit.comm.ledger import Event, Ledger
from labkit.comm.topology import Link, Topology
from labkit.comm.wire import replay
from week13_allreduce.given import machines

TITLE, TASK = "The fastest all-reduce", "13.13"
KiB, MiB = 1 << 10, 1 << 20


def slow_link() -> Topology:
    """Six ranks on a switch; rank 3's cable has a tenth of the others' bandwidth, both ways."""
    wires = Topology.switch(6, 5e-6, 50e9)
    slow = {name: Link(5e9, wires.links[name].latency) for name in ("3.up", "3.down")}
    return Topology(6, wires.links | slow, wires.routes, "a switch with one slow cable")


def two_level() -> Topology:
    """Two nodes of four; the four ranks of a node share one network card."""
    return Topology.two_level(2, 4, inner_alpha=2e-6, inner_bandwidth=300e9, outer_alpha=8e-6, outer_bandwidth=50e9)


WIRES = {"mesh": lambda: machines.cube_mesh(alpha=5e-6), "levels": two_level, "slow": slow_link}
SIZES = {"64K": 64 * KiB, "4M": 4 * MiB}
TRACKS = {f"{name} {size}": f"{size} bytes on {wires().name}" for name, wires in WIRES.items() for size in SIZES}


def lap(track: str, seed: int) -> tuple[float, float]:
    """(seconds of the entry, par) on one track. CheckFailed if it breaks a rule."""
    name, size = track.split()
    wires, n = WIRES[name](), SIZES[size]
    N = wires.size
    x = tensors(seed, N, n // 4, whole=False)
    got, ledgers = call("scenarios.race", list(x), in_place=True, graph=plain(wires))
    total, sizes = torch.stack(x).double().sum(0), torch.stack(x).abs().double().sum(0)
    for r in range(N):
        # N-1 additions, each off by at most 2**-24 of a partial sum, which is no larger than the sizes' sum.
        same(got.inputs[r][0].double(), total, rank=r, tol=N * 2.0**-24 * sizes, what="x after the call")
        same(got.inputs[r][0], got.inputs[0][0], rank=r, what="x after the call, beside rank 0's")
        sent(ledgers[r], forbid=LIBRARY)
        strange = [event for event in ledgers[r].events if event.kind == "send" and event.dtype != "float32"]
        expect(not strange, f"rank {r} sends {strange[0].dtype if strange else ''}: messages are float32")
    carried = sum(event.bytes for ledger in ledgers for event in ledger.events if event.kind == "send")
    least = 2 * (N - 1) * n
    expect(carried >= least, f"all messages together carry {carried} bytes, and a sum needs {least}: what is missing?")
    return replay(ledgers, wires).time, par(wires, n)


def par(wires: Topology, n: int) -> float:
    """Seconds of the library's all-reduce on these wires, as the virtual wire plays it."""
    ledgers = []
    for r in range(wires.size):
        ledger = Ledger(r, wires.size)
        ledger.events.append(Event(0, "all_reduce", bytes=n, dtype="float32", op="sum"))
        ledgers.append(ledger)
    return replay(ledgers, wires).time


def plain(wires: Topology) -> dict:
    """A topology as plain values, for `scenarios.race`."""
    return {
        "size": wires.size,
        "name": wires.name,
        "links": [[name, link.bandwidth, link.latency] for name, link in wires.links.items()],
        "routes": [[a, b, list(path)] for (a, b), path in wires.routes.items()],
    }
