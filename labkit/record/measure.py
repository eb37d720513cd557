"""Measuring without fooling oneself: time, throughput, memory, and what fraction of the machine that is.

Time. A GPU call returns before the GPU is done; a clock read then measures the launch. `Stopwatch` records CUDA events,
which the GPU stamps when it gets there, and waits for them before it tells a number. On the CPU it reads the clock.

Throughput. The first steps compile, allocate and tune; they are left out by count, never by looking for slow ones. The
median step tells the usual speed, and one hiccup of the machine does not move it; the mean rate tells what an hour
costs. Both are given. A large difference between them means that something stalls now and then.

Memory. On the CPU: the resident set of this process and all its children, from /proc. Shared pages count once for each
process that has them, so that a tree's sum is an upper bound. On CUDA: what tensors take (allocated) and what the
allocator holds for them (reserved); a GPU is full when the second reaches its size.

MFU. Model FLOP/s over the hardware's dense peak. It depends on two conventions, so both are named beside the number:
whether attention's FLOPs are counted in full or only for the causal half, and whose peak (bf16 or fp8) divides.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


class Stopwatch:
    """Times the steps of a loop on the device that does the work.

        watch = Stopwatch("cuda:0")
        watch.start()
        for batch in batches:
            step(batch)
            seconds = watch.lap()        # since start or the last lap; waits for the GPU

    `lap(wait=False)` does not wait and returns None: for measuring many short steps without a stop in each; read
    `laps()` at the end. `pause`/`start` leave out what is no step (an evaluation, a checkpoint).
    """

    def __init__(self, device: Any = "cpu"):
        self._cuda = str(device).startswith("cuda")
        self._device = device
        self._open: Any = None
        self._done: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """Begin to measure here."""
        self._open = self._mark()

    def pause(self) -> None:
        """Stop measuring until the next `start`; what was open is dropped."""
        self._open = None

    def lap(self, wait: bool = True) -> float | None:
        """Seconds since `start` or the previous `lap`; the next lap begins here."""
        if self._open is None:
            raise RuntimeError("Stopwatch.lap() before start()")
        mark = self._mark()
        self._done.append((self._open, mark))
        self._open = mark
        return self._seconds(*self._done[-1]) if wait else None

    def laps(self) -> list[float]:
        """All laps in seconds, in order; waits for the GPU once."""
        return [self._seconds(begin, end) for begin, end in self._done]

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        if not self._cuda:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3  # CUDA tells milliseconds


@dataclass(frozen=True)
class Throughput:
    """`tokens_per_s` is from the median step, `mean_tokens_per_s` all counted tokens over all counted seconds.
    `step_p10`, `step_p50`, `step_p90`: percentiles of the seconds of one step. None where nothing was left to count."""

    tokens_per_s: float | None
    mean_tokens_per_s: float | None
    step_p10: float | None
    step_p50: float | None
    step_p90: float | None
    steps: int
    warmup: int


def throughput(seconds: Sequence[float], tokens: float | Sequence[float], warmup: int = 0) -> Throughput:
    """From the seconds of each step and its tokens (one number for all steps, or one for each). The first `warmup`
    steps are left out; steps without a finite positive time are too."""
    each = list(tokens) if isinstance(tokens, Sequence) else [tokens] * len(seconds)
    if len(each) != len(seconds):
        raise ValueError(f"{len(seconds)} steps but tokens for {len(each)}")
    counted = [(s, t) for s, t in list(zip(seconds, each))[warmup:] if s is not None and math.isfinite(s) and s > 0]
    if not counted:
        return Throughput(None, None, None, None, None, 0, warmup)
    times = [s for s, _ in counted]
    rate = statistics.median(t / s for s, t in counted)
    return Throughput(
        rate,
        sum(t for _, t in counted) / sum(times),
        percentile(times, 10),
        percentile(times, 50),
        percentile(times, 90),
        len(counted),
        warmup,
    )


def throughput_of(steps: Iterable[dict], warmup: int = 2) -> Throughput:
    """The same from the step lines of a run: `seconds` of each step, and `tokens`, which is cumulative."""
    seconds, tokens, before = [], [], 0
    for line in steps:
        so_far = line.get("tokens")
        if isinstance(so_far, (int, float)):
            # After a gap in the record the difference spans several steps; then this step's own rate is taken.
            own = line.get("tokens_per_s", math.nan) * line.get("seconds", math.nan)
            delta = so_far - before
            seconds.append(line.get("seconds", math.nan))
            tokens.append(own if math.isfinite(own) else delta)
            before = so_far
    return throughput(seconds, tokens, warmup)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks; `values` need not be sorted and must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# ---- memory


def rss_bytes(pid: int | None = None) -> int | None:
    """Resident bytes of one process now; None if it is gone or the system does not tell (only Linux does)."""
    return _status_bytes(pid, "VmRSS")


def peak_rss_bytes() -> int:
    """The most resident bytes this process ever had. Linux and macOS."""
    peak = _status_bytes(None, "VmHWM")
    if peak is not None:
        return peak
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # bytes on macOS, KiB elsewhere


def tree_rss_bytes(pid: int | None = None) -> int:
    """Resident bytes of a process and all its descendants now, added up. 0 where /proc does not exist."""
    root = pid or os.getpid()
    return sum(rss_bytes(p) or 0 for p in _tree(root))


class PeakMemory:
    """The most that a process tree held while the block ran, sampled `every` seconds; a shorter peak can be missed.

    with PeakMemory() as memory:
        run_ranks(...)
    memory.peak_bytes
    """

    def __init__(self, pid: int | None = None, every: float = 0.1):
        self.pid, self.every, self.peak_bytes = pid or os.getpid(), every, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self._sample()

    def _sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, tree_rss_bytes(self.pid))


def memory(device: Any = "cpu") -> dict[str, int]:
    """This rank's peak for a step line: {"peak_bytes"} on the CPU; on CUDA {"peak_bytes", "reserved_bytes"}, where
    peak_bytes is the most that tensors took since the last reset."""
    if str(device).startswith("cuda"):
        import torch

        return {
            "peak_bytes": torch.cuda.max_memory_allocated(device),
            "reserved_bytes": torch.cuda.max_memory_reserved(device),
        }
    return {"peak_bytes": peak_rss_bytes()}


def reset_peak(device: Any = "cpu") -> None:
    """Forget CUDA's peaks (after warm-up). The CPU's peak belongs to the process and cannot be reset."""
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


# ---- how much of the machine that is


@dataclass(frozen=True)
class Efficiency:
    """What `tokens_per_s` means in FLOP/s per GPU under each FLOP convention, and as a fraction of each known peak.
    `mfu` maps (convention, peak) to a fraction, for example ("causal", "bf16"): 0.41; empty when the peak is
    unknown."""

    flops_per_s: dict[str, float]
    mfu: dict[tuple[str, str], float]
    gpu: str | None
    note: str

    def to_json(self) -> dict:
        return {**asdict(self), "mfu": {f"{c} FLOPs / {p} peak": v for (c, p), v in self.mfu.items()}}


def efficiency(tokens_per_s: float, flops_per_token: dict[str, float], gpu: str | None, gpus: int = 1) -> Efficiency:
    """`flops_per_token` by convention ({"causal": ..., "full": ...}, forward and backward), `tokens_per_s` over all
    `gpus`, `gpu` the name that torch gives. An unknown GPU or a CPU gets no MFU, and the note says so."""
    rate = {name: tokens_per_s * flops / gpus for name, flops in flops_per_token.items()}
    if not gpu:
        return Efficiency(rate, {}, None, "no GPU: MFU not given")
    from labkit.record import hardware

    told = {(name, kind): hardware.mfu(flops, gpu, kind) for name, flops in rate.items() for kind in ("bf16", "fp8")}
    known = {key: share for key, share in told.items() if share.value is not None}
    peaks = {kind: share.peak for (_, kind), share in known.items()}
    note = (
        f"dense peaks of {gpu}: " + ", ".join(f"{kind} {peak / 1e12:,.0f} TFLOP/s" for kind, peak in peaks.items())
        if known
        else next(iter(told.values())).text
        if told
        else "FLOPs per token unknown, MFU not given"
    )
    return Efficiency(rate, {key: share.value for key, share in known.items()}, gpu, note)


# ---- /proc


def _status_bytes(pid: int | None, field: str) -> int | None:
    try:
        with open(f"/proc/{pid or 'self'}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _tree(root: int) -> list[int]:
    """`root` and its descendants. Parents come from /proc/<pid>/stat; its second field may hold spaces and brackets."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it ended between the listing and the reading
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found
