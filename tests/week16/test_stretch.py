"""The stretch solutions beside a library: torchao on this CPU, bit for bit; and where it differs, why."""

import math

import pytest
import torch

from week16_fp8.stretch import mxfp8, nvfp4

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


# ---- 16.12


def torchao_nvfp4(x, S):
    """(codes, scales) by torchao."""
    theirs = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor", reason="torchao is not installed")
    from torchao.prototype.mx_formats.kernels import unpack_uint4

    scales, packed = theirs.nvfp4_quantize(x, per_tensor_scale=S)
    return unpack_uint4(packed).view(x.shape), scales.view(len(x), -1).float()


def test_e2m1_is_torchaos_for_every_bf16_number():
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels", reason="torchao is not installed")
    x = BF16[~BF16.isnan()].float()
    assert torch.equal(nvfp4.to_e2m1(x), kernels.f32_to_f4_unpacked(x.clamp(-6, 6)))
    assert torch.equal(nvfp4.to_e2m1(nvfp4.from_e2m1(torch.arange(16))), torch.arange(16).byte())


@pytest.mark.parametrize("power", [0, -20])
def test_nvfp4_is_torchaos_for_every_bf16_amax(power):
    """All BF16 numbers whose scale is a normal E4M3 number, as a block's amax. Below, torchao's scale stays 2^-6."""
    amax = BF16[(BF16 >= 6 * 2.0**-6) & (BF16 <= 6 * 448)].float()
    x = 2.0**power * amax[:, None] * torch.linspace(-1, 1, 16).bfloat16()
    ours = nvfp4.to_nvfp4(x)
    codes, scales = torchao_nvfp4(x, ours.S)
    assert len(amax) > 1800 and torch.equal(ours.scales.float(), scales) and torch.equal(ours.codes_RC, codes)


def test_nvfp4_differs_from_torchaos_only_where_a_scale_is_no_normal_number():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(256, 512, generator=draw) * torch.exp2(3 * torch.randn(256, 1, generator=draw))
    ours = nvfp4.to_nvfp4(x)
    codes, scales = torchao_nvfp4(x, ours.S)
    small = ours.scales.float() < 2.0**-6
    assert 0 < int(small.sum()) < small.numel() / 4 and (scales[small] == 2.0**-6).all()
    assert torch.equal(ours.scales.float()[~small], scales[~small])
    apart = (ours.codes_RC != codes) & ~nvfp4.spread(small, x, False).bool()
    assert apart.double().mean() < 1e-5  # they multiply by a quotient, we divide: a half may be a rounding away


def test_stochastic_rounding_keeps_the_mean_and_nearest_does_not():
    y = torch.linspace(-6, 6, 121)
    draw = torch.Generator().manual_seed(0)
    u = torch.rand(20_000, len(y), generator=draw)
    mean = nvfp4.from_e2m1(nvfp4.to_e2m1(y.expand_as(u), u)).mean(0)
    assert (mean - y).abs().max() < 6 * 1 / 20_000**0.5, "six standard deviations: half a step of 2 is 1"
    assert (nvfp4.from_e2m1(nvfp4.to_e2m1(y)) - y).abs().max() > 0.9


def test_the_transform_cancels():
    draw = torch.Generator().manual_seed(0)
    a, b, signs = torch.randn(5, 48, generator=draw), torch.randn(7, 48, generator=draw), torch.tensor([1.0, -1.0] * 8)
    turned = nvfp4.transformed(a, signs) @ nvfp4.transformed(b, signs).t()
    torch.testing.assert_close(turned, a @ b.t(), rtol=0, atol=1e-5)
