"""The FP8 table, the reference quantiser, and whether this torch's casts agree with them."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.precision.formats import (
    E4M3,
    E5M2,
    SQNR_EXACT,
    cast,
    check_torch,
    decibel,
    decode,
    quantise,
    scale_for,
    sqnr,
)

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
def test_this_torch_agrees_code_by_code_and_tie_by_tie(fmt):
    assert check_torch(fmt) == []


def test_a_torch_that_disagrees_is_told(monkeypatch):
    import labkit.precision.formats as formats

    monkeypatch.setattr(formats, "cast", lambda x, fmt: (x * 1.01).clamp(-fmt.max, fmt.max).to(fmt.dtype))
    assert "by rounding to nearest even" in check_torch(E4M3)[0]


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
    for got in (quantise(x, fmt), cast(x, fmt).float()):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    y = x.clone()
    quantise(x, fmt)
    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)  # the argument is left alone


def test_saturation_begins_half_a_step_above_the_largest_value():
    assert E4M3.saturates_above == 464 and E5M2.saturates_above == 61440


def test_scale():
    amax = torch.tensor([2.0, 448.0, 0.0, math.inf, math.nan, 1e-44])
    got = scale_for(amax, E4M3)
    assert got[:2].tolist() == [224.0, 1.0]
    assert got[2:5].tolist() == [1.0, 1.0, 1.0]  # nothing sensible to do: leave the tensor alone
    assert got[5] == torch.finfo(torch.float32).max and got.isfinite().all()
    assert scale_for(torch.tensor(3.0), E4M3, power_of_two=True) == 128.0  # 448 / 3 = 149.3; rounded down


def test_sqnr():
    x = torch.tensor([3.0, 4.0])
    assert sqnr(x, x + torch.tensor([0.0, 0.5])) == pytest.approx(20.0)  # 25 / 0.25 is 20 dB
    assert sqnr(x, x) == SQNR_EXACT and sqnr(torch.zeros(2), x) == -SQNR_EXACT
    odd = (0.0, 1.0, math.inf, math.nan)
    assert all(math.isfinite(decibel(a, b)) for a in odd for b in odd)


@pytest.mark.parametrize("fmt, low, high", [(E4M3, 31, 32), (E5M2, 25, 26)], ids=["e4m3", "e5m2"])
def test_what_rounding_costs(fmt, low, high):
    """The numbers in sqnr's docstring: 6 dB per mantissa bit."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    s = scale_for(x.abs().max(), fmt)
    assert low < sqnr(x, quantise(x * s, fmt) / s) < high
