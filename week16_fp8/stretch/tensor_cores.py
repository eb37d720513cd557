"""The FP8 linear on tensor cores: the same numbers as 16.5's, from products that are twice as fast (task 16.10).

16.5 rounds to FP8 and multiplies in BF16: right, and slower than not rounding at all. `torch._scaled_mm` multiplies the
codes themselves. Before you read on, predict: an H100 has 989 TFLOP/s in BF16 and 1,979 in FP8. A training step is 85 %
matrix products. How many times as fast is the whole step?

Amdahl says 1 / (0.15 + 0.85 / 2) = 1.74. Measured at 1.14B parameters, good libraries gain 1.2 to 1.3. The rest goes
into bytes: an amax reads a tensor, a cast reads it again and writes the codes, and a product may want the codes in
another order.

**The order is the lesson.** A tensor core multiplies tiles along the summed dimension. 16-bit operands may lie either
way in memory, Hopper's instruction turns them as it reads. 8-bit operands may not: both must have the summed dimension
contiguous ("K-major"). Ask of each product what is summed, and of each operand how it lies:

    y  = x @ w^T       sums K     x [M,K] lies so             w [N,K] lies so
    dx = dy @ w        sums N     dy [M,N] lies so            w is needed as [K,N]
    dw = dy^T @ x      sums M     dy is needed as [N,M]       x is needed as [K,M]

Each of the three is read along its rows by one product and along its columns by another. So each is stored twice, and
whoever scales and casts should write both copies while the tile is at hand: 2 bytes read, 1 + 1 written. A second pass
to turn the codes would read and write them once more. (Blackwell's FP8 instruction takes either order; its MXFP8 does
not escape: a scale for 32 values along K is no scale along M.)

`torch._scaled_mm(a, b, scale_a=, scale_b=, out_dtype=, use_fast_accum=)` is one product:

    a [R,S] row-major, b [S,C] column-major: so both lie along S. `b8_CS.t()` is such a b, and copies nothing
    scale_a, scale_b: FP32, and *inverse* scales: what the sum is multiplied by
    E4M3 x E4M3, E5M2 x E4M3 and E4M3 x E5M2 are there; E5M2 x E5M2 is not
    R is free, S and C divide by 16: for dw that makes M, the number of tokens, divide by 16 as well
    use_fast_accum: Hopper's tensor cores add FP8 products with fewer bits than FP32 has. Without it partial sums are
        taken out of the tensor core from time to time and added in true FP32, which costs time. Guess: how far is a sum
        of 16,384 products off, of normal numbers and of positive ones? Measured on an H100: 0.2 % and 12 %; without it
        0.01 % and 0.06 %. y is summed over K, and has rounding noise of its own: fast. dx and dw are not: their error is
        added to the weights, step by step

A CPU computes all of it, slowly, and forgives what a GPU refuses: wrong orders, odd sizes, E5M2 x E5M2. The checks look
at the calls.

**One pass, not six.** Written in torch, amax, scale, clamp, cast and turn are kernels of their own; compiled for an
H100, three operands took three reductions and four casts, which write six copies. The next gain is beyond the linear: compiled together
with the block, the amax of x is computed where the norm before it writes x, and q, k and v, which have the same x, share
its codes. So nothing here may leave the graph: no `.item()`, no `if` on a value, no cache on the module.

`python -m week16_fp8.bench --parts linear` times it on a GPU. `lab compare` takes this linear for its variant `week16`
where the GPU has FP8 products, and 16.5's emulation elsewhere; the report says which.

Legend: M tokens, N outputs, K inputs. x8_MK: codes, stored along K; x8_KM: the same codes, stored along M. R, C: rows and
columns of any matrix; S: what a product sums over.
"""

from typing import Any

import torch
from torch import Tensor

from week16_fp8 import casts
from week16_fp8.casts import DTYPES, Recipe
from week16_fp8.formats import FORMATS
from week16_fp8.linear import FP8Linear

MULTIPLE = 16


def both_ways(x_RC: Tensor, slot: str, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Task 16.10. The FP8 codes of x * s, in FP32 and saturating as in 16.1, E5M2's too, in both orders, and 1 / s;
    s by 16.4's `scale_of` (16.5 is not needed).

    Args:
        x_RC: BF16 or FP32, any order in memory.
        slot: "input", "weight" or "grad": which format and which kind of scale the recipe has for it.

    Returns:
        (x8_RC contiguous [R, C], x8_CR contiguous [C, R], fp32 scalar); torch.float8_e4m3fn or float8_e5m2.
    """
    ### BEGIN SOLUTION 16.10 codes in both orders
    fmt = recipe.format(slot)
    epsilon = recipe.epsilon.get(slot, 0.0)
    s = casts.scale_of(casts.amax(x_RC), fmt, epsilon=epsilon, power_of_two=recipe.powers(slot))
    largest = FORMATS[fmt].largest
    x8_RC = (x_RC.float() * s).clamp(-largest, largest).to(DTYPES[fmt], memory_format=torch.contiguous_format)
    return x8_RC, x8_RC.t().contiguous(), s.reciprocal()
    ### END SOLUTION


def product(
    a8_RS: Tensor, b8_CS: Tensor, inverse_a: Tensor, inverse_b: Tensor, *, dtype: torch.dtype, fast: bool
) -> Tensor:
    """Task 16.10. a @ b^T [R, C] in `dtype`, summed over S: one `torch._scaled_mm`. Both operands lie along S.

    ValueError where S or C does not divide by 16: a CPU would go on, a GPU would not.
    """
    ### BEGIN SOLUTION 16.10 one product
    C, S = b8_CS.shape
    if S % MULTIPLE or C % MULTIPLE:
        raise ValueError(f"FP8 products need multiples of {MULTIPLE}: this one sums {S}, for {C} columns")
    return torch._scaled_mm(
        a8_RS, b8_CS.t(), scale_a=inverse_a, scale_b=inverse_b, out_dtype=dtype, use_fast_accum=fast
    )
    ### END SOLUTION


class TensorCoreProduct(torch.autograd.Function):
    """y = x @ w^T with three FP8 products; x [M, K] BF16 or FP32, w [N, K] the master, M, N and K multiples of 16."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, recipe: Recipe) -> Tensor:
        """y [M, N] in x's dtype. Save for backward what it multiplies, in FP8. ValueError if M does not divide by 16, as
        `product` says it of N and K: here, and not in the backward."""
        ### BEGIN SOLUTION 16.10 forward
        if x_MK.shape[0] % MULTIPLE:
            raise ValueError(f"{x_MK.shape[0]} tokens: dw sums over them, and they must divide by {MULTIPLE}")
        x8_MK, x8_KM, inverse_x = both_ways(x_MK, "input", recipe)
        w8_NK, w8_KN, inverse_w = both_ways(w_NK, "weight", recipe)
        kept_x = x8_KM if ctx.needs_input_grad[1] else None  # dw sums over M
        kept_w = w8_KN if ctx.needs_input_grad[0] else None  # dx sums over N
        ctx.save_for_backward(kept_x, kept_w, inverse_x, inverse_w)
        ctx.recipe, ctx.master = recipe, w_NK.dtype
        return product(x8_MK, w8_NK, inverse_x, inverse_w, dtype=x_MK.dtype, fast=True)  # [M,K] @ [K,N]
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K] in dy's dtype, dw [N, K] in the master's, None); None for what needs no gradient."""
        ### BEGIN SOLUTION 16.10 backward
        x8_KM, w8_KN, inverse_x, inverse_w = ctx.saved_tensors
        dy8_MN, dy8_NM, inverse_dy = both_ways(dy_MN, "grad", ctx.recipe)
        dx_MK = dw_NK = None
        if ctx.needs_input_grad[0]:
            dx_MK = product(dy8_MN, w8_KN, inverse_dy, inverse_w, dtype=dy_MN.dtype, fast=False)  # [M,N] @ [N,K]
        if ctx.needs_input_grad[1]:
            dw_NK = product(dy8_NM, x8_KM, inverse_dy, inverse_x, dtype=ctx.master, fast=False)  # [N,M] @ [M,K]
        return dx_MK, dw_NK, None
        ### END SOLUTION


class TensorCoreLinear(FP8Linear):
    """16.5's linear, multiplied in FP8 (given), with one scale per tensor: a recipe of blocks is not for it. The weight is
    rounded anew in each forward: kept copies would leave the compiled graph, and cost more than they save."""

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """x [..., K] -> y [..., N], in x's dtype."""
        y_MN = TensorCoreProduct.apply(x.reshape(-1, self.in_features), self.weight, self.recipe)
        y = y_MN.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)
