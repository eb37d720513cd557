"""One linear, forward and backward, in one precision: how long, where the time goes, and whether it really rounded."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from labkit.crossover.grid import ARMS, BASE, Cell, Shape
from labkit.errors import LabError, in_words
from labkit.precision.config import PrecisionSpec
from labkit.precision.recipes import find_recipe
from labkit.precision.registry import get_backend
from labkit.record.kernels import classify, device_kernels

DECIDES = 0.9  # queueing takes this share of the step or more: the CPU sets the pace
LOOPS = 5  # timed loops; their median counts
PROFILED = 3  # steps in the profiler's pass
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_mm"}  # a CPU's products by operator
SPIN = "spin_kernel"  # torch.cuda._sleep: parts one arm's kernels from the next one's


class Step:
    """One arm at one shape, ready to run. LabError if this machine or these sizes do not allow it."""

    def __init__(self, arm: str, shape: Shape, device: torch.device, compiled: bool = True):
        name, recipe, label = ARMS[arm]
        self.arm, self.shape, self.device = arm, shape, device
        self.backend = get_backend(name)
        need = find_recipe(name, recipe)[1].multiple
        if shape.M % need:
            raise LabError(f"{label} needs a multiple of {need} tokens")
        torch.manual_seed(hash((shape, 13)) % 2**31)
        with torch.device(device):  # drawn where they will live: a GPU draws 16384 x 16384 in a moment
            plain = nn.Linear(shape.K, shape.N, bias=False, dtype=torch.bfloat16)
            self.x = torch.randn(shape.M, shape.K, dtype=torch.bfloat16, requires_grad=True)
            self.dy = torch.randn(shape.M, shape.N, dtype=torch.bfloat16)
        self.exact, holder = plain.weight.detach(), nn.ModuleDict({"linear": plain})
        self.backend.convert(holder, PrecisionSpec(recipe, device=device))
        self.linear: Any = holder["linear"]
        self.forward: Callable = self.linear
        if compiled and device.type == "cuda" and self.backend.compiles == "block" and arm != BASE:
            torch._dynamo.reset()  # every shape its own code: none is generated for "any size"
            self.forward = torch.compile(self.linear, dynamic=False)

    def __call__(self) -> torch.Tensor:
        """Run forward and backward; drop the gradients, as an optimizer would."""
        with self.backend.autocast():
            y = self.forward(self.x)
        y.backward(self.dy)
        self.x.grad = self.linear.weight.grad = None
        return y

    def error(self) -> float:
        """Return |y - x w^T| / |x w^T| of the first rows against float32: near 0.002 for BF16, 0.02 to 0.05 for FP8."""
        y = self().detach()[:256].float()
        exact = self.x.detach()[:256].float() @ self.exact.float().t()
        value = float((y - exact).norm() / exact.norm())
        if not math.isfinite(value):
            raise LabError("its output is not finite")
        return value


def measure(
    shape: Shape, arms: Iterable[str], device: torch.device, budget: float = 0.1, compiled: bool = True
) -> list[Cell]:
    """A cell for each arm; of one that cannot run here, why. budget: seconds for one arm's timed loops."""
    ready: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}
    for arm in arms:
        try:
            step = Step(arm, shape, device, compiled)
            for _ in range(3):
                step()
            error = step.error()
            seconds, spread, queue = time_step(step, device, budget)
            ready[arm], found[arm] = step, {"seconds": seconds, "spread": spread, "queue": queue, "error": error}
        except Exception as error:  # one arm's library must not cost the others their cells
            found[arm] = {"why_not": str(error) if isinstance(error, LabError) else in_words(error)}
    for arm, parts, fp8 in take_apart(list(ready.values()), device):
        found[arm] |= {"parts": with_launch(parts, found[arm]["seconds"], found[arm]["queue"]), "fp8_kernels": fp8}
    return [Cell(*shape, arm, **found[arm]) for arm in found]


def with_launch(parts: dict[str, float], seconds: float, queue: float) -> dict[str, float]:
    """Return the parts with "launch", so that they add up to `seconds`."""
    busy = sum(parts.values())
    # The step waits for the CPU only where queueing takes as long as the step: then what no kernel fills is "launch".
    if queue >= DECIDES * seconds and busy < seconds:
        return {**parts, "launch": seconds - busy}
    # Where the CPU is ahead there is no waiting, and parts that add up to another time only show that the GPU's clock
    # moved between the two passes (on a CPU, that the profiler costs time): scale to the time without a profiler.
    return {**{part: value * seconds / max(busy, 1e-12) for part, value in parts.items()}, "launch": 0.0}


def time_step(step: Callable, device: torch.device, budget: float) -> tuple[float, float, float]:
    """(median seconds of a step, (largest - smallest) / median, median seconds that the CPU needs to queue one)."""
    once, _ = _loop(step, 1, device)
    # No more than a GPU's queue holds: beyond, queueing would wait for the GPU.
    count = max(1, min(30 if device.type == "cuda" else 200, round(budget / LOOPS / max(once, 1e-6))))
    loops = [_loop(step, count, device) for _ in range(LOOPS)]
    times = [seconds / count for seconds, _ in loops]
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle, statistics.median(queue for _, queue in loops) / count


def _loop(step: Callable, count: int, device: torch.device) -> tuple[float, float]:
    """Return (seconds of `count` steps in a row, seconds that the CPU needed to queue them)."""
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return (seconds := time.perf_counter() - begin), seconds
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    first.record()
    for _ in range(count):
        step()
    last.record()
    queued = time.perf_counter() - begin
    last.synchronize()
    return first.elapsed_time(last) / 1e3, queued


def take_apart(steps: list[Step], device: torch.device) -> Iterable[tuple[str, dict[str, float], bool | None]]:
    """Yield (arm, {"product", "quantise"} in seconds a step, whether FP8 products ran) for each, in order."""
    from torch.profiler import ProfilerActivity

    if not steps:
        return
    if device.type != "cuda":
        for step in steps:
            with profiled(ProfilerActivity.CPU) as seen:
                for _ in range(PROFILED):
                    step()
            rows = [(row.key in PRODUCTS, row.self_cpu_time_total / 1e6 / PROFILED) for row in seen.key_averages()]
            yield step.arm, _parts(rows), None
        return
    with profiled(ProfilerActivity.CUDA) as seen:
        for step in steps:
            for _ in range(PROFILED):
                step()
            torch.cuda._sleep(1000)
        torch.cuda.synchronize(device)
    yield from zip([step.arm for step in steps], *zip(*split_kernels(device_kernels(seen), len(steps), PROFILED)))


@contextmanager
def profiled(activity: Any) -> Iterator[Any]:
    """Profile the block, without the lines that the profiler's library writes to stderr when it starts and stops."""
    from torch.profiler import profile

    seen = profile(activities=[activity])
    with _quiet():
        seen.start()
    try:
        yield seen
    finally:
        with _quiet():
            seen.stop()


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing reach file descriptor 2, not from C++ either."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def split_kernels(kernels: list, arms: int, repeats: int) -> list[tuple[dict[str, float], bool]]:
    """({"product", "quantise"} in seconds a step, FP8 products or not) for each arm. LabError: no marks between arms."""
    groups: list[list[tuple[str, float]]] = [[]]
    for kernel in sorted(kernels, key=lambda k: k.begin):
        if SPIN in kernel.name:
            groups.append([])
        else:
            groups[-1].append((classify(kernel.name), (kernel.end - kernel.begin) / 1e6 / repeats))
    if len(groups) != arms + 1 or groups[-1]:
        raise LabError(f"the profiler saw {len(groups) - 1} of {arms} marks between the arms: measure again")
    return [
        (_parts([(kind.startswith("GEMM"), seconds) for kind, seconds in group]), "GEMM fp8" in dict(group))
        for group in groups[:-1]
    ]


def _parts(times: list[tuple[bool, float]]) -> dict[str, float]:
    """Sum (is it a product?, seconds) of each kernel: the seconds of products, and of the rest."""
    kinds = {"product": True, "quantise": False}
    return {part: sum(seconds for product, seconds in times if product is kind) for part, kind in kinds.items()}
