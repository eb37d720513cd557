"""FP8 recipes that are wrong on purpose.

A comparison that has never rejected anything proves nothing by accepting. So a broken arm runs along with the others,
on the same data from the same weights, and the verdict counts only if it is rejected. Each recipe is the correct one of
`emulated.py` with one thing spoilt, and each stands for a mistake that people make:

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
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.precision.emulated import Emulated, Numerics, amax
from labkit.precision.formats import E5M2, scale_for


class E5M2Everywhere(Numerics):
    def __init__(self) -> None:
        super().__init__(forward=E5M2, backward=E5M2)


class Unscaled(Numerics):
    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        return torch.ones((), device=x.device)


class UnscaledForward(Numerics):
    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        return super().scale(slot, x, frozen) if slot == "grad" else torch.ones((), device=x.device)


class Stale(Numerics):
    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        if slot not in frozen:
            frozen[slot] = super().scale(slot, x, frozen)
        return frozen[slot]


class Inverse(Numerics):
    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        return scale_for(amax(x), self.format(slot)).reciprocal()


RECIPES: dict[str, type[Numerics]] = {
    "e5m2": E5M2Everywhere,
    "unscaled": Unscaled,
    "unscaled-forward": UnscaledForward,
    "stale": Stale,
    "inverse": Inverse,
}


class Broken(Emulated):
    """FP8 with one mistake, named by the recipe. `Broken("stale")` has that recipe alone: backend "broken-stale"."""

    note = "broken on purpose, and emulated: FP8 values multiplied in BF16; it must be rejected"
    parameter_recipes = ()

    def __init__(self, only: str | None = None) -> None:
        super().__init__()
        self.name = f"broken-{only}" if only else "broken"
        self.recipes = (only,) if only else tuple(RECIPES)

    def numerics(self, recipe: str) -> Numerics:
        return RECIPES[recipe]()
