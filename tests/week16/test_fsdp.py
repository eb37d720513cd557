"""The setup that 16.6 converts: on two ranks, under FSDP2, it trains, and FP8 stays near FP32."""

import numpy as np
import pytest

from labkit.comm import run_ranks
from week16_fp8.given import fsdp


@pytest.mark.thorough
def test_it_trains_on_two_ranks_and_fp8_is_near():
    eight, plain = (
        np.mean(list(run_ranks(fsdp.train, 12, fp8, size=2, backend="processes", timeout=300.0)), axis=0)
        for fp8 in (True, False)
    )
    assert plain[-1] < 0.9 * plain[0] and eight[-1] < 0.9 * eight[0]
    assert not np.array_equal(eight, plain)
    # Twelve steps from the same weights on the same data: E4M3 and E5M2 round by 2^-4 and 2^-3 at most.
    assert np.abs(eight - plain).max() < 0.1 * plain[0]
