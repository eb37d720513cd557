"""The benchmark: your trainers beside torch's, on this machine.

    torchrun --nproc_per_node 2 -m week14_fsdp.bench --size 1b             GPUs (NCCL), three minutes on two H200
    torchrun --nproc_per_node 2 -m week14_fsdp.bench --size toy            CPUs (gloo), a minute: does it run?
    sbatch week14_fsdp/bench.slurm                                         several machines

The parts (--parts, by comma):

    memory      peaks of DDP, ZeRO-1 and FSDP beside what task 14.1 predicts
    fsdp        your FSDP beside torch's fully_shard: tokens a second, losses, prefetch on and off
    ddp         your data parallel beside torch's; and the same steps without a message, with the GPU's clock
    scaling     your FSDP and torch's: one rank alone, the same tokens on every rank, the same tokens in all
    traces      one step of each, profiled; task 14.5's exposed communication beside the step's time
    buckets     data parallel's step against the size of its buckets, with the exposed communication
    large       traces of fully_shard at 8B (GPUs only)

It writes into --out: bench.json (see given/records.py), the traces, and prints a table last. A part that fails is
recorded with its error, and the others go on; a part that would begin after --limit seconds is left out, and says so.
What needs a task that is not written yet is left out too.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labkit.comm.ranks import is_first, launched, local_rank, run_ranks
from labkit.errors import LabError, run_command
from labkit.record.files import writable
from week14_fsdp.given import contenders, records
from week14_fsdp.given.contenders import Ddp, Fsdp, Fsdp2, TorchDdp, Zero1, batches, shape
from week14_fsdp.given.meter import StorageMeter
from week14_fsdp.given.stepping import Clocks, of_windows, saved_numbers, settle, traced, windows, write_trace

MIB = 1 << 20
BUCKETS = {"cuda": (1, 5, 25, 100, 400, 4096), "cpu": (0.01, 0.05, 0.25, 4)}  # MiB


class Plan:
    """What every part is given: sizes, where traces go, how many windows and steps."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        toy = options.size == "toy"
        self.size, self.config, self.device = options.size, shape(options.size), device
        self.seq_len = options.seq_len or (32 if toy else 2048)
        self.sequences = options.batch or (4 if toy else 8)
        self.out = Path(options.out)
        self.windows: int = 2 if toy else 3
        self.each: int = 2 if toy else options.steps

    @property
    def tokens(self) -> int:
        return self.sequences * self.seq_len

    def data(self, group, sequences: int | None = None, config: Any = None) -> list[contenders.Batch]:
        return batches(config or self.config, group, 4, sequences or self.sequences, self.seq_len)


def looped(contender: Any, data: list[contenders.Batch], **how: Any) -> Callable[[], torch.Tensor]:
    """A step with the next batch."""
    at = iter(range(10**9))
    return lambda: contender.step([data[next(at) % len(data)]], **how)


# ---- the parts: each runs on every rank, and returns what is recorded


def memory(group, plan: Plan) -> dict[str, Any]:
    """Two micro-batches a step, so that in the second one's backward all that task 14.1 counts is there."""
    from week14_fsdp.memory import Sizes
    from week14_fsdp.memory import memory as predicted

    c, found = plan.config, dict[str, Any]()
    block = sum(torch.Size(s).numel() for s in c.block_shapes().values())
    whole = sum(torch.Size(s).numel() for s in c.weight_shapes().values())
    compared: list[tuple[str, Any, str, int]] = [
        ("ddp", Ddp, "ddp", 2),
        ("zero1", Zero1, "zero1", 4),
        ("fsdp", Fsdp, "zero3", 2),
        ("fsdp2", Fsdp2, "zero3", 2),
    ]
    for name, make, stage, itemsize in compared:
        saved = saved_numbers(c, group.device, torch.bfloat16 if itemsize == 2 else torch.float32, plan.seq_len)
        model = Sizes(whole - c.n_layers * block, block, c.n_layers, c.d_model, saved, c.vocab_size)
        by_kind = predicted(model, stage, group.size, plan.tokens, itemsize)
        row: dict[str, Any] = {"stage": stage, "itemsize": itemsize, "sizes": list(model)}
        row |= {"predicted": by_kind._asdict(), "predicted_bytes": by_kind.total}
        emptied()
        data = plan.data(group)
        before = torch.cuda.memory_allocated() if plan.device == "cuda" else 0
        contender = make(c, group)
        contender.step(data[:2])
        if plan.device == "cuda":
            row["between_steps_bytes"] = torch.cuda.memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
            for _ in range(2):
                contender.step(data[:2])
            settle(group)
            row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
            row["reserved_bytes"] = torch.cuda.max_memory_reserved()
        elif name != "fsdp2":  # the meter does not look into DTensors
            with StorageMeter(without=[tensor for pair in data for tensor in pair]) as meter:
                contender.step(data[:2])
            row["peak_bytes"] = meter.peak
        if "peak_bytes" in row:
            row["off"] = row["predicted_bytes"] / row["peak_bytes"] - 1
        found[name] = row
        del contender
    return found


def fsdp(group, plan: Plan) -> dict[str, Any]:
    data = plan.data(group)
    programs: dict[str, Any] = {"fsdp": Fsdp(plan.config, group), "fsdp2": Fsdp2(plan.config, group)}
    losses = {name: [one.step([data[k % 4]]).item() for k in range(6)] for name, one in programs.items()}
    steps = {name: looped(one, data) for name, one in programs.items()}
    seconds = windows(group, steps, plan.windows, plan.each)
    found = {name: {**of_windows(s, plan.tokens), "losses": losses[name]} for name, s in seconds.items()}
    del programs, steps
    emptied()
    off = {"fsdp, no prefetch": Fsdp(plan.config, group, False), "fsdp2, no prefetch": Fsdp2(plan.config, group, False)}
    more = windows(group, {name: looped(one, data) for name, one in off.items()}, plan.windows, plan.each)
    return found | {name: of_windows(s, plan.tokens) for name, s in more.items()}


def ddp(group, plan: Plan) -> dict[str, Any]:
    data = plan.data(group)
    programs: dict[str, Any] = {"ddp": Ddp(plan.config, group), "torch-ddp": TorchDdp(plan.config, group)}
    losses = {name: [one.step([data[k % 4]]).item() for k in range(6)] for name, one in programs.items()}
    seconds = windows(group, {n: looped(one, data) for n, one in programs.items()}, plan.windows, plan.each)
    found = {name: {**of_windows(s, plan.tokens), "losses": losses[name]} for name, s in seconds.items()}
    # What does a message cost that nobody waits for? The same steps without one, and what the chip's clock says.
    own = programs["ddp"]
    for name in ("with messages", "without messages") * 2:
        clocks = Clocks(local_rank()) if plan.device == "cuda" else None
        step = looped(own, data, send=name == "with messages")
        took = windows(group, {name: step}, 1, 2 * plan.each, warmup=1)[name]
        row = found.setdefault(name, {"step_seconds": [], "clocks": []})
        row["step_seconds"] += took
        row["clocks"].append(clocks.stop() if clocks else None)
    return found


def scaling(group, plan: Plan) -> dict[str, Any]:
    """One rank alone (each rank trains a model of its own, at the same time), and all together."""
    found: dict[str, Any] = {}
    alone = group.split([[r] for r in range(group.size)], name="alone")
    half = max(1, plan.sequences // group.size)
    for name, make in (("fsdp", Fsdp), ("fsdp2", Fsdp2)):
        rows = found.setdefault(name, [])
        for kind, ranks, part, sequences in (
            ("one rank", 1, alone, plan.sequences),
            ("weak", group.size, group, plan.sequences),
            ("strong", group.size, group, half),
        ):
            emptied()
            one = make(plan.config, part)
            step = looped(one, plan.data(group, sequences))
            took = windows(group, {name: step}, plan.windows, plan.each)[name]
            row = {"kind": kind, "ranks": ranks, **of_windows(took, sequences * plan.seq_len)}
            rows.append(row | read_by_14_5(traced(group, step)))
            del one, step
    return found


def read_by_14_5(trace: dict[str, Any] | None) -> dict[str, Any]:
    """What task 14.5 reads in this rank's trace, in microseconds; nothing without a trace, or while 14.5 is open."""
    from week14_fsdp.overlap import exposed

    try:
        return {} if trace is None else dict(exposed(trace)._asdict())
    except NotImplementedError:
        return {}


def exposed_by_rank(group, trace: dict[str, Any] | None, path: Path) -> dict[str, Any] | None:
    """A step's trace, written by the first rank; what task 14.5 reads in it, by rank."""
    from week14_fsdp.overlap import exposed

    if trace is None:
        return None
    events = [e for e in trace["traceEvents"] if e["cat"] != "gpu_user_annotation"]
    span = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    own = [*exposed(trace)[:3], span, trace["stepSeconds"] * 1e6]
    row = torch.tensor([float(x) for x in own], device=group.device, dtype=torch.float64)
    keys = ("computing", "communication", "exposed", "span", "step")
    by_rank = group.all_gather(row).view(group.size, -1).tolist()
    if group.rank == 0:
        write_trace(trace, path)
    return {"file": path.name, "by_rank": [dict(zip(keys, values)) for values in by_rank]}


def traces(group, plan: Plan) -> dict[str, Any]:
    data, found = plan.data(group), {}
    for name, make in (
        ("fsdp2", partial(Fsdp2, plan.config, group)),
        ("fsdp2-no-prefetch", partial(Fsdp2, plan.config, group, False)),
        ("fsdp", partial(Fsdp, plan.config, group)),
        ("fsdp-no-prefetch", partial(Fsdp, plan.config, group, False)),
        ("ddp", partial(Ddp, plan.config, group)),
    ):
        emptied()
        step = looped(make(), data)
        for _ in range(3):
            step()
        found[name] = exposed_by_rank(group, traced(group, step), plan.out / f"trace-{plan.size}-{name}.json.gz")
        del step
    return found


def buckets(group, plan: Plan) -> dict[str, Any]:
    data, rows = plan.data(group), []
    for mib in BUCKETS[plan.device]:
        emptied()
        one = Ddp(plan.config, group, int(mib * MIB))
        took = windows(group, {"ddp": looped(one, data)}, 1, plan.each, warmup=2)["ddp"]
        row: dict[str, Any] = {"mib": mib, "buckets": len(one.parallel.buckets), **of_windows(took, plan.tokens)}
        rows.append(row | read_by_14_5(traced(group, looped(one, data))))
        del one
    return {"rows": rows}


def large(group, plan: Plan) -> dict[str, Any]:
    """fully_shard at 8B: two traces. Weights are drawn where they lie: no rank could hold them whole and train."""
    if plan.device != "cuda":
        return {"left out": "needs GPUs"}
    config, found = shape("8b"), {}
    data = batches(config, group, 2, 1, 4096)
    for name, prefetch in (("fsdp2", True), ("fsdp2-no-prefetch", False)):
        emptied()
        one = Fsdp2(config, group, prefetch, large=True)
        step = looped(one, data)
        step()
        found[name] = exposed_by_rank(group, traced(group, step), plan.out / f"trace-8b-{name}.json.gz")
        del one, step
    return found


PARTS: dict[str, Callable] = {
    "memory": memory,
    "fsdp": fsdp,
    "ddp": ddp,
    "traces": traces,
    "scaling": scaling,
    "buckets": buckets,
    "large": large,
}


def emptied() -> None:
    """Let go of what the last one held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def attempt(group, part: str, plan: Plan) -> dict[str, Any]:
    """A part's result, or why there is none. Its faults meet all ranks alike; one that does not is the timeout's."""
    if plan.device == "cuda":
        torch.set_float32_matmul_precision("high")
    begin = time.perf_counter()
    try:
        found = PARTS[part](group, plan)
    except NotImplementedError as blank:
        found = {"left out": str(blank)}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {str(error)[:600]}"}
    emptied()
    return {**found, "seconds": time.perf_counter() - begin}


def run_bench(options: argparse.Namespace) -> dict[str, Any]:
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.device_count() >= options.ranks else "cpu"
    wanted = list(PARTS) if options.parts == "all" else [name.strip() for name in options.parts.split(",")]
    for name in wanted:
        if name not in PARTS:
            raise LabError(f"there is no part {name!r}: choose of {', '.join(PARTS)}, or all.")
    plan, leader = Plan(options, device), is_first()
    if leader:
        writable(plan.out)
    record = records.describe(options, plan, leader)
    begin = time.perf_counter()
    for name in wanted:
        late = torch.tensor([time.perf_counter() - begin])
        spent = max(r.item() for r in run_ranks(_spent, late, size=options.ranks, timeout=None, device=device))
        if spent > options.limit:
            result = {"left out": f"{spent:.0f} s had passed, and --limit is {options.limit}"}
        else:
            result = run_ranks(attempt, name, plan, size=options.ranks, timeout=None, device=device)[0]
        record["parts"][name] = result
        if leader:
            records.save(record, plan.out / "bench.json")
            print(f"# {name}: {result.get('failed') or result.get('left out') or 'done'}", flush=True)
    if leader:
        print(records.table(record), flush=True)
    return record


def _spent(group, seconds: torch.Tensor) -> torch.Tensor:
    return group.all_reduce(seconds.to(group.device), op="max").cpu()


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status: 0, or 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m week14_fsdp.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", default="1b", help="of the decoder: 1b, 124m, tiny, or toy")
    add("--parts", default="all", help=f"of {', '.join(PARTS)}, by comma; or all")
    add("--batch", type=int, default=None, help="sequences of a rank's micro-batch; 8, at toy size 4")
    add("--seq-len", type=int, default=None, help="tokens of a sequence; 2048, at toy size 32")
    add("--steps", type=int, default=8, help="of each window")
    add("--ranks", type=int, default=None, help="without torchrun: how many processes; all GPUs, or 2")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--limit", type=float, default=600.0, help="seconds after which no part begins")
    add("--out", default="runs/week14", help="folder for the record and the traces")
    options = parser.parse_args(argv)
    options.ranks = launched(options.ranks) or options.ranks or max(2, torch.cuda.device_count())
    if options.size != "toy":
        shape(options.size)
    record = run_bench(options)
    return int(any("failed" in part for part in record["parts"].values()))


if __name__ == "__main__":
    run_command("bench", main)
