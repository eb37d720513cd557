"""The bench's clock: a step as a training loop runs it, and what it keeps for backward.

Steps are queued one behind the other and the clock is read at the ends, on the GPU by events. All ranks start a loop
together; a loop's time is that of the slowest rank; of several loops the median counts. Random numbers, never zeros.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

LOOPS = 5


def seconds_a_step(step: Callable[[], Any], group: Any, budget: float) -> tuple[float, float]:
    """(median seconds of one step, (largest - smallest) / median) over LOOPS loops of about `budget` seconds in all."""
    for _ in range(3):
        step()
    once = _slowest(_loop(step, 2, group), group) / 2
    count = max(1, min(50, round(budget / LOOPS / max(once, 1e-6))))
    times = [_slowest(_loop(step, count, group), group) / count for _ in range(LOOPS)]
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle


def _loop(step: Callable[[], Any], count: int, group: Any) -> float:
    group.barrier()
    if group.device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return time.perf_counter() - begin
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        step()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _slowest(seconds: float, group: Any) -> float:
    return float(group.all_reduce(torch.tensor([seconds], device=group.device), "max"))


def kept_bytes(forward: Callable[[], torch.Tensor], owned: list[torch.Tensor]) -> int:
    """How many bytes a forward keeps for backward, weights (`owned`) not counted; each memory once."""
    from torch.distributed.tensor import DTensor

    def memory_of(t: torch.Tensor) -> torch.UntypedStorage:
        return (t.to_local() if isinstance(t, DTensor) else t).untyped_storage()

    mine = {memory_of(t).data_ptr() for t in owned}
    kept: dict[int, int] = {}

    def keeping(t: torch.Tensor) -> torch.Tensor:
        memory = memory_of(t)
        if memory.data_ptr() not in mine:
            kept[memory.data_ptr()] = memory.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keeping, lambda t: t):
        y = forward()
    total = sum(kept.values())
    del y
    return total


def parts_of_a_step(step: Callable[[], Any], device: torch.device, steps: int = 3) -> dict[str, Any] | None:
    """Where a step's milliseconds go on this GPU (labkit.record.kernels); None on a CPU."""
    if device.type != "cuda":
        return None
    from dataclasses import asdict

    from torch.profiler import ProfilerActivity, profile

    from labkit.record.kernels import breakdown, device_kernels

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return asdict(breakdown(device_kernels(seen), steps=steps, top=12))
