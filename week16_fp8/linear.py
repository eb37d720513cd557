"""An FP8 linear: three GEMMs, each of rounded operands (task 16.5).

Training a linear is three matrix products, and FP8 training rounds both operands of each (arXiv:2209.05433):

    y  = x @ w^T          [M,K] @ [K,N] -> [M,N]
    dx = dy @ w           [M,N] @ [N,K] -> [M,K]
    dw = dy^T @ x         [N,M] @ [M,K] -> [N,K]

With one scale per tensor the scales come out of the sums, and are divided out once, at the end:

    a8 = round(a * s_a),  b8 = round(b * s_b)        a @ b  ~  (a8 @ b8) / (s_a s_b)

So there are three roundings, one for each of x, w, dy, and each is used twice: what the backward multiplies is what the
forward had rounded. The formats: "hybrid" is E4M3 for x and w and E5M2 for dy; "E4M3 only" is what block scaling
allows.

What is *not* FP8: the accumulator (FP32), the result (x's dtype), and the weight that the optimizer changes. An update
is about 1e-3 of a weight, and E4M3's step is 1/8 to 1/16 of it: added in FP8, most updates would round to nothing. So
`weight` stays FP32 (the master), and its FP8 copy is made anew when it has changed. It changes once a step; a step of
several micro-batches uses it several times. Transformer Engine's way to say so, and ours:

    is_first_microbatch = True     round the weight, keep the result
                          False    take what was kept
                          None     round it, keep nothing

How far off may the result be? Rounding to nearest with M mantissa bits moves a number by at most u = 2^-(M+1) of
itself, as long as it is no subnormal, and by at most half the smallest subnormal, eta, otherwise: |a8/s - a| <= u|a| +
eta/s. Each product of the sum is then off by the sum of its factors' errors and their product, and with e_a = u_a|a| +
eta_a/s_a

    |y8 - y|  <=  e_x @ |w|^T  +  |x| @ e_w^T  +  e_x @ e_w^T        (and FP32's own roundings, K 2^-24 |x| @ |w|^T)

for y, and in the same way for dx and dw. The checks hold your gradients to that bound, entry by entry: derive it once
with a pencil. (It is a worst case. Typical errors add like a random walk: sqrt(K) of them instead of K.)

What is emulated here is the storage alone. The rounded values are held in the tensor's own type, where each is exact,
and go through an ordinary matrix product: the result is that of an FP8 product with FP32 accumulation, up to the order
of the sum. x may be BF16 while the master is FP32, as under FSDP2: the product is then BF16's, rounded by 2^-8 before
and after the scales are divided out, a sixteenth of what E4M3 may do. There is no gain in speed: that is task
16.10's, which multiplies the codes themselves.

Legend: M tokens, N outputs, K inputs. x_MK, w_NK, dy_MN; x8_MK the rounded values of x * s_x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from week16_fp8 import casts
from week16_fp8.blockwise import BLOCK, BlockProduct, block_scale
from week16_fp8.casts import DTYPES, HYBRID, Recipe


class PlainProduct(torch.autograd.Function):
    """y = x @ w^T and its gradients, with nothing rounded: the worked example of an autograd pair."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, w_NK)
        return x_MK @ w_NK.t()  # y = x @ w^T     [M,K] @ [K,N] -> [M,N]

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor, Tensor]:
        x_MK, w_NK = ctx.saved_tensors
        return dy_MN @ w_NK, dy_MN.t() @ x_MK  # dx = dy @ w     dw = dy^T @ x


def rounding(x: Tensor, slot: str, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Task 16.5. (the FP8 values of x * s in x's own dtype, s): one scale for the tensor, from the tensor itself.

    slot: "input", "weight" or "grad": which format, which epsilon, and which kind of scale (`recipe.powers`) the recipe
    has for it. s: fp32 scalar.
    """
    ### BEGIN SOLUTION 16.5 round an operand
    fmt = recipe.format(slot)
    epsilon = recipe.epsilon.get(slot, 0.0)
    s = casts.scale_of(casts.amax(x), fmt, epsilon=epsilon, power_of_two=recipe.powers(slot))  # largest / amax
    return casts.rounded(x, s, fmt), s
    ### END SOLUTION


class FP8Product(torch.autograd.Function):
    """y = x @ w^T from rounded operands, with one scale per tensor.

    w_NK is the master, through which the gradient goes; w8_NK and s_w are what `rounding` made of it, now or for an
    earlier micro-batch.
    """

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, w8_NK: Tensor, s_w: Tensor, recipe: Recipe) -> Tensor:
        """y [M, N] in x's dtype. Save for backward what it needs, and no more."""
        ### BEGIN SOLUTION 16.5 the forward product
        x8_MK, s_x = rounding(x_MK, "input", recipe)
        w8_NK = w8_NK.to(x_MK.dtype)  # exact: an FP8 value
        ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)
        ctx.recipe, ctx.master = recipe, w_NK.dtype
        return casts.unscaled(x8_MK @ w8_NK.t(), s_x, s_w)  # y = (x8 @ w8^T) / (s_x s_w)     [M,K] @ [K,N]
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K] in x's dtype, dw [N, K] in the master's, None, None, None); None for what needs no gradient."""
        ### BEGIN SOLUTION 16.5 the backward products
        x8_MK, w8_NK, s_x, s_w = ctx.saved_tensors
        dy8_MN, s_dy = rounding(dy_MN, "grad", ctx.recipe)  # once, for both products
        dx_MK = dw_NK = None
        if ctx.needs_input_grad[0]:
            dx_MK = casts.unscaled(dy8_MN @ w8_NK, s_dy, s_w)  # dx = (dy8 @ w8) / (s_dy s_w)     [M,N] @ [N,K]
        if ctx.needs_input_grad[1]:
            dw_NK = casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)  # dw = (dy8^T @ x8) / (s_dy s_x)
        return dx_MK, dw_NK, None, None, None
        ### END SOLUTION


def numbers(recipe: Recipe) -> dict[str, Any]:
    """A recipe as the flags of a checkpoint (labkit.precision.flags), by operand (given)."""
    slots = {"input": "input", "weight": "weight", "gradient": "grad"}
    return {
        "forward": recipe.forward,
        "backward": recipe.backward,
        "scaling": "block" if recipe.blocks else "tensor",
        "block": BLOCK if recipe.blocks else None,
        "power_of_two": {operand: recipe.powers(slot) for operand, slot in slots.items()},
        "amax_epsilon": {operand: float(recipe.epsilon.get(slot, 0.0)) for operand, slot in slots.items()},
    }


class FP8Linear(nn.Module):
    """nn.Linear in FP8: the same constructor, the same `weight` [N, K] and `bias` [N], and a recipe.

    With a recipe of blocks the product is `BlockProduct`, which rounds for itself: nothing is kept between micro-
    batches.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        recipe: Recipe = HYBRID,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.recipe = in_features, out_features, recipe
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self._kept: tuple[Tensor, Tensor] | None = None
        limit = 1 / math.sqrt(in_features)  # as nn.Linear
        nn.init.uniform_(self.weight, -limit, limit)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -limit, limit)

    def rounded_weight(self, is_first_microbatch: bool | None) -> tuple[Tensor, Tensor]:
        """Task 16.5. (w8_NK, s_w) of `self.weight`, as the table at the top says; `self._kept` is there to keep it in.

        RuntimeError for False before any True: there is nothing to take.
        """
        ### BEGIN SOLUTION 16.5 the weight, kept over micro-batches
        if is_first_microbatch is False:
            if self._kept is None:
                raise RuntimeError("is_first_microbatch=False, and no micro-batch of this step came first")
            return self._kept
        w8_NK, s_w = rounding(self.weight.detach(), "weight", self.recipe)
        if is_first_microbatch:
            self._kept = w8_NK, s_w
        return w8_NK, s_w
        ### END SOLUTION

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """x [..., K] -> y [..., N], in x's dtype."""
        x_MK = x.reshape(-1, self.in_features)
        if self.recipe.blocks:
            y_MN = BlockProduct.apply(x_MK, self.weight.to(x.dtype), self.recipe)
        else:
            w8_NK, s_w = self.rounded_weight(is_first_microbatch)
            y_MN = FP8Product.apply(x_MK, self.weight, w8_NK, s_w, self.recipe)
        y = y_MN.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def scaling(self, slot: str, x_RC: Tensor) -> tuple[torch.dtype, Tensor]:
        """(torch's dtype, scale) in force for an operand: what a probe asks (labkit.precision.student)."""
        fmt = self.recipe.format(slot)
        epsilon = self.recipe.epsilon.get(slot, 0.0)
        if self.recipe.blocks:
            return DTYPES[fmt], block_scale(x_RC, slot == "weight", epsilon, self.recipe.powers(slot))
        s = casts.scale_of(casts.amax(x_RC), fmt, epsilon=epsilon, power_of_two=self.recipe.powers(slot))
        return DTYPES[fmt], s

    @staticmethod
    def scaled(amax_epsilon: Mapping[str, float], scales: Mapping[str, str]) -> Recipe:
        """The recipe that [precision] amax_epsilon and scales of a configuration ask for (labkit.precision.student)."""
        return HYBRID.configured(amax_epsilon, scales)

    def numbers(self) -> dict[str, Any]:
        """What a checkpoint says of this linear (labkit.precision.student)."""
        return numbers(self.recipe)

    def extra_repr(self) -> str:
        kind = "blocks" if self.recipe.blocks else f"{self.recipe.forward}/{self.recipe.backward}"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {kind}"
