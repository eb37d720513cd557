"""Week 16's formats and scales: the FP8 table, the rounding, and whether this torch's casts agree."""

import numpy as np
import pytest
import torch

from labkit.precision.probe import saturating
from tests.fp8_values import DTYPES, scale_for
from week16_fp8 import casts
from week16_fp8.formats import bf16_to_float32, decode, encode
from week16_fp8.scaling import scale_from_amax

BOTH = pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
CODES = np.arange(256, dtype=np.uint8)
BF16 = np.arange(1 << 16, dtype=np.uint16)


@BOTH
def test_this_torch_decodes_code_by_code(fmt):
    theirs = torch.from_numpy(CODES).view(DTYPES[fmt]).float()
    torch.testing.assert_close(theirs, torch.from_numpy(decode(CODES, fmt)), rtol=0, atol=0, equal_nan=True)


@BOTH
def test_this_torch_rounds_every_bf16_number_as_we_do(fmt):
    """All 65536, NaN and infinities among them, after a clamp: without it versions differ beyond the largest value."""
    x = torch.from_numpy(bf16_to_float32(BF16))
    theirs = saturating(x, DTYPES[fmt]).view(torch.uint8)
    known = ~x.isnan()
    assert torch.equal(theirs[known], torch.from_numpy(encode(BF16, fmt))[known])
    assert torch.from_numpy(encode(BF16, fmt)[~known.numpy()]).unique().tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("power_of_two", [False, True])
@BOTH
def test_the_scale_is_the_same_in_numpy_and_in_torch(fmt, power_of_two):
    amax = torch.tensor([2.0, 448.0, 3.0, 1.75, 0.0, np.inf, np.nan, 1e-44, 3e38])
    ours = torch.from_numpy(scale_from_amax(amax.numpy(), fmt, power_of_two=power_of_two))
    assert torch.equal(casts.scale_of(amax, fmt, power_of_two=power_of_two), ours)
    torch.testing.assert_close(ours, scale_for(amax, fmt, power_of_two), rtol=2.0**-23, atol=0)
    assert ours[4:7].tolist() == [1.0, 1.0, 1.0] and ours.isfinite().all() and (ours > 0).all()
