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

`broken.py` reuses all of this and spoils one thing at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._triton import has_triton

from labkit.precision.base import Backend
from labkit.precision.blocks import BLOCK, BlockProduct, block_scale, on_grid
from labkit.precision.formats import E4M3, E5M2, Format, cast, quantise, scale_for

SLOTS = ("input", "weight", "grad")


@dataclass(frozen=True)
class Numerics:
    """What is done to the three operands. The methods are what a broken recipe overrides."""

    forward: Format = E4M3  # x and w
    backward: Format = E5M2  # dy

    def format(self, slot: str) -> Format:
        return self.backward if slot == "grad" else self.forward

    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        """The scale for x, fp32 scalar. `frozen` belongs to the module and outlives the step."""
        return scale_for(amax(x), self.format(slot))

    def product(self, x_MK: Tensor, w_NK: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        """x @ w^T, [M, N], whose backward rounds as the forward does."""
        return _EmulatedProduct.apply(x_MK, w_NK, self, frozen)

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
    """A power-of-two scale for each block: see labkit.precision.blocks."""

    backward: Format = E4M3

    def scale(self, slot: str, x: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        """One scale per element, x's shape [M, N]."""
        return block_scale(x, square=slot == "weight")

    def product(self, x_MK: Tensor, w_NK: Tensor, frozen: dict[str, Tensor]) -> Tensor:
        return BlockProduct.apply(x_MK, w_NK)

    def flags(self) -> dict[str, Any]:
        return {**super().flags(), "scaling": "block", "block": BLOCK, "power_of_two": True}


class EmulatedLinear(nn.Linear):
    """nn.Linear whose three products take operands rounded to FP8."""

    numerics: Numerics

    def forward(self, x: Tensor) -> Tensor:
        y = self.numerics.product(x.reshape(-1, self.in_features), self.weight, self.frozen)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {type(self.numerics).__name__}"

    @classmethod
    def like(cls, linear: nn.Linear, numerics: Numerics) -> EmulatedLinear:
        """An EmulatedLinear that holds `linear`'s own Parameter objects."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        new.numerics, new.frozen = numerics, {}
        return new


class _EmulatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_MK: Tensor, w_NK: Tensor, numerics: Numerics, frozen: dict[str, Tensor]) -> Tensor:
        x8_MK, s_x = rounded(x_MK, "input", numerics, frozen)
        w8_NK, s_w = rounded(w_NK, "weight", numerics, frozen)
        ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)
        ctx.numerics, ctx.frozen = numerics, frozen
        return unscaled(x8_MK @ w8_NK.t(), s_x, s_w)

    @staticmethod
    def backward(ctx, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        x8_MK, w8_NK, s_x, s_w = ctx.saved_tensors
        dy8_MN, s_dy = rounded(dy_MN, "grad", ctx.numerics, ctx.frozen)
        dx_MK = unscaled(dy8_MN @ w8_NK, s_dy, s_w) if ctx.needs_input_grad[0] else None
        dw_NK = unscaled(dy8_MN.t() @ x8_MK, s_dy, s_x) if ctx.needs_input_grad[1] else None
        return dx_MK, dw_NK, None, None


def rounded(x: Tensor, slot: str, numerics: Numerics, frozen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(FP8 values of x * s in x's own dtype, s)."""
    s, fmt = numerics.scale(slot, x, frozen), numerics.format(slot)
    # The same values all three ways (`formats.check_torch`, tests). A GPU's cast is fast, a CPU's is ten times slower
    # than the arithmetic.
    if not x.is_cuda:
        return quantise(x.float() * s, fmt).to(x.dtype), s
    return (one_kernel() if casts_in_triton(x.device) else through)(x.detach(), s, fmt), s


@functools.cache
def casts_in_triton(device: torch.device) -> bool:
    """Can a compiled kernel cast to FP8 here? Triton does for compute capability 8.9 (Ada) and up; older GPUs, for
    which emulation is the only FP8, cast eagerly."""
    return has_triton() and torch.cuda.get_device_capability(device) >= (8, 9)


def through(x: Tensor, s: Tensor, fmt: Format) -> Tensor:
    """x * s as the format holds it, in x's own dtype, by the device's cast."""
    return cast(x.float() * s, fmt).to(x.dtype)


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


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


class Emulated(Backend):
    """Correct FP8, emulated. `tensorwise`, as torchao's: E4M3 forward, E5M2 gradients, one current scale per tensor.
    `block`, as Transformer Engine's: E4M3 throughout, a power-of-two scale per block of 128.

    Under `block` the parameters can be FP8 too. They are emulated like the rest: an FP32 tensor that holds nothing but
    values of the FP8 grid, so the BF16 copy that FSDP2 gathers is exact, and twice as large as codes would be.
    """

    name = "emulated"
    recipes = ("tensorwise", "block")
    parameter_recipes = ("block",)
    # Compiled whole by torch 2.11 for a GPU, all its gradients came out as zero (eager and compiled for a CPU they are
    # right), and the stale recipe keeps something from one forward to the next: it stays eager.
    compiles = "between"
    note = "emulated: FP8 values multiplied in BF16 (exact products, FP32 sums); says nothing about FP8's speed"

    def numerics(self, recipe: str) -> Numerics:
        return BlockNumerics() if recipe == "block" else Numerics()

    def numbers(self) -> dict[str, Any]:
        return self.numerics(self.recipe).flags()

    def quantise_parameters(self) -> dict[nn.Parameter, Tensor]:
        masters = {module.weight: module.weight.detach().clone() for module in self.modules.values()}
        for parameter, master in masters.items():
            self.store(parameter, master)
        return masters

    @torch.no_grad()
    def store(self, parameter: Tensor, master: Tensor) -> None:
        _local(parameter).copy_(on_grid(_local(master), square=True))

    def values(self, parameter: Tensor) -> Tensor:
        return parameter.detach().clone()

    def holds_fp8(self, parameter: Tensor) -> bool:
        x = _local(parameter.detach())
        return torch.equal(on_grid(x, square=True), x)

    def replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return EmulatedLinear.like(linear, self.numerics(recipe))

    def scaling(self, linear: nn.Module, slot: str, x: Tensor) -> tuple[Format, Tensor] | None:
        return linear.numerics.format(slot), linear.numerics.scale(slot, x, dict(linear.frozen))

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{name}.{slot}": s.cpu() for name, m in self.modules.items() for slot, s in m.frozen.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, module in self.modules.items():
            module.frozen.update(
                {slot: state[f"{name}.{slot}"].to(module.weight.device) for slot in SLOTS if f"{name}.{slot}" in state}
            )
