"""FP8 that is wrong by a dose: from nothing that anyone would see to a training that fails.

Each is the correct recipe (one scale per tensor, found anew each time; E4M3 forward, E5M2 for gradients) with one thing
spoilt, in the first `blocks` blocks of the decoder:

    stale      scales are those of `dose` steps ago, as delayed scaling without a margin has them
    unscaled   the scale of activations and weights is 2^-dose, whatever they hold: 1 for dose 0
    mantissa   activations and weights keep `dose` bits of mantissa; E4M3 keeps 3
    flush      gradients below `dose` times the largest of their tensor become zero
    e5m2       activations and weights in the gradients' format
"""

from collections import deque
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor

from labkit.precision.probe import saturating
from labkit.precision.torchao_backend import float8_utils

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MANTISSA = 23  # bits of FP32's


@dataclass(frozen=True)
class Fault:
    kind: Literal["none", "stale", "unscaled", "mantissa", "flush", "e5m2"]
    dose: float = 0.0  # in the fault's own unit, 0 where it has none
    blocks: int = 4  # so many of the first ones have it; the others are right


@dataclass
class Rounding:
    """What one linear does to its tensors: its fault, and the scales of the last steps by slot."""

    fault: Fault
    earlier: dict[str, deque[Tensor]] = field(default_factory=dict)

    def rounded(self, slot: str, x: Tensor, training: bool) -> Tensor:
        """Pass x [runs, rows, columns] through FP8 and the fault, each run with scales of its own, for a slot."""
        kind, gradient, values = self.fault.kind, slot == "grad", x.detach().float()
        if kind == "mantissa" and not gradient:
            return cut(values, int(self.fault.dose)).to(x.dtype)
        if kind == "flush" and gradient:
            largest = values.flatten(1).abs().amax(1)[:, None, None]
            values = torch.where(values.abs() < self.fault.dose * largest, 0.0, values)
        dtype = E5M2 if gradient or kind == "e5m2" else E4M3
        scale = scales(values, dtype)
        if kind == "unscaled" and not gradient:
            scale = torch.full_like(scale, 2.0**-self.fault.dose)
        if kind == "stale":
            scale = self._delayed(slot, scale, training)
        return (saturating(values * scale, dtype).float() / scale).to(x.dtype)

    def _delayed(self, slot: str, scale: Tensor, training: bool) -> Tensor:
        """Return the scale of `dose` steps ago, or the first there was. Evaluations use it and leave none."""
        queue = self.earlier.setdefault(slot, deque(maxlen=int(self.fault.dose) + 1))
        if training:
            queue.append(scale)
        return queue[0] if queue else scale


def scales(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return torchao's scale of each run's tensor, [runs, 1, 1]: with its runs as rows, x has one scale a row."""
    by_row = import_module("torchao.float8.config").ScalingGranularity.AXISWISE
    rows = x.flatten(1)
    scale = float8_utils().tensor_to_scale(rows, dtype, scaling_granularity=by_row, axiswise_dim=-1)
    return scale.float().view(-1, 1, 1)


def cut(x: Tensor, bits: int) -> Tensor:
    """Round FP32 x to `bits` bits of mantissa, halves away from zero; the exponent keeps its range."""
    drop = MANTISSA - bits
    return ((x.contiguous().view(torch.int32) + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)
