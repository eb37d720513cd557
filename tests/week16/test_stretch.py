"""The stretch solutions beside a library: torchao on this CPU, bit for bit; and where it differs, why."""

import math

import pytest
import torch

from week16_fp8.stretch import mxfp8

BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
RULES = ("floor", "ceil", "even", "rceil")


def torchao_mx(x, rule):
    """(elements, codes) by torchao."""
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason="torchao is not installed")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    codes, elements = mx_tensor.to_mx(x, torch.float8_e4m3fn, mxfp8.BLOCK, ScaleCalculationMode[rule.upper()])
    return elements.view(torch.uint8), codes.view(torch.uint8)


@pytest.mark.parametrize("rule", RULES)
def test_mxfp8_is_torchaos_for_every_bf16_amax(rule):
    """All 65536 BF16 numbers as a block's amax, the other 31 some parts of it. Two differences, both torchao's: an
    infinity under rceil has code 254 there, and 247 under the others; and a code of 0 is 2^-127, but torchao divides by
    2^-126, or under rceil by 1."""
    x = BF16[:, None] * torch.linspace(-1, 1, mxfp8.BLOCK).bfloat16()
    ours, theirs = mxfp8.to_mx(x, rule), torchao_mx(x, rule)
    infinite, nan = BF16.isinf(), BF16.isnan()
    assert torch.equal(ours[1][~infinite], theirs[1][~infinite])
    assert set(theirs[1][infinite].ravel().tolist()) == {254 if rule == "rceil" else 247}
    usual = ~nan & ~infinite & (ours[1] > 0).ravel()
    assert int(usual.sum()) > 60_000 and torch.equal(ours[0][usual], theirs[0][usual])
    largest = x[(ours[1] == 0).ravel() & (ours[0] != theirs[0]).any(1)].abs().max().float()
    assert 0 < largest < 2.0**-117


@pytest.mark.parametrize("rule", RULES)
def test_mxfp8_is_torchaos_for_float32_but_where_its_log2_rounds(rule):
    places = torch.tensor([1.0, 1.5, 1.75, 1.9375]) * 2.0 ** torch.arange(-110, 110)[:, None]
    near = [places, *(torch.nextafter(places, torch.tensor(to)) for to in (0.0, math.inf))]
    x = torch.zeros(3 * places.numel(), mxfp8.BLOCK)
    x[:, 7] = torch.cat(near).ravel()
    off = mxfp8.to_mx(x, rule)[1].int() - torchao_mx(x, rule)[1].int()
    if rule != "rceil":
        assert not off.any()
    else:  # ceil(log2(amax / 448)) for an amax just above 448 2^k
        above = torch.cat([torch.zeros(2 * places.numel()), (torch.arange(4) == 2).repeat(len(places))]).bool()
        assert set(off.ravel().tolist()) == {0, 1} and not off[~above].any()


@pytest.mark.parametrize("rule", RULES)
def test_a_way_there_and_back(rule):
    """A value that comes back is off by half a step at most, or saturated; and the second way changes nothing where
    nothing saturates."""
    x = torch.randn(64, 200, generator=torch.Generator().manual_seed(0))
    back = mxfp8.rounded(x, rule)
    scale = mxfp8.scale_of(mxfp8.to_mx(x, rule)[1]).repeat_interleave(32, 1)[:, :200]
    inside = x.abs() <= 448 * scale
    assert ((back - x).abs() <= torch.maximum(x.abs() / 16, scale * 2.0**-10))[inside].all()
    assert inside.all() == (rule in ("ceil", "rceil")) and (back.abs() == 448 * scale)[~inside].all()
    assert torch.equal(mxfp8.rounded(back, rule), back)
