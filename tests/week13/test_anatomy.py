"""The anatomy of a ring: its job runs on ranks without a GPU too, apart from the clock and the profiler."""

import pytest
import torch

from labkit.comm.ranks import run_ranks
from week13_allreduce.given import anatomy


@pytest.fixture
def without_gpu(monkeypatch):
    """`timed` without CUDA events, a memory pool that does nothing, and a profiler that saw three kernels."""

    def timed(run, refill, group, budget):
        refill()
        run()
        return {"seconds": 1e-3, "gpu": 1e-3, "queue": 1e-4}

    monkeypatch.setattr(anatomy, "timed", timed)
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)

    def timeline(group, run):
        run()
        return [{"what": "message", "begin": 0.0, "end": 1.0, "blocks": 8}] * 3

    monkeypatch.setattr(anatomy, "_timeline", timeline)


@pytest.mark.thorough
@pytest.mark.parametrize("N", [2, 3, 4])
def test_every_part_is_measured_and_nobody_waits_for_ever(without_gpu, N):
    found = run_ranks(anatomy.anatomy, 0.01, 16 << 20, size=N, backend="threads", timeout=60.0)[0]
    assert [row["size"] for row in found["messages"]] == [1 << 20, 4 << 20, 16 << 20]
    assert [row["blocks"] for row in found["messages"]] == [8, 8, 8]
    assert set(found["rings"]) == set(anatomy.RINGS) and set(found["timelines"]) == set(anatomy.DRAWN)
    assert all([row["size"] for row in rows] == [16 << 20] for rows in found["rings"].values())
    n = (16 << 20) / 4
    assert found["wires"]["0 to 1, alone"] == 16 * 2**20 / 1e-3
    assert found["wires"]["all to 0"] == 4 * (n // (N - 1)) * (N - 1) / 1e-3
    assert [row["calls"] for row in found["memory"]] == [5, 80] and len(found["calls"]) == 4
