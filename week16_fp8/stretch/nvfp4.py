"""NVFP4: sixteen values to a number, and what makes them train (task 16.12, stretch, no points).

A Blackwell GPU multiplies four-bit numbers, too. E2M1 has two exponent bits (bias 1), one mantissa bit, neither infinity
nor NaN: a code is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. NVFP4 gives it scales on two levels:

    16 elements    E2M1                     4 bits each
    1 scale s      E4M3, of a block of 16   s = round(amax of the block / 6 / S)
    1 scale S      FP32, of the tensor      S = amax of the tensor / (6 * 448)         x ~ element * s * S

So 4.5 bits a value. A scale with a mantissa puts amax nearly on 6, where MX's power of two may leave it at 4; and as E4M3
reaches from 2^-9 to 448 only, S moves the block scales there. s itself is rounded, up or down by 1/16: an element can
come to 6.4, and is 6. Below 2^-6, where E4M3 has subnormals, it can come to 9. Take a pencil: with 6 dB for a mantissa
bit (16.2), what SQNR will this have?

    S is 0 in FP32           S = 1: a tensor of zeros, say        s that rounds to 0: codes 0, whatever the sign
    a NaN or an infinity     S = 1; its block has s = NaN (0x7f), its codes are free; s of the others ends at 448

The recipe (NVIDIA 2025, arXiv:2509.25149; Transformer Engine's `NVFP4BlockScaling`) has three tricks beside the format:

**Stochastic rounding**, of gradients alone. A value goes up with the probability of its place between its two neighbours,
so on average nothing is lost, where rounding to nearest loses all that is below 0.25 in every step anew. It is not
nearer to the value: what does it do to the error's mean square? Where is that a price worth paying, and where not?

**A random Hadamard transform** of both operands of dw, along the tokens. H is 16 x 16, of +-1/4, with orthogonal columns;
D has 16 signs, drawn once. (dy^T D H)(x^T D H)^T = dy^T x: the transform cancels, whatever the product sums over in tiles
of 16. But what is rounded is another thing: one outlier is spread over 16 values. What becomes of the SQNR of a block
that is one outlier and 15 small values, rounded with it and without?

**Squares of 16 x 16 for weights**: one rounding for y and for dx, as 16.4 had it. MXFP8 went without (16.11).

And some layers stay in BF16: embedding, head, norms and attention, and of the linears about 15 %, most of them the last
blocks', whose gradients FP4 cannot hold. With every linear in FP4 the paper's training diverged.

    y  = q(x) @ Q(w)^T          q: blocks of 1 x 16 along the row, to nearest       Q: blocks of 16 x 16, to nearest
    dx = r(dy) @ Q(w)           r: as q, but stochastic
    dw = r(dy^T D H) @ q(x^T D H)^T

Emulated: element * s has six bits and is a BF16 value. S is not: it multiplies the product.

Legend: M tokens, N outputs, K inputs of a linear. x_MK, w_NK, dy_MN. R, C: rows and columns of any matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 16
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
Noise = Callable[[Tensor], Tensor]  # numbers from 0 to below 1, of a tensor's shape: torch.rand_like


class NVFP4(NamedTuple):
    """codes_RC: uint8 in 0 .. 15. scales: float8_e4m3fn, one for each block, [R or R/16, C/16]. S: fp32 scalar."""

    codes_RC: Tensor
    scales: Tensor
    S: Tensor


@dataclass(frozen=True)
class Tricks:
    """What the recipe does beside the format; each can be left out. signs: +-1, [16]."""

    square: bool = True
    noise: Noise | None = torch.rand_like
    signs: Tensor | None = None


def to_int4(y: Tensor, noise: Tensor | None = None) -> Tensor:
    """y in whole numbers from -7 to 7, int8: the worked example. To nearest even, or up with the probability of y's
    place between its neighbours: where `noise`, even from 0 to below 1, is below that place."""
    if noise is None:
        return y.round().clamp(-7, 7).to(torch.int8)
    low = y.floor()
    return (low + (noise < y - low)).clamp(-7, 7).to(torch.int8)


def to_e2m1(y: Tensor, noise: Tensor | None = None) -> Tensor:
    """Task 16.12. The code of each number: 0 .. 7 as in VALUES, and 8 more for what has a minus sign; uint8.

    y: float32, finite; beyond 6 it saturates. noise: None is to nearest, half way to the even code; else numbers of y's
    shape: |y| goes to the larger neighbour where they are below its place between the two.
    """
    ### BEGIN SOLUTION 16.12 rounding to E2M1
    size = y.abs().clamp(max=6)
    binade = torch.frexp(size.clamp(min=1))[1] - 1  # 0, 1 or 2; below 1 the steps are as from 1 to 2
    steps = torch.ldexp(size, 1 - binade)  # steps of half a power of two: 0 .. 4
    whole = steps.round() if noise is None else steps.floor() + (noise < steps - steps.floor())
    return (2 * binade + whole + 8 * torch.signbit(y)).to(torch.uint8)  # as in 16.1: each binade is two codes further
    ### END SOLUTION


def from_e2m1(codes: Tensor) -> Tensor:
    """The values, float32 (given)."""
    return VALUES[(codes & 7).int()] * (1 - 2 * (codes >> 3).float())


def spread(scales: Tensor, like_RC: Tensor, square: bool) -> Tensor:
    """Scales by block, fp32, one for each element of `like_RC` (given)."""
    R, C = like_RC.shape
    return scales.float().repeat_interleave(BLOCK if square else 1, 0)[:R].repeat_interleave(BLOCK, 1)[:, :C]


def to_nvfp4(x_RC: Tensor, square: bool = False, noise: Noise | None = None) -> NVFP4:
    """Task 16.12. x in NVFP4, in blocks of 1 x 16, or of 16 x 16; R and C need not divide by 16.

    noise: called once, with a float32 tensor of x's shape, for numbers for stochastic rounding of the elements. Scales
    are rounded to nearest.
    """
    ### BEGIN SOLUTION 16.12 to NVFP4
    (R, C), x = x_RC.shape, x_RC.float()
    rows = BLOCK if square else 1
    blocks = F.pad(x.abs(), (0, -C % BLOCK, 0, -R % rows)).unflatten(1, (-1, BLOCK)).unflatten(0, (-1, rows))
    amax = blocks.amax((1, 3))  # [R/r, r, C/16, 16] -> [R/r, C/16]
    S = amax.max() / (6 * 448)
    S = torch.where((S > 0) & S.isfinite(), S, 1.0)
    scales = torch.where(amax.isfinite(), amax / 6 / S, torch.nan).clamp(max=448).to(torch.float8_e4m3fn)
    scale = spread(scales, x, square) * S
    y = torch.where(scale > 0, x / scale, 0.0)  # not where s is 0 or NaN
    return NVFP4(to_e2m1(y, noise(y) if noise else None), scales, S)
    ### END SOLUTION


def without_S(q: NVFP4) -> Tensor:
    """element * s of each, fp32 [R, C] (given)."""
    return from_e2m1(q.codes_RC) * spread(q.scales, q.codes_RC, q.scales.shape[0] < q.codes_RC.shape[0])


def multiplied(a: NVFP4, b: NVFP4, dtype: torch.dtype) -> Tensor:
    """a @ b^T, its two S taken out of the sum, in `dtype` (given)."""
    return ((without_S(a).to(dtype) @ without_S(b).to(dtype).t()).float() * a.S * b.S).to(dtype)


def transformed(x_RC: Tensor, signs: Tensor | None) -> Tensor:
    """Task 16.12. x D H along its rows, in tiles of 16, fp32 [R, C]; without signs x itself, in its own dtype.

    H is Sylvester's: H_1 = [1], H_2n = [[H_n, H_n], [H_n, -H_n]] / sqrt(2). With signs: ValueError if C does not divide by 16.
    """
    ### BEGIN SOLUTION 16.12 the random Hadamard transform
    if signs is None:
        return x_RC
    if x_RC.shape[1] % BLOCK:
        raise ValueError(f"the transform needs a multiple of {BLOCK}, not {x_RC.shape[1]}")
    H = torch.ones(1, 1)
    while len(H) < BLOCK:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return ((x_RC.float().unflatten(1, (-1, BLOCK)) * signs) @ (H / 4)).flatten(1)
    ### END SOLUTION


class NVFP4Product(torch.autograd.Function):
    """y = x @ w^T with the operands of all three products in NVFP4."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, tricks: Tricks) -> Tensor:
        """y [M, N] in x's dtype. Save for backward no more than x and w."""
        ### BEGIN SOLUTION 16.12 the forward product
        ctx.save_for_backward(x_MK, w_NK)
        ctx.tricks = tricks
        return multiplied(to_nvfp4(x_MK), to_nvfp4(w_NK, tricks.square), x_MK.dtype)  # y = q(x) @ Q(w)^T
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K], dw [N, K] in w's dtype, None); None for what needs no gradient. Without squares w has blocks along N."""
        ### BEGIN SOLUTION 16.12 the backward products
        (x_MK, w_NK), t = ctx.saved_tensors, ctx.tricks
        dx_MK = dw_NK = None
        if ctx.needs_input_grad[0]:  # dx = r(dy) @ Q(w)     [M,N] @ [N,K]; a square turned is a square
            dx_MK = multiplied(to_nvfp4(dy_MN, noise=t.noise), to_nvfp4(w_NK.t(), t.square), dy_MN.dtype)
        if ctx.needs_input_grad[1]:  # dw = r(dy^T D H) @ q(x^T D H)^T     [N,M] @ [M,K]
            dy_NM, x_KM = transformed(dy_MN.t(), t.signs), transformed(x_MK.t(), t.signs)
            dw_NK = multiplied(to_nvfp4(dy_NM, noise=t.noise), to_nvfp4(x_KM), w_NK.dtype)
        return dx_MK, dw_NK, None
        ### END SOLUTION
