"""FP8 by brute force, for tests: the nearest value of a format, and scales, written without the week's own code."""

import torch
from torch import Tensor

from labkit.precision.probe import decibel

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def quantise(x: Tensor, fmt: str) -> Tensor:
    """The nearest value of `fmt` to each x, saturating; fp32. By torch's cast, of what was clamped."""
    return x.float().clamp(-LARGEST[fmt], LARGEST[fmt]).to(DTYPES[fmt]).float()


def scale_for(amax: Tensor, fmt: str, power_of_two: bool = False) -> Tensor:
    """largest / amax, fp32; 1 where amax is 0 or not finite."""
    scale = (LARGEST[fmt] / amax.double()).clamp(max=torch.finfo(torch.float32).max)
    scale = torch.exp2(torch.frexp(scale)[1] - 1.0) if power_of_two else scale
    return torch.where((amax > 0) & amax.isfinite(), scale, 1.0).float()


def sqnr(reference: Tensor, approximation: Tensor) -> float:
    """Signal to quantisation noise in dB, in FP64."""
    reference, approximation = reference.detach().double(), approximation.detach().double()
    return decibel(float(reference.square().sum()), float((reference - approximation).square().sum()))
