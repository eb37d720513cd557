"""Numbers that are reported as measured must be what they say: time of the work, tokens of the steps, memory."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from labkit.record import measure
from labkit.record.measure import Stopwatch, efficiency, peak_rss_bytes, throughput, throughput_of

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_stopwatch_times_each_step_from_the_end_of_the_one_before(monkeypatch):
    clock = iter([10.0, 10.5, 10.75])
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    watch = Stopwatch()
    watch.start()
    assert [watch.lap(), watch.lap()] == [0.5, 0.25]


def test_stopwatch_on_cuda_waits_for_the_event_and_tells_seconds(monkeypatch):
    # No GPU needed: what matters is that events are recorded, waited for before they are read, and that CUDA's
    # milliseconds become seconds.
    class Event:
        stamps = iter([100.0, 350.0, 350.5])

        def __init__(self, enable_timing=False):
            assert enable_timing
            self.waited = False

        def record(self, stream):
            self.at = next(self.stamps)

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, end):
            assert end.waited, "read before the GPU got there"
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    watch = Stopwatch("cuda:0")
    watch.start()
    assert [watch.lap(), watch.lap()] == [0.25, 0.0005]


def test_throughput_leaves_warm_up_out_and_takes_the_median_step():
    shown = throughput([50.0, 1.0, 1.0, 1.0, 5.0], 100, warmup=1)
    assert shown.tokens_per_s == 100  # the slow step does not move it
    assert shown.mean_tokens_per_s == 400 / 8  # but an hour costs this
    assert shown.steps == 4 and shown.step_p50 == 1.0 and shown.step_p90 == pytest.approx(3.8)
    for seconds in ([], [1.0, 1.0], [math.nan] * 5, [0.0] * 5):  # nothing to count
        assert throughput(seconds, 10, warmup=2).tokens_per_s is None


def test_throughput_of_step_lines_is_of_their_own_rates():
    """Also where the record lost lines: the jump in tokens belongs to several steps."""
    gap = [{"tokens": t, "seconds": 2.0, "tokens_per_s": rate} for t, rate in ((10, 9.0), (20, 5.0), (500, 5.0))]
    assert throughput_of([*gap, {"tokens": 510}], warmup=1).mean_tokens_per_s == 5.0


@needs_proc
def test_peak_stays_when_memory_was_given_back():
    code = (
        "from labkit.record.measure import peak_rss_bytes\n"
        "x = bytearray(200 << 20); del x\n"
        "now = int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "print(peak_rss_bytes() - now)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) > 150 << 20  # most of the 200 MiB was returned, and the peak remembers it
    assert measure.memory("cpu")["peak_bytes"] == pytest.approx(peak_rss_bytes(), rel=0.2)


def test_efficiency_names_convention_and_peak():
    shown = efficiency(80_000, {"causal": 8e9, "full": 9e9}, "NVIDIA H200", gpus=2)
    assert shown.flops_per_s == {"causal": 80_000 * 8e9 / 2, "full": 80_000 * 9e9 / 2}
    assert shown.mfu["causal FLOPs / bf16 peak"] == pytest.approx(3.2e14 / 989e12)
    assert shown.mfu["full FLOPs / fp8 peak"] == pytest.approx(3.6e14 / 1979e12)
    assert shown.note.endswith(": bf16 989 TFLOP/s, fp8 1,979 TFLOP/s")
    a100 = efficiency(1e3, {"causal": 8e9}, "NVIDIA A100-SXM4-80GB")
    assert list(a100.mfu) == ["causal FLOPs / bf16 peak"], "it has no FP8 units"


@pytest.mark.parametrize("gpu, says", [("NVIDIA Unheard 9000", "peak unknown"), (None, "no GPU")])
def test_no_peak_no_mfu(gpu, says):
    shown = efficiency(80_000, {"causal": 8e9}, gpu)
    assert shown.mfu == {} and says in shown.note
    assert shown.flops_per_s["causal"] == 80_000 * 8e9
