"""FP8: two number formats, from the bits (task 16.1).

A floating-point code is a sign bit, E exponent bits e and M mantissa bits m, and stands for

    (-1)^sign * 2^(e - bias) * (1 + m / 2^M)        e > 0:  the normal numbers
    (-1)^sign * 2^(1 - bias) * (m / 2^M)            e = 0:  the subnormals, evenly spaced down to zero

Eight bits leave two useful splits (Micikevicius et al. 2022, arXiv:2209.05433, table 1):

                  E    M   bias   largest   smallest normal   smallest subnormal   step near 1
    E4M3          4    3     7       448         2^-6               2^-9              1/8
    E5M2          5    2    15     57344         2^-14              2^-16             1/4

E4M3 is finer, E5M2 reaches further: so activations and weights go to E4M3, and gradients, which spread over more powers
of two, to E5M2. E5M2 gives its largest exponent to infinity (m = 0) and NaN (m > 0), as IEEE 754 does. E4M3 has no
infinity, and spends on NaN one code of each sign, S.1111.111: that is why it reaches 448 and not 240.

Read the positive codes as whole numbers 0, 1, 2, ...: a larger code has a larger value. A binade is all numbers of one
exponent. Its values are evenly spaced, and the next binade's are twice as far apart. The subnormals are spaced as the
lowest binade is, and lie below it. So the code after the last subnormal is the first normal number, and the code after
the last of a binade is the first of the next. What follows for a number that is rounded up to the end of its binade?

What happens to what has no code is nobody's law: a bare cast of 1000 to E4M3 gives NaN on torch 2.11 and 448 on 2.13.
**Our table**, which is what the checks ask for:

    beyond the largest value, infinity too    the largest value with that sign: training saturates, it does not overflow
    between two codes                         the nearer; exactly half way: the one whose last mantissa bit is 0
    below half the smallest subnormal         zero with that sign
    NaN                                       0x7f with the sign bit of the NaN, in both formats

This file knows NumPy alone: the checks of 16.1 and 16.2 run where torch cannot be imported. NumPy has no BF16, so BF16
numbers travel as their bits, uint16.

Eight bits can be split in other ways, too. `FORMATS` says of each format how, and your functions take it from there:
the checks put a further one into it, with fields that are drawn.

Legend: E exponent bits, M mantissa bits; s, e, m the fields of one code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """One FP8 format. The last three follow from the field sizes, and are stated anyway."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinity: bool
    largest: float
    smallest_normal: float
    smallest_subnormal: float


FORMATS = {
    "e4m3": Format("e4m3", 4, 3, 7, False, 448.0, 2.0**-6, 2.0**-9),
    "e5m2": Format("e5m2", 5, 2, 15, True, 57344.0, 2.0**-14, 2.0**-16),
}


def bf16_to_float32(bits: np.ndarray) -> np.ndarray:
    """BF16 bits, uint16 of any shape, as float32: the worked example.

    BF16 is the upper half of a float32: the same 8 exponent bits, and the first 7 of 23 mantissa bits. So its value is
    that of the float32 whose lower half is 0.
    """
    return (bits.astype(np.uint32) << 16).view(np.float32)  # s eeeeeeee mmmmmmm 0000000000000000


def float32_to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 as BF16 bits, uint16, rounded to nearest even: the second worked example. No NaN among x.

    Of two neighbours the lower half tells which is nearer; a half (0x8000) goes to the even upper half. Adding
    0x7fff, and 1 more if the upper half is odd, carries into it exactly when it has to be the next one.
    """
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Task 16.1. The values of FP8 codes.

    Args:
        codes: uint8, any shape.
        fmt: "e4m3", "e5m2", or whatever else is in FORMATS.

    Returns:
        float32, of codes' shape; NaN and infinities where the format has them; -0.0 for the code 0x80.
    """
    ### BEGIN SOLUTION 16.1 decode
    f = FORMATS[fmt]
    sign = np.where(codes & 0x80, np.float32(-1), np.float32(1))
    e = (codes.astype(np.int32) & 0x7F) >> f.mantissa_bits
    m = codes.astype(np.int32) & (2**f.mantissa_bits - 1)
    fraction = (m + np.where(e > 0, 2**f.mantissa_bits, 0)).astype(np.float32)  # 2^M (1 + m / 2^M), or 2^M m / 2^M
    value = sign * np.ldexp(fraction, np.maximum(e, 1) - f.bias - f.mantissa_bits)
    top = e == 2**f.exponent_bits - 1
    if f.has_infinity:
        value = np.where(top & (m == 0), sign * np.float32(np.inf), value)  # S.11111.00
        return np.where(top & (m > 0), np.float32(np.nan), value)
    return np.where(top & (m == 2**f.mantissa_bits - 1), np.float32(np.nan), value)  # S.1111.111 alone
    ### END SOLUTION


def encode(x: np.ndarray, fmt: str) -> np.ndarray:
    """Task 16.1. The FP8 code of each number, by our table above.

    Args:
        x: float32 of any shape, or uint16: then they are the bits of BF16 numbers.
        fmt: "e4m3", "e5m2", or whatever else is in FORMATS.

    Returns:
        uint8, of x's shape. What holds for all x: `encode(decode(c, fmt), fmt)` is c for every code c of a finite
        number, and a larger x never has a smaller value.
    """
    ### BEGIN SOLUTION 16.1 encode
    f = FORMATS[fmt]
    x = bf16_to_float32(x) if x.dtype == np.uint16 else x
    sign = np.signbit(x).astype(np.uint8) << 7
    y = np.fmin(np.abs(x), np.float32(f.largest))  # fmin: a NaN becomes the largest value here, and NaN below
    binade = np.frexp(np.fmax(y, np.float32(f.smallest_normal)))[1] - 1  # floor(log2 y), not below the lowest normal
    steps = np.rint(np.ldexp(y, f.mantissa_bits - binade)).astype(np.int32)  # y / step, half to even; 0 .. 2^(M+1)
    # A normal number's count holds its implicit 2^M, which adds 1 to the exponent field; a subnormal's does not; and a
    # count of 2^(M+1) is the first code of the next binade.
    code = ((binade + f.bias - 1) << f.mantissa_bits) + steps
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint8) | sign
    ### END SOLUTION
