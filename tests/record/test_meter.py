"""Clock and watts of a GPU while it works: with a driver that is made up, sample by sample."""

import itertools
import sys
import threading
from types import SimpleNamespace

import pytest

from labkit.record import meter
from labkit.record.meter import Meter, Sample, summarise

UUID = "6d0a7f2e-0000-1111-2222-333344445555"


def test_what_is_summarised_of_samples():
    seen = [Sample(1980, 350.0, 700.0, False), *[Sample(1500 + i, 690.0 + i, 700.0, True) for i in range(9)]]
    found = summarise(seen)
    assert found["samples"] == 10 and found["at_limit"] == 9 and found["limit_watts"] == 700.0
    assert found["clock_mhz"]["p50"] == 1504.5 and found["watts"]["p50"] == 693.5
    assert found["clock_mhz"]["p10"] < 1504.5 < found["clock_mhz"]["p90"] < 1980, "one sample at idle moves no median"
    assert summarise([]) is None


def test_a_meter_samples_until_it_is_stopped():
    enough, count = threading.Event(), itertools.count()

    def look() -> Sample:
        if next(count) == 4:
            enough.set()
        return Sample(1600, 650.0, 700.0, False)

    running = Meter(look, every=0.001).start()
    assert enough.wait(60)
    first = running.stop()
    assert first and first["samples"] >= 5 and not running._thread.is_alive()
    assert running.stop() == first, "nothing is sampled after the end"


def test_a_driver_that_stops_to_answer_ends_the_samples_and_nothing_else():
    answers = iter([Sample(1600, 650.0, 700.0, False)])
    running = Meter(lambda: next(answers), every=0.001).start()
    running._thread.join(60)
    assert running.stop() == summarise([Sample(1600, 650.0, 700.0, False)])


class Nvml(SimpleNamespace):
    """As much of `pynvml` as a card needs: names and units are NVML's, powers in milliwatts. uuids: the identifiers requested."""

    NVML_CLOCK_SM = 1

    def __init__(self, reasons: int, **broken) -> None:
        super().__init__(reasons=reasons, uuids=[], **broken)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.uuids.append(uuid)
        return f"handle of {uuid}"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert handle.startswith("handle") and kind == self.NVML_CLOCK_SM
        return 1477

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 698_400

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons


# The bits of nvml.h: 0x1 idle, 0x4 the limit of watts, 0x40 too hot.
@pytest.mark.parametrize("reasons, capped", [(0x4, True), (0x44, True), (0x1, False), (0x40, False), (0, False)])
def test_the_driver_is_asked_for_this_card_in_its_units(monkeypatch, reasons, capped):
    card = Nvml(reasons)
    monkeypatch.setitem(sys.modules, "pynvml", card)
    found = meter.of_uuid(UUID)
    assert found and found.read() == Sample(1477, 698.4, 700.0, capped)
    assert meter.of_uuid(f"GPU-{UUID}") and card.uuids == [f"GPU-{UUID}"] * 2


def test_without_package_card_or_right_there_is_no_meter(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Not Supported")

    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert meter.of_uuid(UUID) is None
    for call in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPowerUsage"):
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(0, **{call: refuse}))
        assert meter.of_uuid(UUID) is None
    assert meter.of_gpu("cpu") is None
