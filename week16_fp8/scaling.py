"""Scaling: putting a tensor into the little range that FP8 has.

Neither format reaches far enough for a raw tensor. So a tensor is multiplied by a scale first and divided by it
afterwards:

    scale = largest / amax(|x|)         x_fp8 = round(clamp(x * scale))         x ~ x_fp8 / scale
"""

from __future__ import annotations

import torch
from torch import Tensor

from week16_fp8.formats import Format


def scale_for(amax: Tensor, fmt: Format, power_of_two: bool = False) -> Tensor:
    """The scale that puts amax on the largest code: max / amax. fp32, amax's shape; 1 where amax is 0, inf or NaN.

    `power_of_two` rounds down to a power of two, so that scaling itself never rounds. A tiny amax would ask for a scale
    beyond fp32: it gets the largest finite one. A block of zeros must not give 0 / 0.
    """
    ### BEGIN SOLUTION 16.2 scale from amax
    scale = (fmt.max / amax.double()).clamp(max=torch.finfo(torch.float32).max).float()
    scale = torch.where((amax > 0) & amax.isfinite(), scale, torch.ones_like(scale))
    return torch.exp2(torch.floor(torch.log2(scale))) if power_of_two else scale
    ### END SOLUTION
