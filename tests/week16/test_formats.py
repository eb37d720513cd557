"""Week 16's formats and scales: the FP8 table, the rounding, and whether this torch's casts agree."""

import numpy as np
import pytest
import torch

from labkit.precision.probe import saturating, sqnr
from tests.fp8_values import DTYPES, LARGEST, scale_for
from week16_fp8 import casts
from week16_fp8.formats import FORMATS, bf16_to_float32, decode, encode, float32_to_bf16
from week16_fp8.scaling import predicted_sqnr, scale_from_amax

BOTH = pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
CODES = np.arange(256, dtype=np.uint8)
BF16 = np.arange(1 << 16, dtype=np.uint16)


@BOTH
def test_the_stated_table_follows_from_the_field_sizes(fmt):
    f, values = FORMATS[fmt], decode(CODES, fmt)
    finite = values[np.isfinite(values)]
    assert finite.max() == f.largest and finite.min() == -f.largest
    assert finite[finite > 0].min() == f.smallest_subnormal == 2.0 ** (1 - f.bias - f.mantissa_bits)
    assert f.smallest_normal == 2.0 ** (1 - f.bias) and 1 + f.exponent_bits + f.mantissa_bits == 8
    assert f.has_infinity == np.isinf(values).any() and np.isnan(values).sum() == (6 if f.has_infinity else 2)


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


@BOTH
def test_a_bare_cast_agrees_wherever_nothing_saturates(fmt):
    x = torch.from_numpy(bf16_to_float32(BF16))
    x = x[x.abs() <= LARGEST[fmt]]
    assert torch.equal(x.to(DTYPES[fmt]).view(torch.uint8), torch.from_numpy(encode(x.numpy(), fmt)))


def test_bf16_is_torchs():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-40, 38, 10_000)
    assert torch.equal(torch.from_numpy(float32_to_bf16(x.numpy())).view(torch.bfloat16), x.bfloat16())
    assert np.array_equal(float32_to_bf16(bf16_to_float32(BF16[:0x7F80])), BF16[:0x7F80])


@pytest.mark.parametrize("power_of_two", [False, True])
@BOTH
def test_the_scale_is_the_same_in_numpy_and_in_torch(fmt, power_of_two):
    amax = torch.tensor([2.0, 448.0, 3.0, 1.75, 0.0, np.inf, np.nan, 1e-44, 3e38])
    ours = torch.from_numpy(scale_from_amax(amax.numpy(), fmt, power_of_two=power_of_two))
    assert torch.equal(casts.scale_of(amax, fmt, power_of_two=power_of_two), ours)
    torch.testing.assert_close(ours, scale_for(amax, fmt, power_of_two), rtol=2.0**-23, atol=0)
    assert ours[4:7].tolist() == [1.0, 1.0, 1.0] and ours.isfinite().all() and (ours > 0).all()


@pytest.mark.parametrize("fmt, low, high", [("e4m3", 31, 32), ("e5m2", 25, 26)])
def test_what_rounding_costs_and_what_theory_says(fmt, low, high):
    """6 dB for each mantissa bit; the prediction within 0.3 dB on the plateau and on both cliffs."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for power in range(-16, 16):
        s = scale_for(x.abs().max(), fmt).item() * 2.0**power
        back = torch.from_numpy(decode(encode((x * s).numpy(), fmt), fmt)) / s
        got = sqnr(x, back)
        if power in (0, -1):
            assert low < got < high
        if got > 3:
            assert abs(predicted_sqnr(x.numpy(), s, fmt) - got) < 0.3, power
