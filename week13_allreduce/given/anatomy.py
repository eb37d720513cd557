"""Where a ring's time goes on GPUs: its parts timed alone, and then together.

    torchrun --nproc_per_node 4 -m week13_allreduce.given.anatomy --out runs/anatomy

It needs tasks 13.2 to 13.4 and 13.12, and writes one record, anatomy.json (bytes, seconds, bytes/s):

    kind "ring anatomy", started, command, hardware, hardware_name, versions, environment, ranks, dtype
    messages  [{size, seconds, blocks}]   one step of the ring, everybody to the right, by the size of the message;
              blocks: of NCCL's kernel, which gives one to each channel among which it divides the message
    additions [{size, seconds}]           acc.add_(other), both of `size` bytes
    wires     {pattern: bytes/s}          messages of 1 GiB between pairs, alone and all at once
    calls     {name: us of the CPU}       to queue one call of a few numbers
    rings     {name: [{size, seconds, queue}]}      all-reduces; names in RINGS
    timelines {name: [{what, begin, end, blocks}]}  rank 0's kernels in one all-reduce of the largest size, seconds;
              what: "message" or "addition"
    memory    [{size, calls, seconds, mallocs, frees, retries}]     all-gathers into fresh memory, by how many are
              queued one after another; and what torch's memory pool did meanwhile
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labkit.comm.group import Recv, Send
from labkit.comm.ranks import run_ranks
from labkit.errors import run_command
from labkit.record.files import writable
from labkit.record.measure import Stopwatch
from week13_allreduce import collectives
from week13_allreduce.given import records
from week13_allreduce.given.contenders import timed
from week13_allreduce.stretch.pipelined import pipelined_ring_all_reduce

MiB, GiB = 1 << 20, 1 << 30
MESSAGES = [m * MiB for m in (1, 4, 16, 32, 64, 128, 192, 256, 384, 512, 1024)]
SIZES = [16 * MiB, 64 * MiB, 256 * MiB, GiB, 4 * GiB]


def _ring(slices: int, directions: int) -> Callable:
    return lambda x, group: pipelined_ring_all_reduce(x, group, slices=slices, directions=directions)


RINGS: dict[str, Callable] = {
    "library": lambda x, group: group.all_reduce(x),
    "ring": collectives.ring_all_reduce,
    "1 way, 2 slices": _ring(2, 1),
    "1 way, 4 slices": _ring(4, 1),
    "2 ways, 1 slice": _ring(1, 2),
    "2 ways, 2 slices": _ring(2, 2),
    "2 ways, 4 slices": _ring(4, 2),
}
DRAWN = ("library", "ring", "1 way, 2 slices", "2 ways, 2 slices")


def anatomy(group, budget: float, largest: int) -> dict[str, Any]:
    """Job on every rank: the parts of the record that are measured. largest: bytes of the longest vector."""
    with group.ledger.off():
        found = _with_vectors(group, budget, largest)  # freed before the last part, which needs the memory
        found["memory"] = [_fresh(group, largest // 2, calls) for calls in (5, 80)]
    return found


def _with_vectors(group, budget: float, largest: int) -> dict[str, Any]:
    x = torch.empty(largest // 4, device=group.device)
    inbox = torch.empty(min(GiB, largest) // 4, device=group.device)
    small = torch.randn(4096, device=group.device) * 1e-30

    def clock(run: Callable[[], Any], part: torch.Tensor = inbox) -> dict[str, Any]:
        return timed(run, lambda: part.view(-1, 4096).copy_(small), group, budget)

    def addition(size: int) -> dict[str, Any]:
        acc, other = x[: size // 4], inbox[: size // 4]
        return {"size": size, "seconds": clock(lambda: acc.add_(other), acc)["seconds"]}

    found: dict[str, Any] = {"messages": _messages(group, x, inbox, clock)}
    found["additions"] = [addition(size) for size in MESSAGES[5:] if size <= 4 * inbox.numel()]
    found["wires"] = _wires(group, x, inbox, clock)
    found["calls"] = _calls(group, x[:1024], inbox[:1024])
    found["rings"] = {name: [] for name in RINGS}
    for name, ring in RINGS.items():
        for size in (size for size in SIZES if size <= largest):
            part = x[: size // 4]
            row = clock(partial(ring, part, group), part)
            found["rings"][name].append({"size": size, "seconds": row["seconds"], "queue": row["queue"]})
            torch.cuda.empty_cache()
    found["timelines"] = {}
    for name in DRAWN:
        x.view(-1, 4096).copy_(small)
        RINGS[name](x, group)
        found["timelines"][name] = _timeline(group, partial(RINGS[name], x, group))
    return found


def _messages(group, x: torch.Tensor, inbox: torch.Tensor, clock: Callable) -> list[dict[str, Any]]:
    N, r = group.size, group.rank

    def step(size: int) -> None:
        group.sendrecv(x[: size // 4], dst=(r + 1) % N, src=(r - 1) % N, out=inbox[: size // 4])

    def all_steps() -> None:
        for size in sizes:
            step(size)

    sizes = [size for size in MESSAGES if size <= 4 * inbox.numel()]
    rows = [{"size": size, "seconds": clock(partial(step, size))["gpu"], "blocks": None} for size in sizes]
    kernels = _timeline(group, all_steps)
    if len(kernels) == len(rows):  # one kernel each, in their order; only rank 0 has looked
        for row, kernel in zip(rows, kernels):
            row["blocks"] = kernel["blocks"]
    return rows


def _wires(group, x: torch.Tensor, inbox: torch.Tensor, clock: Callable) -> dict[str, float]:
    """Bytes/s of one direction, or of rank 0's input where all send to it."""
    N, r, n = group.size, group.rank, inbox.numel()
    whole, part = x[:n], n // (N - 1)
    to_0 = [Recv(p, out=inbox[(p - 1) * part : p * part]) for p in range(1, N)] if r == 0 else [Send(x[:part], 0)]
    patterns = {
        "0 to 1, alone": [Send(whole, 1)] if r == 0 else [Recv(0, out=inbox)] if r == 1 else [],
        "0 and 1, both ways": [Send(whole, 1 - r), Recv(1 - r, out=inbox)] if r < 2 else [],
        "all neighbours, both ways": [Send(whole, r ^ 1), Recv(r ^ 1, out=inbox)] if r ^ 1 < N else [],
        "everybody to the right": [Send(whole, (r + 1) % N), Recv((r - 1) % N, out=inbox)],
        "all to 0": to_0,
    }
    return {
        name: 4 * (part * (N - 1) if name == "all to 0" else n) / clock(partial(group.batch, parts))["seconds"]
        for name, parts in patterns.items()
    }


def _calls(group, x: torch.Tensor, inbox: torch.Tensor, times: int = 300) -> dict[str, float]:
    """Microseconds of the CPU, queueing only: the GPU is done much earlier, or its queue takes them all."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    found = {}
    for name, call in {
        "sendrecv into out": lambda: group.sendrecv(x, right, left, out=inbox),
        "sendrecv into a new tensor": lambda: group.sendrecv(x, right, left),
        "library all_reduce": lambda: group.all_reduce(x),
        "add_": lambda: x.add_(inbox),
    }.items():
        call()
        group.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        found[name] = (time.perf_counter() - begin) / times * 1e6
        torch.cuda.synchronize()
    return found


def _timeline(group, run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Rank 0's kernels while all ranks `run` once, in order; [] on the others, which are not watched."""
    group.barrier()
    if group.rank:
        run()
        torch.cuda.synchronize()
        return []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        watched.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    zero = kernels[0]["ts"] if kernels else 0
    return [
        {
            "what": "message" if "nccl" in e["name"].lower() else "addition",
            "begin": (e["ts"] - zero) * 1e-6,
            "end": (e["ts"] + e["dur"] - zero) * 1e-6,
            "blocks": e["args"]["grid"][0],
        }
        for e in kernels
    ]


def _fresh(group, size: int, calls: int) -> dict[str, Any]:
    """All-gathers into new memory, `calls` queued one after another. Seconds for one, with the pool's own doings."""
    torch.cuda.empty_cache()
    own = torch.ones(size // 4 // group.size, device=group.device)
    for _ in range(2):
        collectives.ring_all_gather(own, group, own.numel() * group.size)
    group.barrier()
    before, watch = torch.cuda.memory_stats(), Stopwatch(group.device)
    watch.start()
    for _ in range(calls):
        collectives.ring_all_gather(own, group, own.numel() * group.size)
    slowest = torch.tensor([watch.lap() / calls], dtype=torch.float64, device=group.device)
    after = torch.cuda.memory_stats()
    counts = {
        name: after.get(key, 0) - before.get(key, 0)
        for name, key in (
            ("mallocs", "num_device_alloc"),
            ("frees", "num_device_free"),
            ("retries", "num_alloc_retries"),
        )
    }
    return {"size": size, "calls": calls, "seconds": group.all_reduce(slowest, "max").item(), **counts}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs/anatomy", help="folder for anatomy.json")
    parser.add_argument("--budget", type=float, default=0.06, help="seconds of timed calls for each point, about")
    parser.add_argument("--max", default="4G", help="the longest vector")
    a = parser.parse_args(argv)
    where = records.which_ranks("cuda", None)
    if where["leader"]:
        writable(Path(a.out))
    record = records.describe(where, "float32", "sum", None) | {"kind": "ring anatomy"}
    record.pop("series")
    largest = records.parse_size(a.max)
    record |= run_ranks(anatomy, a.budget, largest, backend="torchrun", device="cuda", timeout=None)[0]
    if where["leader"]:
        records.save(record, Path(a.out) / "anatomy.json")
        print(os.path.join(a.out, "anatomy.json"))
    return 0


if __name__ == "__main__":
    run_command("anatomy", main)
