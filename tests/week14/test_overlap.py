"""Task 14.5's reference on the recorded traces, beside another way to find the same."""

import itertools

import numpy as np
import pytest

from labkit.record.kernels import classify
from week14_fsdp.given.records import RESULTS
from week14_fsdp.overlap import exposed, is_communication, load

TRACES = sorted(RESULTS.glob("trace-*.json.gz"))
each = pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
GRAIN = 0.01  # microseconds: what the traces were rounded to


def kernels(path):
    return [e for e in load(path)["traceEvents"] if e["cat"] == "kernel" and e["dur"] > 0]


def test_there_are_traces():
    assert len(TRACES) >= 4
    assert all(path.stat().st_size < 100_000 for path in TRACES)


def test_kernels_of_all_versions_of_nccl_communicate():
    """2.27 has kernels of their own on symmetric memory, and 2.28 names those otherwise."""
    kinds, ways = (
        ("AllReduce", "AllGather", "ReduceScatter"),
        ("RING_LL", "LL", "RSxLDMC_AGxSTMC_sum_bf16", "RailRing_LsaSTMC"),
    )
    begins = ("ncclKernel_", "ncclDevKernel_", "ncclSymDevKernel_", "ncclSymkDevKernel_")
    names = ["".join((*parts[:2], "_", parts[2], "(args)")) for parts in itertools.product(begins, kinds, ways)]
    names += [f"nccl{kind}RingLLKernel_sum_f32(ncclColl)" for kind in kinds]  # up to 2.7
    for name in names:
        assert is_communication(name) and classify(name) == "communication", name
        spans = [("kernel", name, 0, 30), ("kernel", "nvjet_tst_128x256", 20, 30), ("cpu_op", "nccl:all_reduce", 60, 9)]
        events = [{"ph": "X", "cat": cat, "name": of, "ts": at, "dur": long} for cat, of, at, long in spans]
        assert exposed({"traceEvents": events})[:3] == (30, 30, 20), name
    assert not any(map(is_communication, ("triton_poi_fused_nccl_like_add", "nvjet_tst", "nccl:all_reduce", "")))


@each
def test_beside_a_row_of_cells(path):
    """A cell for each hundredth of a microsecond: covered by whom?"""
    found = kernels(path)
    last = max(e["ts"] + e["dur"] for e in found)
    row = {kind: np.zeros(round(last / GRAIN) + 1, dtype=bool) for kind in (True, False)}
    for e in found:
        row[is_communication(e["name"])][round(e["ts"] / GRAIN) : round((e["ts"] + e["dur"]) / GRAIN)] = True
    got = exposed(load(path))
    # Begins are sums of floats: each edge may fall into the neighbouring cell.
    tolerance = 2 * GRAIN * len(found) ** 0.5
    assert got.computing == pytest.approx(row[False].sum() * GRAIN, abs=tolerance)
    assert got.communication == pytest.approx(row[True].sum() * GRAIN, abs=tolerance)
    assert got.exposed == pytest.approx((row[True] & ~row[False]).sum() * GRAIN, abs=tolerance)
