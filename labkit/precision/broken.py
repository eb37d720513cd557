"""The negative controls: FP8 recipes that are wrong on purpose. A comparison's verdict counts only if it rejects one.

Each is torchao's tensorwise recipe (E4M3 forward, E5M2 for gradients) with one mistake that people make:

    e5m2               both formats are E5M2: activations and weights lose a mantissa bit. The subtle one
    unscaled           the scale is 1, a bare `x.to(float8)`: small weights become subnormal, small gradients zero
    unscaled-forward   the same for activations and weights only. The loss hardly shows it, the weights' SQNR does
    stale              the scale is never updated after the first step: tensors that grow saturate, gradients vanish
    inverse            the scale is upside down, amax / max, in both directions: all becomes zero

Only the rounding is FP8: x, w and dy pass through a float8 cast and come back, and an ordinary linear multiplies them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._triton import has_triton

from labkit.precision.base import Backend
from labkit.precision.probe import saturating
from labkit.precision.recipes import FP8_UNITS
from labkit.precision.torchao_backend import dynamic_flags, float8_utils

MISTAKES = ("e5m2", "unscaled", "unscaled-forward", "stale", "inverse")


class BrokenLinear(nn.Linear):
    """nn.Linear that makes a mistake with its input, its weight and its output's gradient."""

    mistake: str  # one of MISTAKES
    frozen: dict[str, Tensor]  # "stale": the first scales by slot; they outlive the step

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(Forward.apply(x, self, "input"), Forward.apply(self.weight, self, "weight"))
        y = Backward.apply(y, self)
        return y if self.bias is None else y + self.bias

    @classmethod
    def like(cls, linear: nn.Linear, mistake: str) -> "BrokenLinear":
        """A BrokenLinear that holds `linear`'s own Parameter objects."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        new.mistake, new.frozen = mistake, {}
        return new

    def rounding(self, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor]:
        """(float8 dtype, the fp32 scalar that x is multiplied by before the cast) for "input", "weight" or "grad"."""
        mistake, (forward, backward) = self.mistake, formats(self.mistake)
        dtype = backward if slot == "grad" else forward
        if mistake == "unscaled" or (mistake == "unscaled-forward" and slot != "grad"):
            return dtype, torch.ones((), device=x.device)
        if mistake == "stale" and slot in self.frozen:
            return dtype, self.frozen[slot]
        scale = float8_utils().tensor_to_scale(x.detach(), dtype)
        return dtype, scale.reciprocal() if mistake == "inverse" else scale

    def rounded(self, slot: str, x: Tensor) -> Tensor:
        """x through FP8, in its own type."""
        dtype, scale = self.rounding(slot, x)
        if self.mistake == "stale":
            self.frozen[slot] = scale
        return (one_kernel() if casts_in_triton(x.device) else eagerly)(x.detach(), dtype, scale)


def formats(mistake: str) -> tuple[torch.dtype, torch.dtype]:
    """The float8 dtypes of activations and weights, and of gradients."""
    return torch.float8_e5m2 if mistake == "e5m2" else torch.float8_e4m3fn, torch.float8_e5m2


class Forward(torch.autograd.Function):
    """x through `linear.rounded`; its gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Any, slot: str) -> Tensor:
        return linear.rounded(slot, x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        return dx, None, None


class Backward(torch.autograd.Function):
    """y as it is; its gradient through `linear.rounded`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, linear: Any) -> Tensor:
        ctx.linear = linear
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.linear.rounded("grad", dy), None


def eagerly(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """x scaled, cast, and scaled back, in x's own type."""
    return (saturating(x.float() * scale, dtype).float() / scale).to(x.dtype)


@functools.cache
def one_kernel(compiler: str = "inductor") -> Callable[[Tensor, torch.dtype, Tensor], Tensor]:
    """`eagerly` compiled: one kernel in place of five that each read and write the tensor; the same values."""
    return torch.compile(eagerly, backend=compiler, dynamic=True)


@functools.cache
def casts_in_triton(device: torch.device) -> bool:
    """Can a compiled kernel cast to FP8 here? Where the GPU has FP8 units; older GPUs and CPUs cast eagerly."""
    return device.type == "cuda" and has_triton() and torch.cuda.get_device_capability(device) >= FP8_UNITS.least


class Broken(Backend):
    """FP8 with one mistake, named by the recipe. `Broken("stale")` has that recipe alone: backend "broken-stale"."""

    # Compiled whole by torch 2.11 for a GPU, all gradients of such a linear came out as zero (eager and compiled for a
    # CPU they are right), and `stale` keeps something from one forward to the next: it stays eager.
    compiles = "between"
    note = "wrong on purpose, and emulated: FP8 values multiplied in BF16; it must be rejected"

    def __init__(self, only: str | None = None) -> None:
        super().__init__()
        self.name = f"broken-{only}" if only else "broken"
        self.recipes = (only,) if only else MISTAKES

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return BrokenLinear.like(linear, recipe)

    def _rounding(self, linear: BrokenLinear, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor]:
        return linear.rounding(slot, x)

    def _numbers(self) -> dict[str, Any]:
        return dynamic_flags(*formats(self.recipe or self.recipes[0]))

    def _save(self) -> dict[str, Tensor]:
        return {f"{name}.{slot}": s.cpu() for name, m in self.modules.items() for slot, s in m.frozen.items()}

    def _load(self, state: dict[str, Tensor]) -> None:
        for key, scale in state.items():
            name, _, slot = key.rpartition(".")
            if name in self.modules:
                self.modules[name].frozen[slot] = scale.to(self.modules[name].weight.device)
