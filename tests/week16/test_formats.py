"""Week 16's formats and scales: the FP8 table, the reference rounding, and whether this torch's casts agree."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.precision.probe import saturating, sqnr
from week16_fp8.formats import E4M3, E5M2, decode, quantise
from week16_fp8.scaling import scale_for

BOTH = pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda f: f.name)


@BOTH
def test_the_stated_table_follows_from_the_field_sizes(fmt):
    finite = decode(fmt)[decode(fmt).isfinite()]
    assert finite.max() == fmt.max and finite.min() == -fmt.max
    assert finite[finite > 0].min() == fmt.min_subnormal == 2.0 ** (1 - fmt.bias - fmt.mantissa_bits)
    assert fmt.min_normal == 2.0 ** (1 - fmt.bias)
    assert 1 + fmt.exponent_bits + fmt.mantissa_bits == 8


def test_special_codes():
    e4m3, e5m2 = decode(E4M3), decode(E5M2)
    assert e4m3.isnan().sum() == 2 and not e4m3.isinf().any()  # S.1111.111 only: why E4M3 reaches 448
    assert e5m2.isnan().sum() == 6 and e5m2.isinf().sum() == 2
    assert e4m3[0x7E] == 448 and e5m2[0x7B] == 57344 and e4m3[0x38] == e5m2[0x3C] == 1.0


@BOTH
def test_this_torch_agrees_code_by_code(fmt):
    codes = torch.arange(256, dtype=torch.uint8).view(fmt.dtype).float().double()
    torch.testing.assert_close(codes, decode(fmt), rtol=0, atol=0, equal_nan=True)


@BOTH
def test_this_torch_rounds_as_the_format_says(fmt):
    """Every value, every midpoint between neighbours (the ties), and a little to either side of it."""
    grid = decode(fmt)[decode(fmt).isfinite()].unique().float()
    middle = (grid[1:] + grid[:-1]) / 2
    beside = [torch.nextafter(middle, grid[1:]), torch.nextafter(middle, grid[:-1])]
    probe = torch.cat([grid, middle, *beside, torch.tensor([1e30, -1e30])])
    assert torch.equal(saturating(probe, fmt.dtype).float(), quantise(probe, fmt))


@BOTH
def test_quantise_finds_the_nearest_code(fmt):
    """Against brute force: the nearest of all codes, the one with the even mantissa on a tie."""
    codes = decode(fmt)
    even = torch.arange(256) % 2 == 0
    grid, fair = codes[codes.isfinite()], even[codes.isfinite()]
    x = torch.cat([torch.randn(500, generator=torch.Generator().manual_seed(0)) * s for s in (1e-4, 0.02, 1.0, 300.0)])
    x = torch.cat([x, torch.tensor([0.0, 17.0, 19.0, -17.0, 1.5 * fmt.min_subnormal, 2.5 * fmt.min_subnormal])])
    distance = (x.double()[:, None].clamp(-fmt.max, fmt.max) - grid[None]).abs() - 1e-12 * fair
    assert torch.equal(quantise(x, fmt).double(), grid[distance.argmin(1)] + 0.0)


@BOTH
def test_out_of_range(fmt):
    x = torch.tensor([1e30, -1e30, math.inf, -math.inf, math.nan, 0.0])
    want = torch.tensor([fmt.max, -fmt.max, fmt.max, -fmt.max, math.nan, 0.0])
    torch.testing.assert_close(quantise(x, fmt), want, rtol=0, atol=0, equal_nan=True)
    y = x.clone()
    quantise(x, fmt)
    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)  # the argument is left alone


def test_scale():
    amax = torch.tensor([2.0, 448.0, 0.0, math.inf, math.nan, 1e-44])
    got = scale_for(amax, E4M3)
    assert got[:2].tolist() == [224.0, 1.0]
    assert got[2:5].tolist() == [1.0, 1.0, 1.0]  # nothing sensible to do: leave the tensor alone
    assert got[5] == torch.finfo(torch.float32).max and got.isfinite().all()
    assert scale_for(torch.tensor(3.0), E4M3, power_of_two=True) == 128.0  # 448 / 3 = 149.3; rounded down


@pytest.mark.parametrize("fmt, low, high", [(E4M3, 31, 32), (E5M2, 25, 26)], ids=["e4m3", "e5m2"])
def test_what_rounding_costs(fmt, low, high):
    """The numbers in sqnr's docstring: 6 dB per mantissa bit."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    s = scale_for(x.abs().max(), fmt)
    assert low < sqnr(x, quantise(x * s, fmt) / s) < high
