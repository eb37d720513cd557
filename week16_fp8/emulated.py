"""FP8 training of a linear, written out: what every FP8 backend does, in forty lines that run anywhere.

A linear has three matrix products, and FP8 training rounds both operands of each (arXiv:2209.05433):

    y  = x @ w^T          [M,K] @ [K,N] -> [M,N]       x, w in E4M3
    dx = dy @ w           [M,N] @ [N,K] -> [M,K]       dy in E5M2, w as rounded in the forward
    dw = dy^T @ x         [N,M] @ [M,K] -> [N,K]       dy as rounded above, x as rounded in the forward

with one scale per tensor, found from the tensor itself ("current" scaling):

    s = max / amax(|x|)       x8 = round(x * s)        y = (x8 @ w8^T) / (s_x * s_w)

What is emulated is the storage only. The rounded values are held in the tensor's own type and multiplied by an ordinary
matrix product: each FP8 value is a BF16 value too, and the product of two of them is exact in the FP32 accumulator. So
the result is that of an FP8 product with FP32 accumulation, up to the order of the sum, and up to roundings to
BF16 (2^-9 each, sixteen times finer than E4M3's) where the product leaves the accumulator and the scales are divided
out afterwards. There is no gain in speed. On a CPU it is twice as fast as `torch._scaled_mm`, which computes in FP32
there.

`Emulated` makes a backend of it: an arm of `lab compare`, skipped with a sentence as long as a part here is a hole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.precision.base import Availability, Backend, FP8Parameters
from labkit.precision.broken import casts_in_triton
from labkit.precision.student import tried
from week16_fp8.blockwise import BLOCK, BlockProduct, block_scale, on_grid
from week16_fp8.formats import E4M3, E5M2, Format, quantise
from week16_fp8.scaling import scale_for


@dataclass(frozen=True)
class Numerics:
    """What is done to the three operands: one scale per tensor, found from the tensor itself."""

    forward: Format = E4M3  # x and w
    backward: Format = E5M2  # dy

    def format(self, slot: str) -> Format:
        return self.backward if slot == "grad" else self.forward

    def scale(self, slot: str, x: Tensor) -> Tensor:
        """The scale for x, fp32 scalar."""
        return scale_for(amax(x), self.format(slot))

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        """x @ w^T, [M, N], whose backward rounds as the forward does."""
        return EmulatedProduct.apply(x_MK, w_NK, self)

    def flags(self) -> dict[str, Any]:
        return {
            "forward": self.forward.name,
            "backward": self.backward.name,
            "scaling": "tensor",
            "block": None,
            "power_of_two": False,
            "amax_epsilon": 0.0,
        }


@dataclass(frozen=True)
class BlockNumerics(Numerics):
    """A power-of-two scale for each block: see week16_fp8.blockwise."""

    backward: Format = E4M3

    def scale(self, slot: str, x: Tensor) -> Tensor:
        """One scale per element, x's shape [M, N]."""
        return block_scale(x, square=slot == "weight")

    def product(self, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        return BlockProduct.apply(x_MK, w_NK)

    def flags(self) -> dict[str, Any]:
        return {**super().flags(), "scaling": "block", "block": BLOCK, "power_of_two": True}


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


class EmulatedProduct(torch.autograd.Function):
    """y = x @ w^T with both operands of all three products rounded, one scale per tensor."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, numerics: Numerics) -> Tensor:
        ### BEGIN SOLUTION 16.5 the forward product
        x8_MK, s_x = rounded(x_MK, "input", numerics)
        w8_NK, s_w = rounded(w_NK, "weight", numerics)
        ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)
        ctx.numerics = numerics
        return unscaled(x8_MK @ w8_NK.t(), s_x, s_w)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        ### BEGIN SOLUTION 16.5 the backward products
        x8_MK, w8_NK, s_x, s_w = ctx.saved_tensors
        dy8_MN, s_dy = rounded(dy_MN, "grad", ctx.numerics)
        dx_MK = unscaled(dy8_MN @ w8_NK, s_dy, s_w) if ctx.needs_input_grad[0] else None
        dw_NK = unscaled(dy8_MN.t() @ x8_MK, s_dy, s_x) if ctx.needs_input_grad[1] else None
        return dx_MK, dw_NK, None
        ### END SOLUTION


def rounded(x: Tensor, slot: str, numerics: Numerics) -> tuple[Tensor, Tensor]:
    """(FP8 values of x * s in x's own dtype, s)."""
    s, fmt = numerics.scale(slot, x), numerics.format(slot)
    # The same values all three ways (tests). A GPU's cast is fast; on a CPU the arithmetic is.
    if not x.is_cuda:
        return quantise(x.float() * s, fmt).to(x.dtype), s
    return (one_kernel() if casts_in_triton(x.device) else through)(x.detach(), s, fmt), s


def through(x: Tensor, s: Tensor, fmt: Format) -> Tensor:
    """x * s as the format holds it, in x's own dtype, by the device's cast."""
    return (x.float() * s).clamp(-fmt.max, fmt.max).to(fmt.dtype).to(x.dtype)


@functools.cache
def one_kernel(compiler: str = "inductor") -> Callable[[Tensor, Tensor, Format], Tensor]:
    """`through` compiled: five kernels that each read and write the tensor become one. Nothing is fused with what comes
    before or after, so the values stay those of eager mode."""
    return torch.compile(through, backend=compiler, dynamic=True)


def unscaled(y: Tensor, s_a: Tensor, s_b: Tensor) -> Tensor:
    """y / (s_a * s_b), in place. The scales are divided out one by one: their product can leave FP32's range."""
    return y.mul_(s_a.reciprocal()).mul_(s_b.reciprocal())


def amax(x: Tensor) -> Tensor:
    """max |x| in fp32; without the temporary that x.abs().max() would make."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).float()


class GridParameters(FP8Parameters):
    """FP8 parameters, emulated like the rest: an FP32 tensor that holds nothing but values of the FP8 grid, so the BF16
    copy that FSDP2 gathers is exact, and twice as large as codes would be."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules

    def quantise(self) -> dict[nn.Parameter, Tensor]:
        masters = {module.weight: module.weight.detach().clone() for module in self.modules.values()}
        for parameter, master in masters.items():
            self.store(parameter, master)
        return masters

    @torch.no_grad()
    def store(self, parameter: Tensor, master: Tensor) -> None:
        _local(parameter).copy_(on_grid(_local(master), square=True))

    def values(self, parameter: Tensor) -> Tensor:
        return parameter.detach().clone()

    def hold(self, parameter: Tensor) -> bool:
        x = _local(parameter.detach())
        return torch.equal(on_grid(x, square=True), x)


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


NUMERICS = {"tensorwise": Numerics(), "block": BlockNumerics()}


class Emulated(Backend):
    """Correct FP8, emulated. `tensorwise`, as torchao's: E4M3 forward, E5M2 gradients, one current scale per tensor.
    `block`, as Transformer Engine's: E4M3 throughout, a power-of-two scale per block of 128; the parameters can be FP8
    too."""

    name = "emulated"
    recipes = tuple(NUMERICS)
    _parameter_recipes = ("block",)
    # Compiled whole by torch 2.11 for a GPU, all its gradients came out as zero (eager and compiled for a CPU they are
    # right): it stays eager.
    compiles = "between"
    note = "emulated: FP8 values multiplied in BF16 (exact products, FP32 sums); says nothing about FP8's speed"

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        return tried(self.name, lambda linear: self._replace(linear, recipe), torch.device("cpu"))

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return EmulatedLinear.like(linear, NUMERICS[recipe])

    def _rounding(self, linear: EmulatedLinear, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor]:
        return linear.numerics.format(slot).dtype, linear.numerics.scale(slot, x)

    def _numbers(self) -> dict[str, Any]:
        return NUMERICS[self.recipe or "tensorwise"].flags()

    def _fp8_parameters(self) -> FP8Parameters:
        return GridParameters(self.modules) if self.recipe == "block" else super()._fp8_parameters()
