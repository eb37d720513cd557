"""Week 16's reference as an arm of `lab compare`: correct FP8 by hand, anywhere, where the week's tasks are solved.

The arithmetic is that of week16_fp8.linear (one scale per tensor) and week16_fp8.blockwise (blocks of 128). Here are
the module that holds a decoder's own weights, the backend that converts a model to it, and FP8 parameters.

As long as a part that it stands on is a blank, the arm is skipped with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.precision.base import Availability, Backend, FP8Parameters
from labkit.precision.flags import compact
from labkit.precision.student import try_out
from week16_fp8 import casts
from week16_fp8.blockwise import BlockProduct, block_scale, on_grid
from week16_fp8.casts import BLOCKWISE, DTYPES, HYBRID, Recipe
from week16_fp8.linear import FP8Product, numbers, rounding
from week16_fp8.stretch import mxfp8, nvfp4

SIGNS = torch.tensor([1, -1, -1, 1, 1, 1, -1, 1, -1, 1, -1, -1, -1, -1, 1, 1.0])  # NVFP4's, drawn once


@dataclass(frozen=True)
class Numerics:
    """What is done to the three operands: one scale per tensor, found from the tensor itself."""

    recipe: Recipe = HYBRID

    def scale(self, slot: str, x: Tensor) -> Tensor | None:
        """The scale for x, fp32 scalar; None: the format has no cast to be probed by."""
        epsilon, powers = self.recipe.epsilon.get(slot, 0.0), self.recipe.powers(slot)
        return casts.scale_of(casts.amax(x), self.recipe.format(slot), epsilon=epsilon, power_of_two=powers)

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        """x @ w^T, [M, N], whose backward rounds as the forward does."""
        return FP8Product.apply(x_MK, w_NK, *rounding(w_NK.detach(), "weight", self.recipe), self.recipe)

    def flags(self) -> dict[str, Any]:
        return compact(numbers(self.recipe))


@dataclass(frozen=True)
class BlockNumerics(Numerics):
    """A scale for each block: see week16_fp8.blockwise."""

    recipe: Recipe = BLOCKWISE

    def scale(self, slot: str, x: Tensor) -> Tensor:
        """One scale per element, x's shape [M, N]."""
        return block_scale(x, slot == "weight", self.recipe.epsilon.get(slot, 0.0), self.recipe.powers(slot))

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        return BlockProduct.apply(x_MK, w_NK, self.recipe)


@dataclass(frozen=True)
class MXNumerics(Numerics):
    """MXFP8, a power of two for each 32 values along the sum: see week16_fp8.stretch.mxfp8."""

    recipe: Recipe = BLOCKWISE  # E4M3 throughout
    rule: str = "rceil"  # how the power of two is chosen

    def scale(self, slot: str, x: Tensor) -> Tensor:
        """One scale per element, x's shape [M, N]: of the rounding along its rows."""
        return 1 / mxfp8.scale_of(mxfp8.to_mx(x, self.rule)[1]).repeat_interleave(mxfp8.BLOCK, 1)[:, : x.shape[1]]

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        return mxfp8.MXProduct.apply(x_MK, w_NK, self.rule)

    def flags(self) -> dict[str, Any]:
        return super().flags() | {"scaling": "block", "block": mxfp8.BLOCK, "power_of_two": True}


@dataclass(frozen=True)
class FP4Numerics(Numerics):
    """NVFP4 with its three tricks: see week16_fp8.stretch.nvfp4. torch has no cast to E2M1 to probe it by."""

    def scale(self, slot: str, x: Tensor) -> None:
        return None

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        return nvfp4.NVFP4Product.apply(x_MK, w_NK, nvfp4.Tricks(signs=SIGNS))

    def flags(self) -> dict[str, Any]:
        e2m1 = {"forward": "e2m1", "backward": "e2m1"}
        return super().flags() | e2m1 | {"scaling": "block", "block": nvfp4.BLOCK, "power_of_two": False}


class EmulatedLinear(nn.Linear):
    """nn.Linear whose three products take operands rounded to FP8."""

    numerics: Numerics

    def forward(self, x: Tensor) -> Tensor:
        y = self.numerics.product(x.reshape(-1, self.in_features), self.weight)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {type(self.numerics).__name__}"

    @classmethod
    def like(cls, linear: nn.Linear, numerics: Numerics) -> EmulatedLinear:
        """An EmulatedLinear that holds `linear`'s own Parameter objects."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        new.numerics = numerics
        return new


class GridParameters(FP8Parameters):
    """FP8 parameters, emulated like the rest: an FP32 tensor that holds nothing but values of the FP8 grid, so the BF16
    copy that FSDP2 gathers is exact, and twice as large as codes would be."""

    def __init__(self, modules: dict[str, Any], recipe: Recipe = BLOCKWISE) -> None:
        self.modules, self.epsilon = modules, recipe.epsilon.get("weight", 0.0)

    def quantise(self) -> dict[nn.Parameter, Tensor]:
        masters = {module.weight: module.weight.detach().clone() for module in self.modules.values()}
        for parameter, master in masters.items():
            self.store(parameter, master)
        return masters

    @torch.no_grad()
    def store(self, parameter: Tensor, master: Tensor) -> None:
        _local(parameter).copy_(on_grid(_local(master), True, self.epsilon))

    def values(self, parameter: Tensor) -> Tensor:
        return parameter.detach().clone()

    def hold(self, parameter: Tensor) -> bool:
        x = _local(parameter.detach())
        return torch.equal(on_grid(x, True, self.epsilon), x)


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


NUMERICS = {"tensorwise": Numerics(), "block": BlockNumerics(), "mxfp8": MXNumerics(), "nvfp4": FP4Numerics()}


class Emulated(Backend):
    """Correct FP8, emulated. `tensorwise`, as torchao's: E4M3 forward, E5M2 gradients, one current scale per tensor.
    `block`, as Transformer Engine's: E4M3 throughout, a power-of-two scale per block of 128; the parameters can be FP8
    too. `mxfp8` and `nvfp4`: those of tasks 16.11 and 16.12."""

    name = "emulated"
    recipes = tuple(NUMERICS)
    # Compiled whole by torch 2.11 for a GPU, all its gradients came out as zero (eager and compiled for a CPU they are
    # right): it stays eager.
    compiles = "between"
    note = "emulated: FP8 values multiplied in BF16 (exact products, FP32 sums); says nothing about FP8's speed"

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        return try_out(self.name, lambda linear: self._replace(linear, recipe), torch.device("cpu"))

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return EmulatedLinear.like(linear, self._numerics(recipe))

    def _numerics(self, recipe: str | None) -> Numerics:
        numerics = NUMERICS[recipe or "tensorwise"]
        return replace(numerics, recipe=numerics.recipe.configured(self._epsilon, self._scales))

    def _rounding(self, linear: EmulatedLinear, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor] | None:
        scale = linear.numerics.scale(slot, x)
        return None if scale is None else (DTYPES[linear.numerics.recipe.format(slot)], scale)

    def _numbers(self) -> dict[str, Any]:
        return self._numerics(self.recipe).flags()

    def _fp8_parameters(self) -> FP8Parameters:
        return GridParameters(self.modules, self._numerics(self.recipe).recipe)
