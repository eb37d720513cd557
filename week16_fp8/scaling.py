"""Scaling: putting a tensor into the little range that FP8 has, and what is lost there (task 16.2).

Neither format reaches far enough for a raw tensor. So a tensor is multiplied by a scale first and divided by it
afterwards:

    scale = largest / amax          amax = max |x|          x8 = round(x * scale)          x ~ x8 / scale

amax then lies on the largest code: nothing saturates, and everything else lies as high as it can. (Transformer Engine
and torchao keep 1 / scale beside the codes, DeepSeek's kernels call that one the scale: read which one is meant.)

What can go wrong with so small a formula, and what this course does about it:

  margin           the scale is made smaller by 2^margin, as head room for values that grow before the next look
  epsilon          an amax below it counts as epsilon. A block of tiny values (a masked token, a dead feature) would
                   otherwise get an enormous scale, and pure noise would be carried with full precision. In LoongForge
                   and Transformer Engine there are three: for inputs, weights and gradients (`amax_epsilon`)
  amax = 0         without an epsilon: scale 1. 0 / 0 is how a zero block becomes NaN
  amax not finite  scale 1: no scale helps an infinity, and a scale of 0 or NaN would spoil the other values, too
  tiny amax        the quotient leaves float32: the largest finite number in its place
  power of two     rounded down to one (a scale rounded up would push amax over the edge). Multiplying by it rounds
                   nothing, and it fits into 8 exponent bits ("e8m0"); it costs up to half of the range

What rounding costs. A number y = |x| scale lands on a grid of steps 2^(binade - M), `binade` being floor(log2 y), but
not below the lowest normal binade. If it lies anywhere in its step with equal chance, the error's mean square is

    step^2 / 12                 inside the range                     (a uniform distribution of width `step`)
    y^2                         below half the smallest subnormal    (flushed to zero: the error is the number)
    (y - largest)^2             above the largest value              (saturated)

and the signal-to-quantization-noise ratio is SQNR = 10 log10(sum y^2 / sum error^2), in decibel. Because floating-point
steps grow with the number, the ratio hardly depends on the scale as long as everything is inside: a plateau. How high
is it for M mantissa bits, and how much is one more bit worth? Beyond its two ends are cliffs: saturation on one side,
the subnormals and zero on the other. Before you trust a formula, predict with it: on which side is the cliff steeper?
"""

from __future__ import annotations

import numpy as np

from week16_fp8.formats import FORMATS

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def int8_scale(amax: np.ndarray) -> np.ndarray:
    """The scale for int8, float32, of amax's shape: the worked example.

    The grid of int8 is even, -127 to 127 in steps of 1: amax goes to 127. Where amax is 0 the division would give
    infinity: those get 1.
    """
    known = amax > 0
    return np.where(known, 127 / np.where(known, amax, 1), 1).astype(np.float32)


def scale_from_amax(
    amax: np.ndarray, fmt: str, *, margin: int = 0, epsilon: float = 0.0, power_of_two: bool = False
) -> np.ndarray:
    """Task 16.2. The scale for each amax.

    Args:
        amax: float32, any shape, also (): 0, infinite and NaN values are allowed.
        fmt: "e4m3" or "e5m2".
        margin: the scale is smaller by 2^margin.
        epsilon: a finite amax below it counts as epsilon.
        power_of_two: the largest power of two that is not above the quotient.

    Returns:
        float32, of amax's shape; positive and finite, whatever came in.
    """
    ### BEGIN SOLUTION 16.2 scale from amax
    amax = np.asarray(amax, dtype=np.float64)
    held = np.where(np.isfinite(amax), np.maximum(amax, epsilon), 0)  # max(amax, epsilon); 0: no scale helps
    known = held > 0
    scale = FORMATS[fmt].largest / (np.where(known, held, 1) * 2.0**margin)  # largest / (amax 2^margin)
    scale = np.minimum(scale, LARGEST_FLOAT32)
    if power_of_two:
        scale = np.exp2(np.frexp(scale)[1] - 1.0)  # scale = f 2^k with f in [1/2, 1): 2^(k-1) <= scale
    return np.where(known, scale, 1).astype(np.float32)
    ### END SOLUTION


def predicted_sqnr(x: np.ndarray, scale: float, fmt: str) -> float:
    """Task 16.2. The SQNR in dB that the theory above predicts for rounding x * scale to `fmt`, without rounding it.

    Args:
        x: float32 of any shape, finite, not all 0.
        scale: what x is multiplied by.
        fmt: "e4m3" or "e5m2".
    """
    ### BEGIN SOLUTION 16.2 predicted SQNR
    f = FORMATS[fmt]
    y = np.abs(x.astype(np.float64)) * scale
    binade = np.maximum(np.frexp(y)[1] - 1, 1 - f.bias)  # floor(log2 y), not below the lowest normal binade
    noise = np.exp2(2.0 * (binade - f.mantissa_bits)) / 12  # step^2 / 12
    noise = np.where(y < f.smallest_subnormal / 2, y**2, noise)
    noise = np.where(y > f.largest, (y - f.largest) ** 2, noise)
    return float(10 * np.log10(np.sum(y**2) / np.sum(noise)))
    ### END SOLUTION
