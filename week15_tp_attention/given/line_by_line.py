"""Your block beside DTensor's `parallelize_module`, message by message: both run, on ranks in processes, and the ledger
reports what each of them sends (given).

    print(line_by_line.table())

The contenders are the bench's own (given/blocks.py, given/peers.py), and a third one: the same plan without its two
lines `PrepareModuleInput`, as many a tutorial writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from labkit.comm.ledger import EMPTY
from labkit.comm.ranks import run_ranks
from week15_tp_attention.given import blocks, peers
from week15_tp_attention.given.experiments import ring_bytes

SHAPE = blocks.Shape(B=1, T=32, D=64, F=224, n_heads=8, n_kv_heads=4)


class Library(peers.WithDTensor):
    """parallelize_module, its messages in the ledger."""

    ledger = True


class LibrarySequence(peers.WithDTensorSequence):
    """Likewise, with norms and residuals cut along the positions."""

    ledger = True


class Unprepared(Library):
    """The plan without PrepareModuleInput: each column-parallel linear takes a whole x by itself."""

    def plan(self) -> dict[str, Any]:
        return {name: style for name, style in super().plan().items() if name not in ("attn", "ffn")}


CONTENDERS: dict[str, Any] = {
    "yours, plain": blocks.Plain,
    "parallelize_module": Library,
    "... without PrepareModuleInput": Unprepared,
    "yours, sequence": blocks.SequenceParallel,
    "parallelize_module, sequence": LibrarySequence,
}


class Sent(NamedTuple):
    """What one rank sends in a phase: how many of each kind, and their ring bytes."""

    calls: Counter[str]
    ring_bytes: float


class Ran(NamedTuple):
    """One contender: what rank 0 sends, by phase, "forward" and "backward"; y, and the gradient of x, joined over the
    ranks where they are cut."""

    sent: dict[str, Sent]
    y: torch.Tensor
    dx: torch.Tensor


def ran(contender: str, N: int = 2) -> Ran:
    """One forward and one backward of a block on N ranks in processes, in float32."""
    results = run_ranks(block_once, contender, size=N, backend="processes", timeout=60.0)
    found: dict[str, Sent] = {}
    phase, names = -1, ("forward", "backward")
    for event in results.ledgers[0].events:
        if event.kind == "barrier":
            phase += 1
        elif 0 <= phase < len(names) and event.bytes and event.kind not in (*EMPTY, "wait"):
            sent = found.setdefault(names[phase], Sent(Counter(), 0.0))
            sent.calls[event.kind] += 1
            found[names[phase]] = Sent(sent.calls, sent.ring_bytes + ring_bytes(event.kind, event.bytes, N))
    if CONTENDERS[contender].cut_along_T:
        return Ran(found, torch.cat([y for y, _ in results], 1), torch.cat([dx for _, dx in results], 1))
    return Ran(found, *results[0])


def block_once(group: Any, contender: str) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's y and gradient of x. Barriers mark the phases."""
    kind = CONTENDERS[contender]
    whole = blocks.whole_weights(SHAPE, group.device, torch.float32)
    weights = whole if issubclass(kind, peers.WHOLE) else blocks.own_weights(whole, SHAPE, group)
    block = kind(weights, group, SHAPE, blocks.parts(compiled=False))
    drawn = torch.Generator().manual_seed(5)
    x, dy = (torch.randn(SHAPE.B, SHAPE.T, SHAPE.D, generator=drawn) for _ in range(2))
    if kind.cut_along_T:
        x, dy = (t.chunk(group.size, 1)[group.rank].contiguous() for t in (x, dy))
    x.requires_grad_()
    group.barrier()
    y = block(x)
    group.barrier()
    y.backward(dy)
    group.barrier()
    assert x.grad is not None
    return y.detach(), x.grad


def table(N: int = 2, found: Mapping[str, Ran] | None = None) -> str:
    """Who sends what in one block, as text. found: what has run already, by contender."""
    lines = [f"{f'one block, {N} ranks':32s} {'':9s} {'calls':44s} ring bytes"]
    for name in CONTENDERS:
        for phase, sent in (found[name] if found is not None else ran(name, N)).sent.items():
            calls = ", ".join(f"{times} {kind}" for kind, times in sorted(sent.calls.items()))
            lines.append(f"{name if phase == 'forward' else '':32s} {phase:9s} {calls:44s} {sent.ring_bytes:10,.0f}")
    return "\n".join(lines)
