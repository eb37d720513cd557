"""FP8 under tensor parallelism: scales that all ranks agree on (task C.1).

Under tensor parallelism one tensor's amax is no longer on one rank. A rank's slice has a scale of its own, if you let
it: the numbers are then rounded on other grids than on one GPU, and a run on 8 ranks is another run than on 1. Nothing
fails. So the ranks agree on the amaxes (16.3 has the message), and each operand is rounded as the whole one would have
been. Then the addends of a row-parallel product have one scale, too. (Key/value heads that several ranks hold are the
exception: there dy is a sum over these ranks, and each addend is rounded by itself.)

Which operands are cut? A column-parallel linear's weight and dy; a row-parallel one's x and weight. A whole operand
has the same amax on every rank, and agreeing on it changes nothing: the code need not know which kind it is. Two
messages a linear and micro-batch are the price, of a few bytes each: alpha, not beta (13.1).

Legend: M tokens, N outputs, K inputs of this rank's slice; x_MK, w_NK, dy_MN; x8_MK the rounded values of x * s_x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capstone.given.parts import part
from labkit.model.decoder import Transformer


def agreed(amaxes: list[Tensor], group: Any) -> list[Tensor]:
    """Task C.1. Each amax (fp32 scalar) as it is of the whole tensor, of which the ranks have slices or copies: one
    message for all of them. NaN where some rank's is not finite (16.3)."""
    ### BEGIN SOLUTION C.1 agree on amaxes
    return list(part("week16_fp8.delayed").reduce_amax(torch.stack(amaxes), group))
    ### END SOLUTION


class AgreedProduct(torch.autograd.Function):
    """Task C.1. 16.5's three products, of operands that are rounded as the whole ones would have been.

    x_MK and w_NK are this rank's slices, or whole: their amaxes are agreed over `group`, in one message forward; dy's
    in one backward. The formats are the recipe's; one scale per tensor.
    """

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, recipe: Any, group: Any) -> Tensor:
        """y [M, N] in x's dtype: of these slices alone, nothing is summed over the ranks here."""
        ### BEGIN SOLUTION C.1 the forward product
        casts = part("week16_fp8.casts")
        amax_x, amax_w = agreed([casts.amax(x_MK), casts.amax(w_NK)], group)
        x8_MK, s_x = rounded_by(amax_x, x_MK, "input", recipe)
        w8_NK, s_w = rounded_by(amax_w, w_NK.detach().to(x_MK.dtype), "weight", recipe)
        ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)
        ctx.recipe, ctx.group, ctx.master = recipe, group, w_NK.dtype
        return casts.unscaled(x8_MK @ w8_NK.t(), s_x, s_w)  # y = (x8 @ w8^T) / (s_x s_w)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        """(dx [M, K], dw [N, K] in the weight's dtype, None, None)."""
        ### BEGIN SOLUTION C.1 the backward products
        casts = part("week16_fp8.casts")
        x8_MK, w8_NK, s_x, s_w = ctx.saved_tensors
        (amax_dy,) = agreed([casts.amax(dy_MN)], ctx.group)
        dy8_MN, s_dy = rounded_by(amax_dy, dy_MN, "grad", ctx.recipe)
        dx_MK = casts.unscaled(dy8_MN @ w8_NK, s_dy, s_w)  # dx = (dy8 @ w8) / (s_dy s_w)
        dw_NK = casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)  # dw = (dy8^T @ x8) / (s_dy s_x)
        return dx_MK, dw_NK, None, None
        ### END SOLUTION


def rounded_by(amax: Tensor, x: Tensor, slot: str, recipe: Any) -> tuple[Tensor, Tensor]:
    """Task C.1. (the FP8 values of x * s in x's dtype, s), s from this amax: 16.5's `rounding`, given its amax.

    amax: fp32 scalar. slot: "input", "weight" or "grad". s: fp32 scalar.
    """
    ### BEGIN SOLUTION C.1 round by an amax from elsewhere
    casts, fmt = part("week16_fp8.casts"), recipe.format(slot)
    s = casts.scale_of(amax, fmt, epsilon=recipe.epsilon.get(slot, 0.0), power_of_two=recipe.powers(slot))
    return casts.rounded(x, s, fmt), s
    ### END SOLUTION


class AgreedLinear(nn.Module):
    """An FP8 linear on tensor-parallel ranks (given): nn.Linear's face, the product above. No bias in this decoder."""

    def __init__(self, in_features: int, out_features: int, bias: bool, group: Any, recipe: Any) -> None:
        super().__init__()
        assert not bias
        self.in_features, self.out_features, self.group, self.recipe = in_features, out_features, group, recipe
        self.weight, self.bias = nn.Parameter(torch.empty(out_features, in_features, device=group.device)), None

    def forward(self, x: Tensor) -> Tensor:
        y_MN = AgreedProduct.apply(x.reshape(-1, self.in_features), self.weight, self.recipe, self.group)
        return y_MN.view(*x.shape[:-1], self.out_features)


def converted(model: Transformer, group: Any) -> dict[str, Any]:
    """Task C.1. Make the blocks' linears FP8, in place, by 16.6's `convert`: 16.5's FP8Linear (its default recipe) on a
    group of one rank, else an AgreedLinear of the same recipe. The head stays; a stage may have none.

    Returns what `convert` reports: {"converted": [names], "skipped": {name: why}}.
    """
    ### BEGIN SOLUTION C.1 which linears become FP8
    linear, casts = part("week16_fp8.linear"), part("week16_fp8.casts")

    def make(in_features: int, out_features: int, bias: bool) -> nn.Module:
        if group.size == 1:
            return linear.FP8Linear(in_features, out_features, bias=bias, device=group.device)
        return AgreedLinear(in_features, out_features, bias, group, casts.HYBRID)

    skip = ["head"] if model.head is not None else []  # a name that means no linear is an error there
    return part("week16_fp8.convert").convert(model, make, skip=skip)._asdict()
    ### END SOLUTION
