"""What a GPU does to its clock while it works: SM clock, watts and their limit, read by NVML twice a second."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from labkit.record.measure import percentile

EVERY = 0.5  # seconds between two samples
POWER_CAP = 0x4  # nvmlClocksThrottleReasonSwPowerCap, nvml.h: the clock is held down by the limit of watts


class Sample(NamedTuple):
    """clock in MHz; watts drawn, and at most allowed; capped: does the limit hold the clock down?"""

    clock: int
    watts: float
    limit: float
    capped: bool


class Meter:
    """Samples in a thread of its own, from `start` to `stop`. read: gives one sample."""

    def __init__(self, read: Callable[[], Sample], every: float = EVERY) -> None:
        self.read, self.every = read, every
        self.samples: list[Sample] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)

    def start(self) -> "Meter":
        self._thread.start()
        return self

    def stop(self) -> dict[str, Any] | None:
        """What was seen, for the record; None without a sample. A second call says the same."""
        self._end.set()
        self._thread.join()
        return summarise(self.samples)

    def _sample(self) -> None:
        with suppress(Exception):  # a driver that stops to answer ends the samples, never the run
            while not self._end.wait(self.every):
                self.samples.append(self.read())


def summarise(samples: list[Sample]) -> dict[str, Any] | None:
    """{"samples", "clock_mhz": {p10, p50, p90}, "watts": {...}, "limit_watts", "at_limit": samples held down by it}."""
    if not samples:
        return None

    def spread(values: Sequence[float]) -> dict[str, float]:
        return {f"p{percent}": percentile(values, percent) for percent in (10, 50, 90)}

    clocks, watts, limits, capped = zip(*samples)
    found = {"samples": len(samples), "clock_mhz": spread(clocks), "watts": spread(watts)}
    return {**found, "limit_watts": percentile(limits, 50), "at_limit": sum(capped)}


def of_gpu(device: Any) -> Meter | None:
    """The meter of this CUDA device, not yet started; None on a CPU, and where NVML does not know it (a MIG slice)."""
    if not str(device).startswith("cuda"):
        return None
    import torch

    return of_uuid(str(torch.cuda.get_device_properties(device).uuid))


def of_uuid(uuid: str) -> Meter | None:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")  # torch leaves "GPU-" out

        def read() -> Sample:
            clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
            watts, limit = nvml.nvmlDeviceGetPowerUsage(gpu), nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            return Sample(clock, watts / 1e3, limit / 1e3, bool(reasons & POWER_CAP))  # NVML has milliwatts

        read()  # what the card does not support shows now
    except Exception:  # no driver, no such GPU, no permission: NVML has an error class for each
        return None
    return Meter(read)
