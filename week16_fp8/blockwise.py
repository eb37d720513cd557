"""Block scaling: a scale for each 128 values, so that one outlier flattens its neighbours and not the whole tensor.

The recipe of DeepSeek-V3 (arXiv:2412.19437, section 3.3.2), as Transformer Engine's `Float8BlockScaling` has it:

    activations, gradients    one scale per 1 x 128 values along the dimension that the product sums over
    weights                   one scale per 128 x 128: the same for w and for its transpose
    format                    E4M3 throughout: with a scale so near, nobody needs E5M2's reach
    scales                    powers of two

What a power of two buys: multiplying and dividing by it rounds nothing. A value on this grid, q * 2^k with q in E4M3 (4
significant bits), is also a BF16 value (8) and an FP32 value, exactly. So a weight that is on the grid can be stored,
sent and converted in any of the three formats and comes back as the same number; rounding it once more changes nothing.
That is what FP8 *parameters* stand on (labkit.train.master), and why they exist for this recipe alone. The code may
differ: where a block's largest value was rounded down to 224 / s, the next rounding takes the scale 2 s and the codes
2 q. The values are the same.

Emulated: a product of operands that were rounded to the grid and scaled back. Its terms are exact in FP32, so it is the
FP8 product up to the order of the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from week16_fp8.formats import E4M3, quantise
from week16_fp8.scaling import scale_for

BLOCK = 128


def block_scale(x: Tensor, square: bool, epsilon: float = 0.0) -> Tensor:
    """Power-of-two E4M3 scales per 1x128 block of x [M, N], or per 128x128 (`square`), one per element: [M, N], fp32.

    epsilon: the least amax of a block, as Transformer Engine's `amax_epsilon`. A block of zeros has scale 1.
    """
    ### BEGIN SOLUTION 16.4 scales per block
    M, N = x.shape
    rows, columns = (BLOCK if square else 1), BLOCK
    padded = torch.nn.functional.pad(x.float(), (0, -N % columns, 0, -M % rows))
    blocks = padded.abs().view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scale = scale_for(blocks.amax(dim=(1, 3)).clamp(min=epsilon), E4M3, power_of_two=True)
    return scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:M, :N]
    ### END SOLUTION


def on_grid(x: Tensor, square: bool, epsilon: float = 0.0) -> Tensor:
    """x [M, N] rounded to the FP8 grid of its blocks, in x's own type: the values that FP8 can hold, scaled back.

    Twice is once: on_grid(on_grid(x)) equals on_grid(x).
    """
    ### BEGIN SOLUTION 16.4 round in blocks
    scale = block_scale(x, square, epsilon)
    return (quantise(x.float() * scale, E4M3) / scale).to(x.dtype)
    ### END SOLUTION


class BlockProduct(torch.autograd.Function):
    """y = x @ w^T with the operands of all three products rounded in blocks."""

    @staticmethod
    def forward(ctx, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        ### BEGIN SOLUTION 16.4 the forward product in blocks
        w8_NK = on_grid(w_NK, square=True)
        ctx.save_for_backward(x_MK, w8_NK)
        return on_grid(x_MK, square=False) @ w8_NK.t()
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy_MN: Tensor) -> tuple[Tensor | None, Tensor | None]:
        ### BEGIN SOLUTION 16.4 the backward products in blocks
        x_MK, w8_NK = ctx.saved_tensors
        dx_MK = on_grid(dy_MN, square=False) @ w8_NK if ctx.needs_input_grad[0] else None
        # dw sums over the tokens, so both operands are rounded in blocks of 128 tokens: not the roundings used above.
        dw_NK = (
            on_grid(dy_MN.t(), square=False) @ on_grid(x_MK.t(), square=False).t() if ctx.needs_input_grad[1] else None
        )
        return dx_MK, dw_NK
        ### END SOLUTION
