"""What the notebook runs: small trainings on ranks that are threads of this kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from capstone import assemble, fp8, survive
from capstone.given.alone import alone, drawn, far, own, setup
from capstone.scenarios import setup_of, whole
from labkit.comm.ranks import run_ranks

TP = dict(tp=2, pp=1)


@contextmanager
def put(where: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the `with`, `where.name` is this."""
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def first_gradient(group: Any, values: dict[str, Any], batch: Tensor) -> dict[str, Tensor]:
    """This rank's slices of the first step's gradient."""
    trainer = assemble.assemble(setup_of(values), group)
    found: dict[str, Tensor] = {}

    def look(_: Any) -> bool:
        found.update(whole(trainer, lambda unit: unit.shard.grad))
        return False

    trainer.step(assemble.data_of(trainer, batch), 0.0, look)
    return found


def scales_of_ones_own() -> tuple[float, float, float]:
    """(how far FP8's gradient is from FP32's on one GPU; how far two tensor-parallel ranks' is from that one, with
    agreed amaxes; with each rank's own), relative to FP32's norm. The medians of five models."""
    rows = [_one_model(seed) for seed in range(5)]
    usual, agreed, by_themselves = torch.tensor(rows).median(0).values.tolist()
    return usual, agreed, by_themselves


def _one_model(seed: int) -> tuple[float, float, float]:
    c, weights, batches, options = drawn(seed, "notebook")
    plain, one = (alone(c, weights, batches[:1], options, fp8=word)["gradients"] for word in (False, True))
    values = setup(c, TP, options, weights, precision="fp8")

    def off() -> float:
        got = run_ranks(first_gradient, values, batches[0], size=2, backend="threads", timeout=120.0)
        pairs = [(mine[name], own(name, one[name], c, 2, r)) for r, mine in enumerate(got) for name in mine]
        return far(*(torch.cat([pair[k].reshape(-1) for pair in pairs]) for k in (0, 1)))

    agreed = off()
    with put(fp8, "agreed", lambda amaxes, group: amaxes):
        by_itself = off()
    flat = [torch.cat([g[name].reshape(-1) for name in plain]) for g in (one, plain)]
    return far(*flat), agreed, by_itself


def timed_steps(group: Any, values: dict[str, Any], batches: list[Tensor], late: float) -> tuple[float, float]:
    """This rank's median seconds of a step, and of these its own, when rank 1 reads each batch `late` seconds late."""
    trainer, rows = assemble.assemble(setup_of(values), group), []
    for batch in batches:
        begin = group.ledger.now()
        time.sleep(late if group.rank == 1 else 0.0)
        trainer.step(assemble.data_of(trainer, batch), 0.0)
        end = group.ledger.now()
        rows.append((end - begin, survive.own_seconds(group.ledger, begin, end)))
    steps, own = torch.tensor(rows[1:]).median(0).values.tolist()  # the first waits for threads to start
    return steps, own


def one_slow_rank() -> tuple[list[float], list[float]]:
    """Seconds of a step, by rank, and a rank's own seconds, when rank 1 reads 60 ms late."""
    c, weights, batches, options = drawn(1, "slow")
    values = setup(c, dict(dp=2), options, weights)
    both = run_ranks(timed_steps, values, batches * 4, 0.06, size=2, backend="threads", timeout=120.0)
    return [one[0] for one in both], [one[1] for one in both]
