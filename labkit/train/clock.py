"""Time per step on a device that runs behind the host.

A GPU call returns before the GPU has done it, so the host's clock is right only where the host has just waited for the
GPU. The loop waits once a step anyway, to read the loss; this clock is read there. What lies between two such points is
exactly one step's work, in the order of the device, without a wait of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds from lap to lap, without the pauses between."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._last, self._paused = device, time.perf_counter(), 0.0

    def lap(self) -> float:
        """Seconds since the last lap (or the clock's making). Call it where the host has just waited for the device."""
        now = time.perf_counter()
        seconds, self._last, self._paused = now - self._last - self._paused, now, 0.0
        return seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What runs inside is not counted. Waits for the device at both ends, so that work which is still queued is
        counted on its own side. Not to be nested."""
        self._wait()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            self._paused += time.perf_counter() - begin

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
