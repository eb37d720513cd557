"""The stretch solutions beside a library: torchao on this CPU, bit for bit; and where it differs, why."""

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
