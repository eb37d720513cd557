"""FP8: two number formats, what rounding to them does, and how to say how much it hurt.

A floating-point code is sign, exponent e and mantissa m: (-1)^s * 2^(e - bias) * (1 + m / 2^M), or, for e = 0,
(-1)^s * 2^(1 - bias) * m / 2^M (the subnormals, evenly spaced down to zero). Eight bits leave two useful splits
(arXiv:2209.05433, table 1):

                  exponent   mantissa   bias   largest   smallest normal   smallest subnormal   step near 1
    E4M3             4          3         7       448         2^-6               2^-9              1/8
    E5M2             5          2        15     57344         2^-14              2^-16             1/4

E4M3 is finer, E5M2 reaches further: so activations and weights go to E4M3 and gradients, which spread over more powers
of two, to E5M2. E4M3 has no infinity and one NaN per sign (the all-ones code), which is why it reaches 448 and not 240.

Neither reaches far enough for a raw tensor. So a tensor is multiplied by a scale first and divided by it afterwards:

    scale = largest / amax(|x|)         x_fp8 = round(clamp(x * scale))         x ~ x_fp8 / scale

The table above is ours, not torch's: a saturating cast of 1000 to E4M3 gives NaN on torch 2.11 and 448 on 2.13. So
`cast` clamps before it casts, and `check_torch` compares torch's casts with this file, code by code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SQNR_EXACT = 200.0  # dB; stands for "no error at all", so that a record never holds an infinity


@dataclass(frozen=True)
class Format:
    """One FP8 format. `max`, `min_normal` and `min_subnormal` follow from the field sizes, and are stated anyway."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    min_normal: float
    min_subnormal: float
    has_infinity: bool
    dtype: torch.dtype

    @property
    def saturates_above(self) -> float:
        """Values beyond this round to a code that does not exist: half a step above `max`."""
        step = 2.0 ** (_exponent(self.max) - self.mantissa_bits)
        return self.max + step / 2


E4M3 = Format("e4m3", 4, 3, 7, 448.0, 2.0**-6, 2.0**-9, False, torch.float8_e4m3fn)
E5M2 = Format("e5m2", 5, 2, 15, 57344.0, 2.0**-14, 2.0**-16, True, torch.float8_e5m2)
FORMATS = {f.name: f for f in (E4M3, E5M2)}


def quantise(x: Tensor, fmt: Format) -> Tensor:
    """The nearest value of `fmt` to each x, ties to the even mantissa, saturating at +-max. fp32, any shape.

    Plain fp32 arithmetic, no float8 dtype: the reference that casts are tested against, and on CPUs ten times as fast
    as torch's. A NaN stays NaN; an infinity saturates.
    """
    y = x.to(torch.float32, copy=True).clamp_(-fmt.max, fmt.max)
    # 2^floor(log2|y|), read off the exponent field; in the subnormal range the exponent stays at the smallest normal's.
    binade = (y.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=fmt.min_normal)
    step = binade.mul_(2.0**-fmt.mantissa_bits)
    return y.div_(step).round_().mul_(step)  # exact: step is a power of two, and round is half-to-even


def cast(x: Tensor, fmt: Format) -> Tensor:
    """x as a float8 tensor, saturating on every torch version: clamp first, then cast."""
    return x.clamp(-fmt.max, fmt.max).to(fmt.dtype)


def scale_for(amax: Tensor, fmt: Format, power_of_two: bool = False) -> Tensor:
    """The scale that puts amax on the largest code: max / amax. fp32, amax's shape; 1 where amax is 0, inf or NaN.

    `power_of_two` rounds down to a power of two, so that scaling itself never rounds. A tiny amax would ask for a scale
    beyond fp32: it gets the largest finite one. A block of zeros must not give 0 / 0.
    """
    scale = (fmt.max / amax.double()).clamp(max=torch.finfo(torch.float32).max).float()
    scale = torch.where((amax > 0) & amax.isfinite(), scale, torch.ones_like(scale))
    return torch.exp2(torch.floor(torch.log2(scale))) if power_of_two else scale


def sqnr(reference: Tensor, approximation: Tensor) -> float:
    """Signal to quantisation noise, dB: 10 log10(sum reference^2 / sum (reference - approximation)^2).

    Rounding to E4M3 costs about 31.5 dB, to E5M2 about 25.5, to BF16 about 56; every 6 dB is a factor of two in error.
    """
    reference, approximation = reference.detach().double(), approximation.detach().double()
    return decibel(float(reference.square().sum()), float((reference - approximation).square().sum()))


def decibel(signal: float, noise: float) -> float:
    """10 log10(signal / noise), held within +-SQNR_EXACT so that it is always a finite number."""
    if noise == 0 and signal == signal:
        return SQNR_EXACT
    ratio = signal / noise if signal >= 0 and noise > 0 else 0.0  # a NaN on either side: nothing survived
    if ratio <= 0 or ratio != ratio:
        return -SQNR_EXACT
    return max(-SQNR_EXACT, min(SQNR_EXACT, 10 * float(torch.log10(torch.tensor(ratio, dtype=torch.float64)))))


def decode(fmt: Format) -> Tensor:
    """The values of the 256 codes by the formula at the top. [256] fp64; NaN and infinity where the format has them."""
    code = torch.arange(256)
    exponent_of, mantissa_of = 2**fmt.exponent_bits, 2**fmt.mantissa_bits
    sign = 1.0 - 2.0 * (code >> 7)
    exponent, mantissa = (code >> fmt.mantissa_bits) % exponent_of, code % mantissa_of
    normal = exponent > 0
    value = torch.where(normal, 1 + mantissa / mantissa_of, mantissa / mantissa_of).double()
    value = sign * value * torch.pow(2.0, (exponent.clamp(min=1) - fmt.bias).double())
    top = exponent == exponent_of - 1
    if fmt.has_infinity:
        value = torch.where(top & (mantissa == 0), sign * torch.inf, value)
        return torch.where(top & (mantissa > 0), torch.nan, value)
    return torch.where(top & (mantissa == mantissa_of - 1), torch.nan, value)


def check_torch(fmt: Format) -> list[str]:
    """How torch's float8 dtype differs from the table, one sentence each; an empty list is the good answer."""
    wrong = []
    codes = torch.arange(256, dtype=torch.uint8).view(fmt.dtype).to(torch.float32).double()
    ours = decode(fmt)
    different = ~((codes == ours) | (codes.isnan() & ours.isnan()))
    if different.any():
        at = int(different.nonzero()[0])
        wrong.append(f"code {at:#04x} of {fmt.name} is {float(ours[at])} by the format and {float(codes[at])} in torch")
    # Every value, every midpoint between neighbours (the ties), and a little to either side of it.
    grid = ours[ours.isfinite()].unique().float()
    middle = (grid[1:] + grid[:-1]) / 2
    probe = torch.cat(
        [
            grid,
            middle,
            torch.nextafter(middle, grid[1:]),
            torch.nextafter(middle, grid[:-1]),
            torch.tensor([1e30, -1e30]),
        ]
    )
    got, want = cast(probe, fmt).to(torch.float32), quantise(probe, fmt)
    if (got != want).any():
        at = int((got != want).nonzero()[0])
        wrong.append(
            f"{float(probe[at])} becomes {float(want[at])} by rounding to nearest even in {fmt.name} "
            f"and {float(got[at])} in torch {torch.__version__}"
        )
    return wrong


def _exponent(x: float) -> int:
    return int(torch.frexp(torch.tensor(x))[1]) - 1
