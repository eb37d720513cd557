"""Measuring steps: windows of equal length in turn, one step's trace, and what a token leaves in a block.

Two programs that are to be compared run in turn, window by window, in one process: a clock that falls as the chip grows
warm, or a neighbour on the machine, then meets both. Each window has the same number of steps.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.model.config import ModelConfig
from labkit.model.decoder import rotary_tables
from week14_fsdp.given.contenders import fresh_model
from week14_fsdp.given.meter import StorageMeter

Step = Callable[[], Any]


def settle(group) -> None:
    """All ranks here, and nothing under way on this one's GPU: the barrier itself is over too."""
    group.barrier()
    if group.device.type == "cuda":
        torch.cuda.synchronize()


def repeat(step: Step, times: int) -> None:
    for _ in range(times):
        step()


def windows(group, steps: Mapping[str, Step], count: int, each: int, warmup: int = 3) -> dict[str, list[float]]:
    """Seconds of a step, for each of `count` windows of `each` steps, by name; the programs take turns. The slowest
    rank's: a step is over when all have made it."""
    for step in steps.values():
        repeat(step, warmup)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            settle(group)
            begin = time.perf_counter()
            repeat(step, each)
            if group.device.type == "cuda":
                torch.cuda.synchronize()
            own = torch.tensor([(time.perf_counter() - begin) / each], device=group.device)
            seconds[name].append(group.all_reduce(own, op="max").item())
    return seconds


def of_windows(seconds: list[float], tokens: int) -> dict[str, Any]:
    """For a record: tokens a second and rank in the median window, and all windows. tokens: of a rank's step."""
    return {"tokens_per_s": tokens / median(seconds), "step_seconds": seconds, "tokens": tokens}


class Clocks:
    """What nvidia-smi says of a GPU, five times a second: SM clock (MHz) and power (W). Nothing without nvidia-smi."""

    def __init__(self, index: int) -> None:
        command = ["nvidia-smi", f"--id={index}", "--query-gpu=clocks.sm,power.draw", "-lms", "200"]
        self.process: subprocess.Popen | None = None
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115  stop() closes it
        with suppress(OSError):
            self.process = subprocess.Popen([*command, "--format=csv,noheader,nounits"], stdout=self.file)

    def stop(self) -> dict[str, float] | None:
        """The medians, or None."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        self.file.seek(0)
        rows = [line.split(",") for line in self.file.read().splitlines()]
        self.file.close()
        found = []
        for row in rows:
            with suppress(ValueError):
                found.append([float(cell) for cell in row])
        whole = [row for row in found if len(row) == 2]
        if not whole:
            return None
        return {"sm_mhz": median(r[0] for r in whole), "watts": median(r[1] for r in whole), "samples": len(whole)}


def traced(group, step: Step) -> dict[str, Any] | None:
    """One step's trace, cut to what task 14.5 reads; None on a CPU, where there are no kernels."""
    if group.device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile, schedule

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seconds = 0.0
        with profile(
            activities=[ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=2, active=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(3):
                settle(group)
                begin = time.perf_counter()
                step()
                torch.cuda.synchronize()
                seconds = time.perf_counter() - begin
                profiler.step()
        whole = json.loads(path.read_text())
    return {**cut(whole), "stepSeconds": seconds}


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def cut(trace: dict[str, Any]) -> dict[str, Any]:
    """What the GPU did, and no more: names shortened, times from the first event on, in microseconds."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in DEVICE]
    zero = min((e["ts"] for e in events), default=0.0)
    kept = [
        {
            "ph": "X",
            "cat": e["cat"],
            "name": e["name"][:56],
            "ts": round(e["ts"] - zero, 2),
            "dur": round(e.get("dur", 0.0), 2),
            "tid": e.get("tid", 0),
        }
        for e in sorted(events, key=lambda e: e["ts"])
    ]
    return {"traceEvents": kept}


def write_trace(trace: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(trace, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def saved_numbers(config: ModelConfig, device: torch.device, dtype: torch.dtype, seq_len: int) -> int:
    """How many numbers a token leaves in one block for its backward, the block's input among them: weighed, on one
    sequence, by the meter of storages."""
    one = config.model_copy(update={"n_layers": 1})
    model = fresh_model(one, device, dtype)
    (block,) = model.blocks()
    tables = rotary_tables(seq_len, config.d_head, config.rope_theta, device)
    x = torch.randn(1, seq_len, config.d_model, device=device, dtype=dtype, requires_grad=True)
    with StorageMeter(without=[*model.parameters(), *tables]) as meter:
        y = block(x * 1, *tables)  # x * 1: an input that belongs to the block alone
        held = meter.held()
        own = x.nbytes + y.nbytes  # x was there before, and y belongs to what follows
    return round((held - own) / (seq_len * x.element_size()))
