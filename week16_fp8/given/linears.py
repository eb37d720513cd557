"""One linear, forward and backward, in one precision: how long, and where the time goes.

The arms are backends of labkit.precision, at one shape, on random numbers: BF16 (on a CPU FP32), Transformer Engine's
and torchao's FP8, and the two of this week. Each is timed as labkit.crossover times: calls queued one behind the other,
the clock read at the ends, the median of five loops. On a GPU a second, untimed pass is taken apart by kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from labkit.crossover.grid import Shape
from labkit.crossover.linear import PROFILED, profiled, time_step
from labkit.errors import LabError, in_words
from labkit.precision.config import PrecisionSpec
from labkit.precision.registry import get_backend
from labkit.record.kernels import breakdown, device_kernels

# name -> (backend, recipe, label); "plain" is BF16 on a GPU and FP32 on a CPU.
ARMS: dict[str, tuple[str, str | None, str]] = {
    "plain": ("plain", None, "nn.Linear, nothing in FP8"),
    "te-delayed": ("te", "delayed", "TE FP8 delayed"),
    "te-current": ("te", "current", "TE FP8 current"),
    "te-block": ("te", "block", "TE FP8 block"),
    "week16": ("week16", None, "week 16, one scale a tensor"),
    "week16-emulated": ("emulated", "tensorwise", "week 16, emulated"),
    "week16-block": ("emulated", "block", "week 16, a scale a block"),
    "torchao": ("torchao", "tensorwise", "torchao FP8 tensorwise"),
}
ON_CPU = ("plain", "week16", "week16-block")
ROUNDS = 5  # on a CPU: the arms take turns, so that what else the machine does meets all of them


def ready(arm: str, shape: Shape, device: torch.device) -> Callable[[], torch.Tensor]:
    """One forward and backward of this arm at this shape, ready to run. LabError if it cannot run here."""
    name, recipe, _ = ARMS[arm]
    cuda = device.type == "cuda"
    backend = get_backend(("bf16" if cuda else "fp32") if name == "plain" else name)
    dtype = torch.bfloat16 if cuda else torch.float32
    torch.manual_seed(16)
    with torch.device(device):
        holder = nn.ModuleDict({"linear": nn.Linear(shape.K, shape.N, bias=False, dtype=dtype)})
        x = torch.randn(shape.M, shape.K, dtype=dtype, requires_grad=True)
        dy = torch.randn(shape.M, shape.N, dtype=dtype)
    backend.convert(holder, PrecisionSpec(recipe, device=device))
    linear: Any = holder["linear"]
    forward = linear
    if cuda and backend.compiles == "block" and name != "plain":
        torch._dynamo.reset()
        forward = torch.compile(linear, dynamic=False)

    def step() -> torch.Tensor:
        with backend.autocast():
            y = forward(x)
        y.backward(dy)
        x.grad = linear.weight.grad = None
        return y.detach()

    return step


def measure(
    shape: Shape,
    arms: Sequence[str],
    device: torch.device,
    budget: float = 0.1,
    report: Callable[[str], object] = lambda line: None,
) -> list[dict[str, Any]]:
    """A row for each arm: {"arm", "label", "shape", "seconds", "spread", "queue", "tflops", "error"}, on a GPU also
    "kernels"; or {"arm", "label", "shape", "why_not"}. error: |y - y_plain| / |y_plain|, of a few rows.
    report: hears of every step before it is taken."""
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Callable[[], torch.Tensor]] = {}
    exact: torch.Tensor | None = None
    for arm in arms:
        row: dict[str, Any] = {"arm": arm, "label": ARMS[arm][2], "shape": list(shape)}
        rows[arm] = row
        report(f"#   {shape} {arm}: ready?")
        try:
            step = ready(arm, shape, device)
            for _ in range(3):
                y = step()
            sample = y[:256].float()
            exact = sample if arm == "plain" else exact
            if exact is not None:
                row["error"] = float((sample - exact).norm() / exact.norm())
            steps[arm] = step
        except (LabError, torch.OutOfMemoryError) as refused:
            row["why_not"] = in_words(refused)
        except Exception as failed:  # one library's fault must not cost the others their rows
            row["why_not"] = in_words(failed)
    times: dict[str, list[tuple[float, float, float]]] = {arm: [] for arm in steps}
    for _ in range(1 if device.type == "cuda" else ROUNDS):
        for arm, step in steps.items():
            report(f"#   {shape} {arm}: timed")
            times[arm].append(time_step(step, device, budget))
    for arm, step in steps.items():
        seconds = median(one[0] for one in times[arm])
        spread = max(one[1] for one in times[arm])
        queue = median(one[2] for one in times[arm])
        rows[arm] |= {"seconds": seconds, "spread": spread, "queue": queue, "tflops": shape.flops / seconds / 1e12}
        if device.type == "cuda":
            report(f"#   {shape} {arm}: {seconds * 1e3:.3f} ms; its kernels")
            try:
                rows[arm]["kernels"] = kernels(step, device)
            except Exception as failed:
                rows[arm]["no_kernels"] = in_words(failed)
    return list(rows.values())


def kernels(step: Callable[[], Any], device: torch.device, repeats: int = PROFILED) -> dict[str, Any]:
    """labkit.record.kernels' breakdown of one step, as a dict: classes of kernels that add up to the span."""
    from torch.profiler import ProfilerActivity

    torch.cuda.synchronize(device)
    with profiled(ProfilerActivity.CUDA) as seen:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize(device)
    return vars(breakdown(device_kernels(seen), repeats))


def ratio(rows: Sequence[dict[str, Any]], arm: str, base: str = "plain") -> float | None:
    """How many times the baseline's seconds this arm takes, at one shape."""
    found = {row["arm"]: row.get("seconds") for row in rows}
    mine, other = found.get(arm), found.get(base)
    return mine / other if mine and other else None
