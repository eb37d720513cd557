"""What the notebook's last section runs: the stretch tasks' formats on real tensors. A CPU, seconds."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from week16_fp8.stretch import mxfp8

RULES = ("floor", "ceil", "even", "rceil")


def sqnr(x: Tensor, back: Tensor) -> float:
    """dB."""
    return float(10 * torch.log10(x.double().square().sum() / (back.double() - x.double()).square().sum()))


class Rule(NamedTuple):
    """Of one tensor in MXFP8 by one rule: the SQNR in dB; the shares of the blocks whose amax saturates, and whose
    amax is below half of the largest element."""

    dB: float
    saturated: float
    low: float


def by_rule(x: np.ndarray) -> dict[str, Rule]:
    """x [rows, columns] in MXFP8 along its rows, by each rule. Blocks of zeros are left out."""
    x_RC, found = torch.from_numpy(x), {}
    amax = F.pad(x_RC, (0, -x_RC.shape[1] % mxfp8.BLOCK)).unflatten(1, (-1, mxfp8.BLOCK)).abs().amax(2)
    for rule in RULES:
        elements, codes = mxfp8.to_mx(x_RC, rule)
        lies = (amax / mxfp8.scale_of(codes))[amax > 0]
        high, low = (lies > mxfp8.LARGEST).double().mean(), (lies <= mxfp8.LARGEST / 2).double().mean()
        found[rule] = Rule(sqnr(x_RC, mxfp8.from_mx(elements, codes)), float(high), float(low))
    return found
