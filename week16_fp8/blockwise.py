"""Block scaling: a scale for each 128 values, so that one outlier flattens its neighbours and not the whole tensor.

The recipe of DeepSeek-V3 (arXiv:2412.19437, section 3.3.2), as LoongForge and Transformer Engine's `Float8BlockScaling`
have it (task 16.4):

    activations, gradients    one scale per 1 x 128 values along the dimension that the product sums over
    weights                   one scale per 128 x 128
    format                    E4M3 throughout: with a scale so near, nobody needs E5M2's reach
    scales                    powers of two ("e8m0"), or any FP32 number

Why along the summed dimension. A GEMM adds up products a_k b_k over k, 128 of them before the sum leaves the tensor
core. If all 128 share one scale on each side, those two factors come out of the sum: sum_k (a_k / s)(b_k / t) is one
division. A scale that changed from k to k + 1 could not be taken out.

Now follow a linear through its three products, and ask of each operand which dimension is summed:

    y  = x @ w^T       [M,K] [K,N]    over K, features        dx = dy @ w      [M,N] [N,K]    over N
    dw = dy^T @ x      [N,M] [M,K]    over M, tokens

x is summed along its rows in the first product and along its columns in the third: a block of 1 x 128 features is of no
use to a sum over tokens. So the third product needs x^T and dy^T with blocks of 128 tokens, rounded again, from the
values before rounding. (A copy rounded twice along different blocks would carry both errors.) A weight's square blocks
are the same for w and for w^T: it is rounded once, and turned freely. That is what squares are for.

What a power of two buys: multiplying and dividing by it rounds nothing. A value on this grid, q * 2^k with q in E4M3 (4
significant bits), is also a BF16 value (8) and an FP32 value, exactly. So a weight that is on the grid can be stored,
sent and converted in any of the three formats and comes back as the same number; rounding it once more changes nothing.
That is what FP8 *parameters* stand on (labkit.train.optim), and why they exist for this recipe alone. The codes
may change: a block whose largest q was rounded down to 224 gets twice the scale the second time, and each of its q is
then twice as large. The values are the same.

Emulated: a product of operands that were rounded to the grid and scaled back. Its terms are exact in FP32, so it is the
FP8 product up to the order of the sum.

Legend: M tokens, N outputs, K inputs of a linear. x_MK, w_NK, dy_MN. R, C: rows and columns of any matrix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from week16_fp8 import casts
from week16_fp8.casts import BLOCKWISE, Recipe

BLOCK = 128


def row_amax(x_RC: Tensor) -> Tensor:
    """max |x| of every row, fp32 [R, 1]: the worked example. A "block" here is 1 x C, torchao's rowwise scaling."""
    return x_RC.abs().amax(dim=1, keepdim=True).float()


def spread(scale: Tensor, like: Tensor, square: bool) -> Tensor:
    """Scales by block, one for each element of `like` [R, C] (given): each is repeated over its block."""
    R, C = like.shape
    return scale.repeat_interleave(BLOCK if square else 1, 0)[:R].repeat_interleave(BLOCK, 1)[:, :C]


def block_scales(
    x_RC: Tensor, square: bool, fmt: str = "e4m3", *, epsilon: float = 0.0, power_of_two: bool = True
) -> Tensor:
    """Task 16.4. The scale of each block of x.

    Args:
        x_RC: any floating dtype. Blocks start at the first row and column; R and C need not divide by 128: the last
            blocks are then smaller.
        square: blocks of 128 x 128; otherwise of 1 x 128.
        epsilon, power_of_two: as in 16.2. A block of zeros has scale 1, one with a NaN or an infinity too.

    Returns:
        fp32 [ceil(R / 128), ceil(C / 128)], or [R, ceil(C / 128)].
    """
    ### BEGIN SOLUTION 16.4 scales by block
    R, C = x_RC.shape
    rows = BLOCK if square else 1
    size = x_RC.float().abs()
    whole = R % rows == 0 and C % BLOCK == 0
    padded = size if whole else F.pad(size, (0, -C % BLOCK, 0, -R % rows))  # zeros raise no amax
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // BLOCK, BLOCK)  # [R/r, r, C/128, 128]
    return casts.scale_of(blocks.amax(dim=(1, 3)), fmt, epsilon=epsilon, power_of_two=power_of_two)
    ### END SOLUTION


def block_scale(x_RC: Tensor, square: bool, epsilon: float = 0.0, power_of_two: bool = True) -> Tensor:
    """The E4M3 scales of `block_scales`, one per element: [R, C], fp32."""
    return spread(block_scales(x_RC, square, epsilon=epsilon, power_of_two=power_of_two), x_RC, square)


def on_grid(x_RC: Tensor, square: bool, epsilon: float = 0.0, power_of_two: bool = True) -> Tensor:
    """Task 16.4. x rounded to E4M3 with the scales of its blocks, and scaled back: [R, C], in x's own dtype.

    With powers of two, twice is once: on_grid(on_grid(x)) equals on_grid(x).
    """
    ### BEGIN SOLUTION 16.4 round in blocks
    scale = block_scale(x_RC, square, epsilon, power_of_two)
    return casts.rounded(x_RC.float(), scale, "e4m3").div_(scale).to(x_RC.dtype)
    ### END SOLUTION


class BlockProduct(torch.autograd.Function):
    """y = x @ w^T with the operands of all three products rounded in blocks, each along what its product sums over.

    `recipe` has a kind of scale and an epsilon for "input", "weight" and "grad": x's are "input" wherever x is rounded.
    """

    @staticmethod
    def forward(ctx, x_MK: Tensor, w_NK: Tensor, recipe: Recipe = BLOCKWISE) -> Tensor:
        """y [M, N]. Save for backward what its products need."""
        ### BEGIN SOLUTION 16.4 the forward product
        w8_NK = _rounded(w_NK, "weight", recipe)
        ctx.save_for_backward(x_MK, w8_NK)
        ctx.recipe = recipe
        return _rounded(x_MK, "input", recipe) @ w8_NK.t()  # y = x8 @ w8^T     [M,K] @ [K,N]
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K], dw [N, K], None); None for what needs no gradient."""
        ### BEGIN SOLUTION 16.4 the backward products
        x_MK, w8_NK = ctx.saved_tensors
        dx_MK = dw_NK = None
        if ctx.needs_input_grad[0]:
            dx_MK = (
                _rounded(dy_MN, "grad", ctx.recipe) @ w8_NK
            )  # [M,N] @ [N,K], over N: w8 is turned, not rounded again
        if ctx.needs_input_grad[1]:
            # [N,M] @ [M,K], over M: both in blocks of 128 tokens, from the values before rounding.
            dw_NK = _rounded(dy_MN.t(), "grad", ctx.recipe) @ _rounded(x_MK.t(), "input", ctx.recipe).t()
        return dx_MK, dw_NK, None
        ### END SOLUTION


def _rounded(x_RC: Tensor, slot: str, recipe: Recipe) -> Tensor:
    """An operand on its grid: weights in squares, the others along their rows, with the slot's epsilon (given).

    A turned operand is written out first: a pass along its columns is four times as slow on a CPU.
    """
    return on_grid(x_RC.contiguous(), slot == "weight", recipe.epsilon.get(slot, 0.0), recipe.powers(slot))
