"""Clock and watts of a GPU while it works: with a driver that is made up, sample by sample."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock

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


def test_a_driver_that_stops_to_answer_ends_the_samples_and_nothing_else():
    answers = iter([Sample(1600, 650.0, 700.0, False)])
    running = Meter(lambda: next(answers), every=0.001).start()
    running._thread.join(60)
    assert running.stop() == summarise([Sample(1600, 650.0, 700.0, False)])


def card(reasons: int, **broken) -> SimpleNamespace:
    """As much of `pynvml` as a card needs: names and units are NVML's, powers in milliwatts."""
    answers = dict(nvmlInit=None, nvmlDeviceGetHandleByUUID=None, nvmlDeviceGetClockInfo=1477)
    answers |= dict(nvmlDeviceGetPowerUsage=698_400, nvmlDeviceGetEnforcedPowerLimit=700_000)
    answers |= dict(nvmlDeviceGetCurrentClocksThrottleReasons=reasons)
    made = {name: Mock(return_value=value) for name, value in answers.items()}
    return SimpleNamespace(NVML_CLOCK_SM=1, **{**made, **broken})


# The bits of nvml.h: 0x1 idle, 0x4 the limit of watts, 0x40 too hot.
@pytest.mark.parametrize("reasons, capped", [(0x4, True), (0x44, True), (0x1, False), (0x40, False), (0, False)])
def test_the_driver_is_asked_for_this_card_in_its_units(monkeypatch, reasons, capped):
    nvml = card(reasons)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = meter.of_uuid(UUID)
    assert found and found.read() == Sample(1477, 698.4, 700.0, capped)
    nvml.nvmlDeviceGetHandleByUUID.assert_called_with(f"GPU-{UUID}")


def test_without_package_card_or_right_there_is_no_meter(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert meter.of_uuid(UUID) is None
    for call in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPowerUsage"):
        monkeypatch.setitem(sys.modules, "pynvml", card(0, **{call: Mock(side_effect=RuntimeError("Not Supported"))}))
        assert meter.of_uuid(UUID) is None
    assert meter.of_gpu("cpu") is None
