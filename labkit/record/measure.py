"""Time, throughput, memory, and what fraction of the machine that is."""

import math
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.record.chips import find_gpu


class Stopwatch:
    """Times steps on the device that does the work: `start()`, then `lap()` after each step, which waits for the GPU."""

    def __init__(self, device: Any = "cpu"):
        self._cuda, self._device = str(device).startswith("cuda"), device
        self._begin: Any = None

    def start(self) -> None:
        self._begin = self._mark()

    def lap(self) -> float:
        """Seconds since `start` or the previous `lap`; the next lap begins here."""
        if self._begin is None:
            raise RuntimeError("Stopwatch.lap() before start()")
        begin, self._begin = self._begin, self._mark()
        if not self._cuda:
            return self._begin - begin
        self._begin.synchronize()
        return begin.elapsed_time(self._begin) / 1e3  # CUDA has milliseconds

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def launch_us(device: Any, launches: int = 200, rounds: int = 7) -> float | None:
    """Microseconds that this host takes to launch a small kernel, without waiting for it; None on a CPU. The median of
    some rounds, each shorter than the GPU's queue; the first loads the kernel."""
    if not str(device).startswith("cuda"):
        return None
    import torch

    x, found = torch.zeros(1, device=device), []
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(launches):
            x.add_(1)
        found.append(1e6 * (time.perf_counter() - begin) / launches)
    return statistics.median(found)


@dataclass(frozen=True)
class Throughput:
    """`tokens_per_s` of the median step, `mean_tokens_per_s` over all; percentiles of a step's seconds. None: no steps."""

    tokens_per_s: float | None
    mean_tokens_per_s: float | None
    step_p10: float | None
    step_p50: float | None
    step_p90: float | None
    steps: int
    warmup: int


def throughput(seconds: Sequence[float], tokens: float | Sequence[float], warmup: int = 0) -> Throughput:
    """From each step's seconds and tokens (one number, or one each), without `warmup` steps and those without a time."""
    each = list(tokens) if isinstance(tokens, Sequence) else [tokens] * len(seconds)
    if len(each) != len(seconds):
        raise ValueError(f"{len(seconds)} steps but tokens for {len(each)}")
    counted = [(s, t) for s, t in list(zip(seconds, each))[warmup:] if s is not None and math.isfinite(s) and s > 0]
    if not counted:
        return Throughput(None, None, None, None, None, 0, warmup)
    times = [s for s, _ in counted]
    rate = statistics.median(t / s for s, t in counted)
    mean = sum(t for _, t in counted) / sum(times)
    p10, p50, p90 = (percentile(times, percent) for percent in (10, 50, 90))
    return Throughput(rate, mean, p10, p50, p90, len(counted), warmup)


def throughput_of(steps: Iterable[dict], warmup: int = 2) -> Throughput:
    """The same from the step lines of a run, each with its seconds and its own rate."""
    timed = [line for line in steps if "seconds" in line and "tokens_per_s" in line]
    tokens = [line["seconds"] * line["tokens_per_s"] for line in timed]
    return throughput([line["seconds"] for line in timed], tokens, warmup)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks; `values` need not be sorted and must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_error(values: Sequence[float], z: float = 1.96) -> float | None:
    """Half of the 95 % interval of the median, as a share of it; None for fewer than eight values.

    By order statistics, so whatever the distribution (Le Boudec 2010, Performance Evaluation, chapter 2).
    """
    ordered, n = sorted(values), len(values)
    low, high = math.floor((n - z * math.sqrt(n)) / 2) - 1, math.ceil((n + z * math.sqrt(n)) / 2)
    if low < 0 or high >= n:
        return None
    return (ordered[high] - ordered[low]) / 2 / statistics.median(ordered)


# ---- memory


def peak_rss_bytes() -> int:
    """The most resident bytes this process ever had. Linux and macOS."""
    with suppress(OSError, ValueError):  # on Linux: VmHWM, which exec resets, and getrusage's it does not
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s*(\d+)", status, re.M):
            return int(found[1]) * 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # bytes on macOS, KiB elsewhere


def memory(device: Any = "cpu") -> dict[str, int]:
    """This rank's peak since the last reset: {"peak_bytes"}, on CUDA also {"reserved_bytes"}."""
    if str(device).startswith("cuda"):
        import torch

        return {
            "peak_bytes": torch.cuda.max_memory_allocated(device),
            "reserved_bytes": torch.cuda.max_memory_reserved(device),
        }
    return {"peak_bytes": peak_rss_bytes()}


def device_used_bytes(device: Any = "cpu") -> int | None:
    """Bytes of this GPU that are in use, by any process, as the driver counts them. None on a CPU."""
    # More than torch allocated: the allocator's reserve, CUDA's context, NCCL's and cuDNN's buffers. This runs out first.
    if not str(device).startswith("cuda"):
        return None
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def needed(device: Any) -> dict[str, int]:
    """Bytes of this CUDA device in use: "need" at the peak since the last reset, "rest" now, between two steps."""
    # The allocator's reserve is left out: it can be given back. What the driver holds outside the allocator stays.
    import torch

    outside = (device_used_bytes(device) or 0) - torch.cuda.memory_reserved(device)
    most, now = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return {"need": most + outside, "rest": now + outside}


def shortages(device: Any = "cpu") -> int:
    """How often the GPU was full and the allocator had to free its cache, for which the GPU waits."""
    if not str(device).startswith("cuda"):
        return 0
    import torch

    return torch.cuda.memory_stats(device)["num_alloc_retries"]


def reset_peak(device: Any = "cpu") -> None:
    """Forget CUDA's peaks (after warm-up). The CPU's peak belongs to the process and cannot be reset."""
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


# ---- how much of the machine that is


@dataclass(frozen=True)
class Efficiency:
    """FLOP/s per GPU under each FLOP convention; `mfu` by convention and peak, empty where the peak is unknown."""

    flops_per_s: dict[str, float]
    mfu: dict[str, float]
    gpu: str | None
    note: str


def efficiency(tokens_per_s: float, flops_per_token: dict[str, float], gpu: str | None, gpus: int = 1) -> Efficiency:
    """Of `tokens_per_s` over all `gpus`; flops_per_token: by convention, forward and backward; gpu: torch's name of it."""
    rate = {name: tokens_per_s * flops / gpus for name, flops in flops_per_token.items()}
    if not gpu:
        return Efficiency(rate, {}, None, "no GPU: MFU not given")
    if not rate:
        return Efficiency(rate, {}, gpu, "FLOPs per token unknown, MFU not given")
    chip = find_gpu(gpu)
    if chip is None:
        return Efficiency(rate, {}, gpu, f"peak unknown for {gpu!r}, MFU not given")
    peaks = {"bf16": chip.tflops * 1e12} | ({"fp8": chip.fp8_tflops * 1e12} if chip.fp8_tflops else {})
    shares = {
        f"{name} FLOPs / {kind} peak": flops / peak for name, flops in rate.items() for kind, peak in peaks.items()
    }
    known = ", ".join(f"{kind} {peak / 1e12:,.0f} TFLOP/s" for kind, peak in peaks.items())
    return Efficiency(rate, shares, gpu, f"dense peaks of {gpu}: {known}")
