"""FP8 recipes that are wrong on purpose.

A comparison that has never rejected anything proves nothing by accepting. So a broken arm runs along with the others,
on the same data from the same weights, and the verdict counts only if it is rejected. Each recipe is torchao's
tensorwise one (its scales, E4M3 forward and E5M2 for gradients) with one thing spoilt, and each stands for a mistake
that people make:

`e5m2`       Both formats are E5M2: someone swapped the two, or set the gradient's format for everything. Activations
             and weights lose one mantissa bit: twice the rounding error, no overflow, no NaN, a loss curve that looks
             fine. The subtle one; Transformer Engine refuses it ("Pure E5M2 training is not supported").

`unscaled`   The scale is always 1: a bare `x.to(float8)`. The weights that write into the residual stream start around
             0.005 and fall into E4M3's subnormals; gradients of a mean loss over many tokens fall below E5M2's smallest
             value and become zero.

`unscaled-forward`   The same for activations and weights only; gradients are scaled. The loss hardly shows it, the
             SQNR of the weights does: the reason why SQNR stands beside the loss in the verdict.

`stale`      The scale is right at the first step and never updated: delayed scaling whose update is skipped (the update
             runs when the autocast region is left, and this one never is), or a CUDA graph that captured the scale as a
             constant. As the tensors grow they saturate; gradients shrink and fall off at the other end.

`inverse`    The scale is upside down, amax / max, in both directions, so that values still come back in the right
             units: the reciprocal that one library wants and the other has already taken. All becomes zero.

Only the rounding is FP8: x, w and dy pass through a float8 cast and come back to their own type, and an ordinary linear
multiplies them (no FP8 unit takes E5M2 twice). An FP8 value scaled back is rounded once more where it becomes BF16:
2^-9, sixteen times finer than E4M3's step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._triton import has_triton

from labkit.precision.base import Backend
from labkit.precision.probe import saturating
from labkit.precision.torchao_backend import float8_utils, kind_of

SLOTS = ("input", "weight", "grad")
Frozen = dict[str, Tensor]  # a module's first scales; it outlives the step


@dataclass(frozen=True)
class Mistake:
    """scale(slot, x, dtype, frozen): the fp32 scalar that x is multiplied by before the cast to dtype."""

    scale: Callable[[str, Tensor, torch.dtype, Frozen], Tensor]
    forward: torch.dtype = torch.float8_e4m3fn
    backward: torch.dtype = torch.float8_e5m2

    def rounding(self, slot: str, x: Tensor, frozen: Frozen) -> tuple[torch.dtype, Tensor]:
        dtype = self.backward if slot == "grad" else self.forward
        return dtype, self.scale(slot, x.detach(), dtype, frozen)


def _torchaos(slot: str, x: Tensor, dtype: torch.dtype, frozen: Frozen) -> Tensor:
    return float8_utils().tensor_to_scale(x, dtype)


def _one(slot: str, x: Tensor, dtype: torch.dtype, frozen: Frozen) -> Tensor:
    return torch.ones((), device=x.device)


def _one_forward(slot: str, x: Tensor, dtype: torch.dtype, frozen: Frozen) -> Tensor:
    return (_torchaos if slot == "grad" else _one)(slot, x, dtype, frozen)


def _the_first(slot: str, x: Tensor, dtype: torch.dtype, frozen: Frozen) -> Tensor:
    if slot not in frozen:
        frozen[slot] = _torchaos(slot, x, dtype, frozen)
    return frozen[slot]


def _upside_down(slot: str, x: Tensor, dtype: torch.dtype, frozen: Frozen) -> Tensor:
    return _torchaos(slot, x, dtype, frozen).reciprocal()


MISTAKES = {
    "e5m2": Mistake(_torchaos, forward=torch.float8_e5m2),
    "unscaled": Mistake(_one),
    "unscaled-forward": Mistake(_one_forward),
    "stale": Mistake(_the_first),
    "inverse": Mistake(_upside_down),
}


class BrokenLinear(nn.Linear):
    """nn.Linear that makes a mistake with its input, its weight and its output's gradient."""

    mistake: Mistake
    frozen: Frozen

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(_Forward.apply(x, self, "input"), _Forward.apply(self.weight, self, "weight"))
        y = _Backward.apply(y, self)
        return y if self.bias is None else y + self.bias

    @classmethod
    def like(cls, linear: nn.Linear, mistake: Mistake) -> BrokenLinear:
        """A BrokenLinear that holds `linear`'s own Parameter objects."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        new.mistake, new.frozen = mistake, {}
        return new


class _Forward(torch.autograd.Function):
    """x through FP8; its gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: BrokenLinear, slot: str) -> Tensor:
        return through_fp8(x, *linear.mistake.rounding(slot, x, linear.frozen))

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        return dx, None, None


class _Backward(torch.autograd.Function):
    """y as it is; its gradient through FP8."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, linear: BrokenLinear) -> Tensor:
        ctx.linear = linear
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return through_fp8(dy, *ctx.linear.mistake.rounding("grad", dy, ctx.linear.frozen)), None


def through_fp8(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """x scaled, cast, and scaled back, in x's own type."""
    return (one_kernel() if casts_in_triton(x.device) else eagerly)(x.detach(), dtype, scale)


def eagerly(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    return (saturating(x.float() * scale, dtype).float() / scale).to(x.dtype)


@functools.cache
def one_kernel(compiler: str = "inductor") -> Callable[[Tensor, torch.dtype, Tensor], Tensor]:
    """`eagerly` compiled: five kernels that each read and write the tensor become one. Nothing is fused with what comes
    before or after, so the values stay those of eager mode."""
    return torch.compile(eagerly, backend=compiler, dynamic=True)


@functools.cache
def casts_in_triton(device: torch.device) -> bool:
    """Can a compiled kernel cast to FP8 here? Triton does for compute capability 8.9 (Ada) and up; older GPUs cast
    eagerly, and so do CPUs."""
    return device.type == "cuda" and has_triton() and torch.cuda.get_device_capability(device) >= (8, 9)


class Broken(Backend):
    """FP8 with one mistake, named by the recipe. `Broken("stale")` has that recipe alone: backend "broken-stale"."""

    # Compiled whole by torch 2.11 for a GPU, all gradients of such a linear came out as zero (eager and compiled for a
    # CPU they are right), and `stale` keeps something from one forward to the next: it stays eager.
    compiles = "between"
    note = "broken on purpose, and emulated: FP8 values multiplied in BF16; it must be rejected"

    def __init__(self, only: str | None = None) -> None:
        super().__init__()
        self.name = f"broken-{only}" if only else "broken"
        self.recipes = (only,) if only else tuple(MISTAKES)

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return BrokenLinear.like(linear, MISTAKES[recipe])

    def _rounding(self, linear: BrokenLinear, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor]:
        return linear.mistake.rounding(slot, x, dict(linear.frozen))

    def _numbers(self) -> dict[str, Any]:
        mistake = MISTAKES[self.recipe or self.recipes[0]]
        return {
            "forward": kind_of(mistake.forward),
            "backward": kind_of(mistake.backward),
            "scaling": "tensor",
            "block": None,
            "power_of_two": False,
            "amax_epsilon": float(float8_utils().EPS),
        }

    def _save(self) -> dict[str, Tensor]:
        return {f"{name}.{slot}": s.cpu() for name, m in self.modules.items() for slot, s in m.frozen.items()}

    def _load(self, state: dict[str, Tensor]) -> None:
        for name, module in self.modules.items():
            for slot in SLOTS:
                if f"{name}.{slot}" in state:
                    module.frozen[slot] = state[f"{name}.{slot}"].to(module.weight.device)
