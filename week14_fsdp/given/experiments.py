"""The notebook's experiments: your classes under the small decoder of given/tiny.py, on ranks that are threads.

The virtual wire's clock counts as if a block's weights had `BLOCK` bytes: the ledger's messages are made longer by one
factor, as in week 13. What computes takes the time that given/tiny.py notes: 1 ms a block forward, 2 ms backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Replay, replay
from week14_fsdp.given.freed import NoFreedMemory
from week14_fsdp.given.meter import StorageMeter
from week14_fsdp.given.tiny import Block, Identity, Tiny

MIB = 1 << 20
BLOCK = 64 * MIB  # bytes of a block's weights on the virtual wire
D, H, V = 32, 64, 16


def weights(blocks: int, seed: int = 0, hidden: int = H, width: int = D) -> dict[str, Tensor]:
    """First values for given/tiny.py; all blocks equally large."""
    g = torch.Generator().manual_seed(seed)
    found = {"embed": torch.randn(V, width, generator=g), "scale": torch.ones(width)}
    for k in range(blocks):
        found[f"blocks.{k}.up"] = torch.randn(hidden, width, generator=g) / width**0.5
        found[f"blocks.{k}.bias"] = torch.zeros(hidden)
        found[f"blocks.{k}.down"] = torch.randn(width, hidden, generator=g) / hidden**0.5 / blocks
    return found


def batch(rank: int, step: int = 0, sequences: int = 4, positions: int = 8) -> tuple[Tensor, Tensor]:
    """Tokens, and the token after each: a walk through the vocabulary, another one on every rank and in every step."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    walk = (torch.randint(V, (sequences, 1), generator=g) + 3 * torch.arange(positions + 1)) % V
    return walk[:, :-1], walk[:, 1:]


# ---- on the virtual wire


def longer(ledgers: Sequence[Ledger], factor: float) -> list[Ledger]:
    """The same program with longer messages."""
    found = []
    for ledger in ledgers:
        data = ledger.to_json()
        for event in data["events"]:
            event["bytes"] = round(event["bytes"] * factor)
        found.append(Ledger.from_json(data))
    return found


def on_wire(job: Callable, N: int, wire: Topology, blocks: int) -> Replay:
    """The virtual wire's clock for `job(group)`, which trains `weights(blocks)`."""
    own = weights(blocks)
    factor = BLOCK / sum(own[f"blocks.0.{name}"].nbytes for name in ("up", "bias", "down"))
    return replay(longer(run_ranks(job, size=N, backend="threads", timeout=60.0).ledgers, factor), wire)


def step_of(wrap: Callable, blocks: int = 16) -> Callable:
    """A job: one step's forward and backward under `wrap(model, group)`."""
    own = weights(blocks)

    def job(group) -> None:
        model = Tiny(own, group)
        wrapped = wrap(model, group)
        with NoFreedMemory():  # ranks on threads: who reads freed memory would end the notebook's kernel
            model(*batch(group.rank)).backward()
            wrapped.finish()

    return job


def ddp_step(DataParallel: Callable, bucket_mib: float, blocks: int = 16) -> Callable:
    """A job: one step's forward and backward under data parallel, with buckets of so many MiB on the virtual wire."""
    own = weights(blocks)
    factor = BLOCK / sum(own[f"blocks.0.{name}"].nbytes for name in ("up", "bias", "down"))

    return step_of(lambda model, group: DataParallel(model, group, max(1, int(bucket_mib * MIB / factor))), blocks)


def fsdp_step(FSDP: Callable, prefetch: bool, blocks: int = 6) -> Callable:
    """A job: one step's forward and backward under FSDP."""
    return step_of(lambda model, group: FSDP(model, model.blocks, group, None, prefetch), blocks)


def waited(run: Replay) -> float:
    """Seconds of the step in which rank 0 did not compute: all that its messages cost it."""
    return run.time - sum(span.end - span.begin for span in run.spans if span.rank == 0)


def as_trace(run: Replay, rank: int = 0) -> dict[str, Any]:
    """One rank of a replay in the form that task 14.5 reads."""
    spans = [("kernel", s.label, s.begin, s.end) for s in run.spans if s.rank == rank]
    sent = [("kernel", f"ncclDevKernel_{t.kind}", t.begin, t.end) for t in run.transfers if rank in (t.src, t.dst)]
    return {
        "traceEvents": [
            {"ph": "X", "cat": cat, "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6}
            for cat, name, begin, end in [*spans, *sent]
        ]
    }


# ---- ranks whose graphs differ


class AsReady:
    """Data parallel that sends every gradient as soon as it is there: one message a parameter, in the order of this
    rank's backward."""

    def __init__(self, module: nn.Module, group) -> None:
        self.group, self.under_way = group, list[tuple[nn.Parameter, Any]]()
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.send)

    def send(self, p: nn.Parameter) -> None:
        assert p.grad is not None
        self.under_way.append((p, self.group.all_reduce(p.grad.clone(), op="mean", async_op=True)))

    def finish(self) -> None:
        for p, handle in self.under_way:
            p.grad = handle.wait()
        self.under_way.clear()


class Followed(NamedTuple):
    """losses of all ranks' mean, step by step; first: of the first step, gradients by name as each rank ended with."""

    losses: list[float]
    first: dict[str, Tensor]


def graphs_that_differ(make: Callable, uses: Sequence[Sequence[int]], steps: int = 40, lr: float = 0.2) -> Followed:
    """Plain descent on one rank for each of `uses`: the blocks that it runs, in this order. `make(model, group)` gives
    the data parallel. What one process would do with the whole batch: `one_process`."""
    own = weights(3)

    def job(group) -> tuple[list[float], dict[str, Tensor]]:
        model = Tiny(own, group)
        parallel, losses, first = make(model, group), [], {}
        for step in range(steps):
            loss = model(*batch(group.rank, step), uses[group.rank])
            loss.backward()
            parallel.finish()
            losses.append(loss.item())
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if step == 0 and p.grad is not None:
                        first[name] = p.grad.clone()
                    if p.grad is not None:
                        p.sub_(lr * p.grad)
                    p.grad = None
        return losses, first

    got = run_ranks(job, size=len(uses), backend="threads", timeout=60.0)
    return Followed([sum(each) / len(uses) for each in zip(*(losses for losses, _ in got))], got[0][1])


def one_process(uses: Sequence[Sequence[int]], steps: int = 40, lr: float = 0.2) -> Followed:
    own = weights(3)

    def job(group) -> Followed:
        model = Tiny(own, group)
        losses, first = [], {}
        for step in range(steps):
            parts = [model(*batch(r, step), use) for r, use in enumerate(uses)]
            loss = torch.stack(parts).mean()
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if p.grad is not None:
                        if step == 0:
                            first[name] = p.grad.clone()
                        p.sub_(lr * p.grad)
                    p.grad = None
        return Followed(losses, first)

    return run_ranks(job, size=1, backend="threads", timeout=60.0)[0]


def gradients_beside(right: Followed, *others: Followed) -> str:
    """How far each block's gradient of the first step is from the right one, as a table: a column for each of
    `others`."""
    lines = []
    for k in range(3):
        cells = []
        for other in others:
            name = f"blocks.{k}.up"
            cells.append((other.first[name] - right.first[name]).norm() / right.first[name].norm())
        lines.append(f"block {k}, gradient of the first step: " + "  ".join(f"{c:8.1%} off" for c in cells))
    return "\n".join(lines)


# ---- memory


class Sawtooth(NamedTuple):
    """bytes held after each operation of one step; marks: (place, label) of what the step was doing there; bytes of the
    weights of the whole model, and of one block."""

    samples: list[int]
    marks: list[tuple[int, str]]
    model: int
    block: int


class Casting(nn.Module):
    """A block of given/tiny.py that turns its weights to BF16 itself, in every forward."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.k, self.group = block.k, block.group
        self.up, self.bias, self.down = block.up, block.bias, block.down

    def forward(self, x_BTD: Tensor) -> Tensor:
        x = x_BTD.bfloat16()
        x = x + F.linear(F.relu(F.linear(x, self.up.bfloat16(), self.bias.bfloat16())), self.down.bfloat16())
        return Identity.apply(x.float(), lambda: None)


def sawtooth(wrap: Callable, blocks: int = 8, N: int = 2, casting: bool = False) -> Sawtooth:
    """One step's memory on rank 0 of N, by the meter. wrap(model, group) -> an object with `finish`. The blocks are
    large beside two short sequences: what is seen is weights and gradients."""
    own = weights(blocks, hidden=512, width=128)

    def job(group) -> Sawtooth:
        model = Tiny(own, group)
        if casting:
            model.blocks = nn.ModuleList(Casting(cast(Block, block)) for block in model.blocks)
        wrapped = wrap(model, group)
        tokens, targets = batch(group.rank, 0, 1, 4)
        held = []
        for _ in range(2):  # the first makes what stays: the gradients
            for p in getattr(wrapped, "shards", model.parameters)():
                p.grad = None
            meter = StorageMeter(without=own.values())
            for tensor in (*model.parameters(), *getattr(wrapped, "shards", list)()):
                meter.see(tensor.detach())
            with meter, NoFreedMemory():
                at = [(len(meter.samples), "forward")]
                loss = model(tokens, targets)
                at.append((len(meter.samples), "backward"))
                loss.backward()
                at.append((len(meter.samples), "finish"))
                wrapped.finish()
            whole, block = (sum(t.nbytes for n, t in own.items() if part in n) for part in ("", "blocks.0."))
            held.append(Sawtooth(meter.samples, at, whole, block))
        return held[-1]

    return run_ranks(job, size=N, backend="threads", timeout=60.0)[0]


# ---- clipping


class Summing:
    """A group whose mean is the sum: N times too large."""

    def __init__(self, group) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size

    def reduce_scatter(self, tensor: Tensor, op: str = "sum", **how: Any) -> Any:
        return self.group.reduce_scatter(tensor, op="sum", **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


class Trained(NamedTuple):
    """losses of the whole batch, and the norms that the optimizer returned, step by step."""

    losses: list[float]
    norms: list[float]


def trained(ShardedAdamW: Callable, summing: bool, max_norm: float | None, N: int = 4, steps: int = 60) -> Trained:
    """The small decoder under ZeRO-1. summing: the gradients of N ranks are summed, not averaged."""
    own = weights(3)

    def job(group) -> Trained:
        model = Tiny(own, group)
        optimizer = ShardedAdamW(list(model.parameters()), Summing(group) if summing else group, lr=3e-3)
        losses, norms = [], []
        for step in range(steps):
            loss = model(*batch(group.rank, step))
            loss.backward()
            norms.append(optimizer.step(max_norm=max_norm))
            for p in model.parameters():
                p.grad = None
            losses.append(group.all_reduce(loss.detach().clone(), op="mean").item())
        return Trained(losses, norms)

    return run_ranks(job, size=N, backend="threads", timeout=120.0)[0]


def as_text(runs: Mapping[str, Trained]) -> str:
    """Runs beside the first of them, as text."""
    first = next(iter(runs.values()))
    lines = [f"{'':18s} last loss   largest gap to {next(iter(runs))!r}'s loss   norm of step 0"]
    for name, run in runs.items():
        gap = max(abs(a - b) for a, b in zip(run.losses, first.losses))
        lines.append(f"{name:18s} {run.losses[-1]:9.1e}   {gap:28.1e}   {run.norms[0]:14.3f}")
    return "\n".join(lines)
