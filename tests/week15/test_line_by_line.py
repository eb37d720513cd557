"""Your block beside parallelize_module: both run, and send what the notebook says."""

import pytest
import torch

from week15_tp_attention.given import line_by_line

pytestmark = pytest.mark.thorough


def test_who_sends_what():
    """The same numbers, and messages by kind. B T D numbers of float32 are 8 KiB: a ring of two sends as much for an
    all-reduce, and half for a gather or a scatter."""
    ran = {name: line_by_line.ran(name) for name in line_by_line.CONTENDERS}
    calls = {name: {phase: dict(sent.calls) for phase, sent in one.sent.items()} for name, one in ran.items()}
    two = {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}}
    halves = {"all_gather": 2, "reduce_scatter": 2}
    assert calls["yours, plain"] == calls["parallelize_module"] == two
    # Three products read x in attention, and two in the feed-forward network.
    assert calls["... without PrepareModuleInput"] == {**two, "backward": {"all_reduce": 5}}
    assert calls["parallelize_module, sequence"] == {"forward": halves, "backward": halves}
    # The norms' weights: one's own are summed at once, DTensor's gradients stay addends until somebody asks.
    assert calls["yours, sequence"] == {"forward": halves, "backward": {**halves, "all_reduce": 2}}
    numbers = 4 * line_by_line.SHAPE.B * line_by_line.SHAPE.T * line_by_line.SHAPE.D
    assert ran["parallelize_module"].sent["backward"].ring_bytes == 2 * numbers
    assert ran["... without PrepareModuleInput"].sent["backward"].ring_bytes == 5 * numbers
    norms = 2 * 4 * line_by_line.SHAPE.D
    assert ran["yours, sequence"].sent["backward"].ring_bytes == 2 * numbers + norms
    right = ran["yours, plain"]
    for name, one in ran.items():
        # float32, and sums in another order: some hundred roundings of numbers of a few units.
        assert torch.allclose(one.y, right.y, rtol=1e-4, atol=1e-4), name
        assert torch.allclose(one.dx, right.dx, rtol=1e-4, atol=1e-4), name
    said = line_by_line.table(found=ran)
    assert all(name in said for name in ran) and said.count("\n") == 2 * len(ran) and "5 all_reduce" in said
