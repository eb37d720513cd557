"""MXFP8: a power of two for each 32 values, and four ways to choose it (task 16.11, stretch, no points).

A Blackwell GPU multiplies E4M3 values with a scale for each 32 of them along the dimension that the product sums over,
and divides by the scales itself. The format is OCP's (Microscaling Formats, version 1.0, section 5):

    32 elements    E4M3, by 16.1's table
    1 scale        E8M0: a code c of eight exponent bits, no sign and no mantissa, is 2^(c - 127); 255 is NaN

That is 8.25 bits a value. The scale is what an element is multiplied by to come back, x ~ element * 2^(c - 127): the
inverse of 16.2's. With eight exponent bits it reaches as far as float32.

**Which power of two?** Write the block's amax as 2^e (1 + f), with f from 0 to below 1; the largest element is 448 =
2^8 (1 + 3/4). Four rules are in use. Each gives c - 127 = e - 8, or one more:

    floor    never one more                                                   the specification's own (section 6.3)
    ceil     one more if f > 0
    even     one more if amax, rounded to E4M3's 3 bits of mantissa (half way: to even), is 2^(e + 1)
    rceil    one more if amax / 2^(e - 8) is above 448                        cuBLAS and Transformer Engine

Take a pencil before you go on. Which of the four let amax saturate, and for which f? Where a block does not saturate,
what does a scale twice as large as needed cost? (16.2's plateau knows.) And what would it cost with elements of two
exponent bits? Section 12 of the notebook asks for numbers.

e and f stand in amax's bits, and so does the answer. log2 does not do: it rounds, and beside a power of two its floor
is one off. torchao 0.18 computes rceil as ceil(log2(amax / 448)) and is one off there, just above 448 * 2^k.

    amax 0, or so small that c would be below 0    c = 0
    a NaN in the block                             c = 255: the block comes back as NaN, whatever its elements are
    an infinity in the block                       counts as 2^128, as its exponent bits say: c = 247. Its element is
                                                   448, and 448 * 2^120 leaves float32: infinite again
    a finite amax from 2^128 (1 - 1/32) on         no exception. All rules but floor give c = 247, the element 256, and
                                                   256 * 2^120 is infinite

**What the blocks do to a linear.** The three products sum over K, N and M (16.4). So each operand is rounded twice,
along its rows and along its columns, both times from the values before rounding:

    y  = x @ w^T       over K, features: x and w in blocks of 32 along K
    dx = dy @ w        over N:           dy and w in blocks of 32 along N
    dw = dy^T @ x      over M, tokens:   dy and x in blocks of 32 along M

The forward then multiplies one rounding of w and the backward another, so dx is not quite the gradient of the y that
was computed. 16.4's squares avoid that. MXFP8 does without them, since E4M3's error is small; 16.12 cannot afford it.

Emulated, as in 16.4: an element times its scale is a BF16 value, exactly, and an ordinary product does the sum.

Legend: M tokens, N outputs, K inputs of a linear. x_MK, w_NK, dy_MN. R, C: rows and columns of any matrix.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
LARGEST = 448.0


def exponent(x: Tensor) -> Tensor:
    """floor(log2 x) of float32 x >= 0, exactly, int32 of x's shape: the worked example.

    A float32 is 1 bit of sign, 8 of exponent, 23 of mantissa. -127 for 0 and for subnormals, 128 for infinity.
    """
    return (x.view(torch.int32) >> 23) - 127


def scale_of(codes: Tensor) -> Tensor:
    """2^(c - 127) of E8M0 codes, float32; NaN for 255. torch has the format as a dtype (given)."""
    return codes.view(torch.float8_e8m0fnu).float()


def scale_codes(amax: Tensor, rule: str) -> Tensor:
    """Task 16.11. The E8M0 code of each block's scale.

    Args:
        amax: float32 of any shape, not negative; infinity and NaN are allowed.
        rule: "floor", "ceil", "even" or "rceil".

    Returns:
        uint8, of amax's shape.
    """
    ### BEGIN SOLUTION 16.11 the code of a scale
    f = (amax.view(torch.int32) & 0x7FFFFF) / 2.0**23  # amax = 2^e (1 + f)
    # Three bits of mantissa are steps of 1/8: 1 + f is rounded to 2 from half a step below it on.
    one_more = {"floor": f < 0, "ceil": f > 0, "even": f >= 15 / 16, "rceil": f > 3 / 4}[rule]
    codes = (exponent(amax) - 8 + one_more + 127).clamp(0, 254)
    return torch.where(amax.isnan(), 255, codes).to(torch.uint8)
    ### END SOLUTION


def to_mx(x_RC: Tensor, rule: str = "rceil") -> tuple[Tensor, Tensor]:
    """Task 16.11. x in MXFP8, in blocks of 32 along its rows.

    Args:
        x_RC: any floating dtype. C need not divide by 32: the last block of a row is then shorter.

    Returns:
        The elements' E4M3 codes, uint8 [R, C], and the scales' E8M0 codes, uint8 [R, ceil(C / 32)].
    """
    ### BEGIN SOLUTION 16.11 to MXFP8
    C = x_RC.shape[1]
    blocks = F.pad(x_RC.float(), (0, -C % BLOCK)).unflatten(1, (-1, BLOCK))  # [R, C/32, 32]; zeros raise no amax
    codes = scale_codes(blocks.abs().amax(2), rule)
    scaled = (blocks / scale_of(codes)[..., None]).clamp(-LARGEST, LARGEST)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)[:, :C], codes
    ### END SOLUTION


def from_mx(elements_RC: Tensor, codes: Tensor) -> Tensor:
    """Task 16.11. What `to_mx` gave, as numbers: float32 [R, C]."""
    ### BEGIN SOLUTION 16.11 from MXFP8
    scale = scale_of(codes).repeat_interleave(BLOCK, 1)[:, : elements_RC.shape[1]]
    return elements_RC.view(torch.float8_e4m3fn).float() * scale
    ### END SOLUTION


def rounded(x_RC: Tensor, rule: str) -> Tensor:
    """x after a way to MXFP8 and back, along its rows, in x's own dtype (given). Turned, `rounded(x.t(), rule).t()`."""
    elements, codes = to_mx(x_RC, rule)
    return from_mx(elements, codes).to(x_RC.dtype)


class MXProduct(torch.autograd.Function):
    """y = x @ w^T with the operands of all three products in MXFP8, each along what its product sums over."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, rule: str = "rceil") -> Tensor:
        """y [M, N]; x, w and y have one dtype. Save for backward no more than x and w."""
        ### BEGIN SOLUTION 16.11 the forward product
        ctx.save_for_backward(x_MK, w_NK)
        ctx.rule = rule
        return rounded(x_MK, rule) @ rounded(w_NK, rule).t()  # y = x @ w^T     [M,K] @ [K,N], over K
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K], dw [N, K], None); None for what needs no gradient."""
        ### BEGIN SOLUTION 16.11 the backward products
        x_MK, w_NK = ctx.saved_tensors
        dx_MK = dw_NK = None
        if ctx.needs_input_grad[0]:
            dx_MK = rounded(dy_MN, ctx.rule) @ rounded(w_NK.t(), ctx.rule).t()  # dx = dy @ w     [M,N] @ [N,K], over N
        if ctx.needs_input_grad[1]:
            dw_NK = rounded(dy_MN.t(), ctx.rule) @ rounded(x_MK.t(), ctx.rule).t()  # dw = dy^T @ x     over M
        return dx_MK, dw_NK, None
        ### END SOLUTION
