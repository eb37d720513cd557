"""The speed part of a training, on fresh ranks: `warmup` steps, a window in which every step counts as tokens a second,
then `profile` steps, of which each millisecond is accounted for."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.compare.batches import CALM, LOOK, SCATTERED, Search
from labkit.compare.repeats import rejected_at
from labkit.record import kernels, measure, meter
from labkit.record.schema import Try
from labkit.train.data.corpus import rows_per_micro_batch
from labkit.train.loop import Hook

if TYPE_CHECKING:
    from labkit.comm.group import Group
    from labkit.train.loop import Loop

FEWEST = 5  # steps in a window, however slow they are
# Half of the median step's 95 % interval, of it: a ratio of two arms is then known within 0.7 %. A window may end there
# after `least` seconds (Hoefler and Belli 2015, doi:10.1145/2807591.2807644).
NARROW = 0.005
OVER, ANOTHER = "the window is over", "another batch is tried"  # why a window ended its run


class Window(Hook):
    """Ends the run after a window of counted steps and records them; earlier if `search` wants another batch tried.

    seconds, least: the window's longest and shortest; least None: always `seconds`.
    """

    def __init__(
        self, seconds: float, warmup: int, profile: int, search: Search | None = None, least: float | None = None
    ) -> None:
        self.seconds, self.warmup, self.profile, self.search = seconds, warmup, profile, search
        self.least = min(seconds, least or seconds)
        self.tried: Try | None = None
        self.shortages = self.before = 0  # up to the window, up to LOOK
        self.begin, self.windows = warmup, 1  # the last step before the window; which window it is
        self.end: int | None = None  # last step of the window, if its steps scatter little by then
        self.last = 0  # its last step at the latest
        self.profiler: Any = None
        self.meter: meter.Meter | None = None  # of rank 0's GPU, during the window
        self.found: dict[str, Any] = {}

    def before_step(self, loop: Loop) -> None:
        if self.end and loop.step == self.end + 1 and loop.group.rank == 0:
            import torch

            # One cycle, so nothing accumulates: acc_events only keeps torch from warning that it would not.
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True)
            self.profiler.start()

    def after_step(self, loop: Loop) -> None:
        if self.search and loop.step in (LOOK, LOOK + CALM) and self._another(loop, self.search):
            loop.stopped = ANOTHER
            return
        if loop.step == self.warmup:
            step_time = agreed_mean(loop.group, min(loop.seconds[-3:]))
            self._open(loop, *(max(FEWEST, math.ceil(each / step_time)) for each in (self.least, self.seconds)))
        elif loop.step == self.end:
            error = measure.median_error(loop.seconds[self.begin : loop.step])
            # Of all ranks, so that they end together.
            if self.end < self.last and agreed_mean(loop.group, math.inf if error is None else error) > NARROW:
                self.end = min(self.last, self.end + max(1, (self.end - self.begin) // 4))
                return
            self._measured(loop)
            low, middle, high = (self.found[key] for key in ("step_p10", "step_p50", "step_p90"))
            # A GPU's window is worth repeating, if the ranks' steps scattered so much: all agree.
            on_gpu = self.windows == 1 and loop.group.device.type == "cuda"
            if on_gpu and agreed_mean(loop.group, (high - low) / middle / 2) > SCATTERED:
                self.windows = 2
                self._open(loop, self.end - self.begin, self.end - self.begin)
                return
            if not self.profile or loop.group.device.type != "cuda":
                loop.stopped = OVER
        elif self.end and loop.step == self.end + self.profile:
            if self.profiler:
                import torch

                torch.cuda.synchronize()
                self.profiler.stop()
                found = kernels.breakdown(kernels.device_kernels(self.profiler), self.profile)
                self.found["kernels"] = asdict(found)
            loop.stopped = OVER

    def on_end(self, loop: Loop) -> None:
        if self.meter:
            self.meter.stop()
        if loop.record and self.found:
            loop.record.results(speed=self.found)

    def _open(self, loop: Loop, least: int, most: int) -> None:
        """Begin a window of so many steps."""
        self.begin, self.end, self.last = loop.step, loop.step + least, loop.step + most
        measure.reset_peak(loop.group.device)
        self.shortages = measure.shortages(loop.group.device)
        if loop.group.rank == 0 and (found := meter.of_gpu(loop.group.device)):
            self.meter = found.start()

    def _measured(self, loop: Loop) -> None:
        seconds = loop.seconds[self.begin : self.end]
        rate = measure.throughput(seconds, loop.config.batch_size * loop.config.seq_len)
        self.found = {
            **asdict(rate),
            "warmup": self.warmup,
            "window_s": sum(seconds),
            "error": measure.median_error(seconds),
            "windows": self.windows,
            "memory": memory_by_category(loop.model, loop.optimizer, loop._peak()),
            "taken_bytes": measure.device_used_bytes(loop.group.device),
            "shortages": measure.shortages(loop.group.device) - self.shortages,
            "meter": self.meter.stop() if self.meter else None,
            "kernels": None,
        }

    def _another(self, loop: Loop, search: Search) -> bool:
        """Should another batch be timed? From the GPU where memory was worst, so every rank answers the same."""
        import torch

        group, config, device = loop.group, loop.config, loop.group.device
        short = measure.shortages(device)
        if self.tried is None:
            own, self.before = {**measure.needed(device), "short": 0}, short
        else:
            own = {**self.tried.model_dump(include={"need", "rest"}), "short": short - self.before}
        most = group.all_reduce(torch.tensor([*own.values()], dtype=torch.float64, device=device), op="max")
        size = rows_per_micro_batch(config.batch_size, config.accumulation, group.size)
        found = {key: int(value) for key, value in zip(own, most.tolist())}
        self.tried = Try(micro_batch_size=size, fitted=True, **found)
        return search.after(self.tried).micro_batch_size != size


class Control(Hook):
    """Ends a negative control's run as soon as the baseline runs' val_losses (by step, equal on all ranks) reject it."""

    def __init__(self, baselines: list[dict[int, float]]) -> None:
        self.baselines = baselines

    def after_eval(self, loop: Loop) -> None:
        if found := rejected_at(loop.history.heldout, self.baselines):
            loop.stopped = f"rejected: {found[1]:+.0f} % from the baseline at step {found[0]}"


class Deadline(Hook):
    """Pauses the run at a time (at: since 1970), or when a file (stop) asks for it.

    Rank 0's clock and file decide, polled every `every` seconds at steps agreed once: else ranks would hang.
    """

    REASONS = ("", "the budget is spent", "asked to stop")

    def __init__(self, at: float | None, stop: str | None = None, every: float = 3.0) -> None:
        self.at, self.file, self.every, self.stride = at, stop, every, 0

    def after_step(self, loop: Loop) -> None:
        done = len(loop.seconds)
        if done == 3:
            self.stride = max(1, round(self.every / agreed_mean(loop.group, loop.seconds[-1])))
        if self.stride and (done == 3 or done % self.stride == 0) and (why := self._over(loop.group)):
            loop.pause(f"{self.REASONS[why]}: the same command goes on from here")

    def _over(self, group: Group) -> int:
        """0: go on; else which of REASONS. The sum over the ranks is what rank 0 says: the others add nothing."""
        import torch

        late = self.at is not None and time.time() >= self.at
        why = 1.0 if late else 2.0 if self.file and Path(self.file).exists() else 0.0
        return int(group.all_reduce(torch.full((1,), why if group.rank == 0 else 0.0, device=group.device)).item())


def agreed_mean(group: Group, value: float) -> float:
    """The mean of every rank's `value`, the same float on every rank."""
    import torch

    return group.all_reduce(torch.full((1,), value, dtype=torch.float64, device=group.device)).item() / group.size


def memory_by_category(model: Any, optimizer: Any, peak_bytes: int) -> dict[str, int]:
    """What this rank's peak was made of, in bytes; the rest is activations, logits, copies and the allocator's gaps."""
    import torch

    from labkit.precision.base import pieces

    def bytes_of(tensor: Any) -> int:
        return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes

    weights = sum(piece.nbytes for p in model.parameters() for piece in pieces(p).values())
    state = sum(bytes_of(t) for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    gradients = sum(bytes_of(p) for p in model.parameters() if p.requires_grad)
    return {
        "weights": weights,
        "optimizer": state,
        "gradients": gradients,
        "activations and the rest": max(0, peak_bytes - weights - state - gradients),
        "peak": peak_bytes,
    }
