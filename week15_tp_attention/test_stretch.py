"""Self-checks of the stretch tasks, for no points: `lab check 15.8`, say. `lab check week15` leaves them out."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import call, call_alone, expect, same, sends, sent, task
from labkit.checks.drawn import Draw
from labkit.checks.traffic import LIBRARY, phases
from labkit.comm.topology import Topology
from labkit.comm.wire import replay

FORWARD, BACKWARD = 1.0, 2.0  # seconds of one chunk's step


def makespan(ranks, v):
    """Seconds until the last step's end; None if the ranks wait for each other for ever. Chunk c of rank p is part
    c P + p."""
    P, done = len(ranks), dict[tuple, float]()
    clock, at, moved = [0.0] * P, [0] * P, True
    while moved:
        moved = False
        for p, steps in enumerate(ranks):
            while at[p] < len(steps):
                kind, m, c = steps[at[p]]
                part = c * P + p
                before = ("F", m, part - 1) if kind == "F" else ("B", m, part + 1)
                needs = [before] * (part > 0 if kind == "F" else part < v * P - 1) + [("F", m, part)] * (kind == "B")
                if any(need not in done for need in needs):
                    break
                clock[p] = max([clock[p], *map(done.__getitem__, needs)]) + (FORWARD if kind == "F" else BACKWARD)
                done[kind, m, part] = clock[p]
                at[p], moved = at[p] + 1, True
    return max(clock) if all(a == len(steps) for a, steps in zip(at, ranks)) else None


@task("15.8", points=0)
def test_interleaved(seed):
    """Every step once, in v chunks, with a bubble v times smaller"""
    draw = Draw(seed, "interleaved")
    some = draw.size(2, 4)
    for P, M, v in [(2, 4, 2), (4, 8, 2), (4, 4, 3), (1, 3, 2), (some, draw.size(1, 3, times=some), draw.size(2, 4))]:
        got = call_alone("scenarios.interleaved", P, M, v)
        ranks = [[tuple(step) for step in steps] for steps in got]
        wanted = {(kind, m, c) for kind in "FB" for m in range(M) for c in range(v)}
        for p, steps in enumerate(ranks):
            text = f"rank {p} of {P}, {M} micro-batches, {v} chunks"
            expect(set(steps) == wanted and len(steps) == len(wanted), f"{text}: every step must come once: {steps}")
        began = [next(k for k, step in enumerate(steps) if step[0] == "B") for steps in ranks]
        published = [min(2 * (P - p - 1) + (v - 1) * P + 1, v * M) for p in range(P)]
        further = "as far ahead as the paper's, whose messages get time to travel: fewer forwards leave no gap here"
        for p, steps in enumerate(ranks):
            most = max(sum(1 if kind == "F" else -1 for kind, *_ in steps[:k]) for k in range(len(steps) + 1))
            least = min(v * P - p, v * M)  # when the first gradient comes, if nothing was kept back
            expect(
                most <= least,
                f"rank {p} of {P}, {M} micro-batches, {v} chunks: {most} in flight, {least} are enough",
                cause=(further,) if began == published else (),
            )
        time = makespan(ranks, v)
        expect(time is not None, f"{P} ranks, {M} micro-batches, {v} chunks: the ranks wait for each other for ever")
        same(
            time,
            (v * M + P - 1) * (FORWARD + BACKWARD),
            tol=1e-9,
            what=f"seconds of {P} ranks, {M} micro-batches, {v} chunks",
            looks_like={"the bubble of 1F1B without chunks": (v * M + v * (P - 1)) * (FORWARD + BACKWARD)},
        )


@task("15.8", points=0)
def test_interleaved_refuses():
    """Micro-batches that do not divide by the ranks are refused in a sentence"""
    kind, text = call_alone("scenarios.interleaved_refuses", 4, 6, 2)
    expect(
        kind == "LabError" and "4" in text and "6" in text, f"a LabError that names 4 and 6 is expected: {kind}: {text}"
    )


# ---- 15.9

LATENCY, BANDWIDTH = 1e-5, 1e9  # of the virtual wire: seconds a message, bytes a second


@task("15.9", points=0)
@pytest.mark.parametrize("N", [2, 4])
@pytest.mark.parametrize("which", ["gather_linear", "linear_scatter"])
def test_collective_matmul(which, N, seed):
    """A product and its messages in one loop, forward and backward"""
    gathers = which == "gather_linear"
    draw = Draw(seed, "collective", which, N)
    B, t, wide, out = draw.size(1, 3), draw.size(2, 3), draw.size(3, 5), draw.size(6, 8)
    T = N * t
    xs = [draw.whole(B, t if gathers else T, wide) for _ in range(N)]
    dys = [draw.whole(B, T if gathers else t, out) for _ in range(N)]
    weights = [draw.whole(out, wide) for _ in range(N)]
    got, ledgers = call("scenarios.collective", [(xs[r], dys[r], weights[r]) for r in range(N)], which=which)
    whole_x, whole_dy = (torch.cat(parts, 1) for parts in (xs, dys))
    chunk = 4 * B * t * (wide if gathers else out)
    for r in (*range(1, N), 0):  # on rank 0 several mistakes give the same
        own = slice(r * t, (r + 1) * t)
        if gathers:
            y, x, dy = whole_x @ weights[r].T, whole_x, dys[r]
            dx = sum(dys[s][:, own] @ weights[s] for s in range(N))
            alone = {"dL/dx": dys[r][:, own] @ weights[r]}
        else:
            y, x, dy = sum(xs[s][:, own] @ weights[s].T for s in range(N)), xs[r], whole_dy
            dx = whole_dy @ weights[r]
            alone = {"y": xs[r][:, own] @ weights[r].T}
        dW = dy.flatten(0, 1).T @ x.flatten(0, 1)
        for name, value, right in (("y", got[r]["y"], y), ("dL/dx", got[r]["x"], dx), ("dL/dW", got[r]["weight"], dW)):
            causes = {"its own addend alone: nobody else's was added": alone[name]} if name in alone else {}
            same(value, right, rank=r, what=name, looks_like=causes)
        sent(ledgers[r], steps=2 * (N - 1), at_most=2 * (N - 1) * chunk, forbid=LIBRARY, at_least=1)
        right_ones = [((r + 1) % N, chunk)] * (2 * (N - 1))
        text = f"rank {r} must send one part a step to rank {(r + 1) % N}, forward and backward: {sends(ledgers[r])}"
        expect(sends(ledgers[r]) == right_ones, text)
        for half, events in phases(ledgers[r]).items():
            spans = [event for event in events if event.kind == "compute" and event.label == "product"]
            expect(half == "before" or len(spans) == N, f"rank {r}, {half}: {N} spans 'product', not {len(spans)}")
    travels = LATENCY + chunk / BANDWIDTH
    for product in (0.5 * travels, 2 * travels):
        for ledger in ledgers:
            for event in ledger.events:
                if event.kind == "compute":
                    event.seconds = product
        time = replay(ledgers, Topology.switch(N, LATENCY, BANDWIDTH)).time
        beside, behind = product + (N - 1) * max(product, travels), N * product + (N - 1) * travels
        same(
            time,
            2 * beside,
            tol=1e-6 * travels,
            what=f"seconds on the wire, with products of {product:.3g} s and messages of {travels:.3g} s,",
            looks_like={
                "one after the other: nothing is hidden": 2 * behind,
                "forward or backward goes one after the other: nothing is hidden there": beside + behind,
            },
        )


@task("15.9", points=0)
@pytest.mark.parametrize("N, chunks", [(2, 2), (4, 3)])
def test_linear_reduce(N, chunks, seed):
    """A row-parallel product in chunks: all sums but the last beside a product"""
    draw = Draw(seed, "reduce", N)
    B, T, wide, out = chunks + 1, chunks * draw.size(2, 4) + 1, draw.size(3, 5), N * draw.size(2, 3)
    parts = [len(part) for part in torch.arange(B * T).chunk(chunks)]  # the last one is shorter
    xs, dy = [draw.whole(B, T, wide) for _ in range(N)], draw.whole(B, T, out)
    weights = [draw.whole(out, wide) for _ in range(N)]
    inputs = [(xs[r], dy, weights[r]) for r in range(N)]
    got, ledgers = call("scenarios.collective", inputs, which="linear_reduce", chunks=chunks)
    y = sum(x @ w.T for x, w in zip(xs, weights))
    for r in range(N):
        same(got[r]["y"], y, rank=r, what="y", looks_like={"its own addend alone": xs[r] @ weights[r].T})
        times = {"N times too much: the gradient of y is whole already": N * dy @ weights[r]}
        same(got[r]["x"], dy @ weights[r], rank=r, what="dL/dx", looks_like=times)
        same(got[r]["weight"], dy.flatten(0, 1).T @ xs[r].flatten(0, 1), rank=r, what="dL/dW")
        halves = phases(ledgers[r])
        sums = [event for event in halves["forward"] if event.kind == "all_reduce"]
        text = f"rank {r}: {chunks} all-reduces, forward, of {parts} rows, as torch.chunk cuts, and none backward"
        expect([event.bytes for event in sums] == [4 * out * rows for rows in parts], text, known=True)
        expect(not any(event.bytes for event in halves["backward"]), text)
        spans = [event for event in halves["forward"] if event.kind == "compute" and event.label == "product"]
        expect(len(spans) == chunks, f"rank {r} must have {chunks} spans 'product', and it has {len(spans)}")
    travels = [2 * (N - 1) * (LATENCY + 4 * rows * out // N / BANDWIDTH) for rows in parts]
    for product in (0.5 * travels[0], 2 * travels[0]):
        end = 0.0
        for k, one in enumerate(travels):
            end = max(end, (k + 1) * product) + one
        for ledger in ledgers:
            for event in ledger.events:
                if event.kind == "compute":
                    event.seconds = product
        same(
            replay(ledgers, Topology.switch(N, LATENCY, BANDWIDTH)).time,
            end,
            tol=1e-3 * end,
            what=f"seconds on the wire, with products of {product:.3g} s and sums of up to {travels[0]:.3g} s,",
            looks_like={"one after the other: nothing is hidden": chunks * product + sum(travels)},
        )
