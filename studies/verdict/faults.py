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
from typing import Literal

import torch
from torch import Tensor, nn

from labkit.precision.broken import eagerly
from labkit.precision.torchao_backend import float8_utils
from labkit.train.loop import Hook, Loop

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MANTISSA = 23  # bits of FP32's


@dataclass(frozen=True)
class Fault:
    kind: Literal["none", "stale", "unscaled", "mantissa", "flush", "e5m2"]
    dose: float = 0.0  # in the fault's own unit, 0 where it has none
    blocks: int = 4  # so many of the first ones have it; the others are right


class Spoilt(Hook):
    """Spoils a training: its linears, those of a "broken" backend, round as the fault says."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def on_start(self, loop: Loop) -> None:
        for name, linear in loop.backend.modules.items():
            own = self.fault if int(name.split(".")[1]) < self.fault.blocks else Fault("none")
            linear.rounded = Rounding(own, linear).rounded


@dataclass
class Rounding:
    """What one linear does to its tensors: its fault, and the scales of the last steps by slot."""

    fault: Fault
    linear: nn.Module
    earlier: dict[str, deque[Tensor]] = field(default_factory=dict)

    def rounded(self, slot: str, x: Tensor) -> Tensor:
        """Pass x through FP8 and the fault, for a slot: "input", "weight" or "grad"."""
        kind, gradient, values = self.fault.kind, slot == "grad", x.detach().float()
        if kind == "mantissa" and not gradient:
            return cut(values, int(self.fault.dose)).to(x.dtype)
        if kind == "flush" and gradient:
            values = torch.where(values.abs() < self.fault.dose * values.abs().amax(), 0.0, values)
        dtype = E5M2 if gradient or kind == "e5m2" else E4M3
        scale = float8_utils().tensor_to_scale(values, dtype)
        if kind == "unscaled" and not gradient:
            scale = torch.full_like(scale, 2.0**-self.fault.dose)
        if kind == "stale":
            scale = self._delayed(slot, scale)
        return eagerly(values, dtype, scale).to(x.dtype)

    def _delayed(self, slot: str, scale: Tensor) -> Tensor:
        """Return the scale of `dose` steps ago, or the first there was. Evaluations use it and leave none."""
        queue = self.earlier.setdefault(slot, deque(maxlen=int(self.fault.dose) + 1))
        if self.linear.training:
            queue.append(scale)
        return queue[0] if queue else scale


def cut(x: Tensor, bits: int) -> Tensor:
    """Round FP32 x to `bits` bits of mantissa, halves away from zero; the exponent keeps its range."""
    drop = MANTISSA - bits
    return ((x.contiguous().view(torch.int32) + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)
