"""What a training run has done so far and returns at its end; and the clock that its seconds come from."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class History:
    """What a run has done so far. It survives a resume, and is the same on every rank."""

    losses: dict[int, float] = field(default_factory=dict)  # step: mean training loss
    heldout: dict[int, float] = field(default_factory=dict)  # step: held-out loss
    skipped: list[int] = field(default_factory=list)  # steps without an update
    fp8_steps: int = 0  # steps whose linears computed in FP8
    tokens: int = 0  # read by all ranks, targets counted once
    seconds: float = 0.0  # training alone

    def add(self, step: int, loss: float, tokens: int, seconds: float, in_fp8: bool) -> None:
        """Add a step that was done."""
        self.losses[step] = loss
        self.fp8_steps += in_fp8
        self.tokens += tokens
        self.seconds += seconds


@dataclass
class TrainResult(History):
    """What `train` returns, the same on every rank."""

    steps: int = 0  # the last step done
    resumed_from: int = 0  # the checkpoint's step; 0: from the beginning
    stopped: str | None = None  # why, if before config.steps
    paused: bool = False  # stopped for a time: to be taken up again
    tokens_per_s: float | None = None  # over all ranks; median step, after the first two
    peak_bytes: list[int] = field(default_factory=list)  # of each rank
    recovery: dict[str, Any] = field(default_factory=dict)  # labkit.train.recovery.Recovery.state


class Clock:
    """Measures seconds from lap to lap, without the pauses between; and those of the pauses, by purpose."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._last, self._paused = device, time.perf_counter(), 0.0
        self._aside: dict[str, float] = {}  # seconds of pauses, by purpose

    def lap(self) -> float:
        """Return the seconds since the last lap. Call it where the host has just waited for the device."""
        now = time.perf_counter()
        seconds, self._last, self._paused = now - self._last - self._paused, now, 0.0
        return seconds

    @contextmanager
    def pause(self, purpose: str) -> Iterator[None]:
        """Count what runs inside under `purpose` and not in the lap. Pauses are not to be nested."""
        self._wait()  # at both ends, so that work which is still queued is counted on its own side
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            seconds = time.perf_counter() - begin
            self._paused += seconds
            self._aside[purpose] = self._aside.get(purpose, 0.0) + seconds

    def take_aside(self) -> dict[str, float]:
        """Return {purpose: seconds} of the pauses since the last call."""
        aside, self._aside = self._aside, {}
        return aside

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
