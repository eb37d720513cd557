"""A mixture of experts in the place of a block's feed-forward network: E networks, of which each token goes through K
(arXiv:1701.06538; Mixtral, arXiv:2401.04088, section 2.1).

    p = softmax(router(x))                      E shares, FP32
    y = sum over the K largest of  p_e / (their sum) * expert_e(x)
    balance = E * sum over e of f_e * P_e       f_e: share of all choices that fell on e;  P_e: mean of p_e

Tokens are sorted by expert, and one grouped product takes each run of rows with its expert's weights: no token is
dropped (arXiv:2211.15841). `balance` is Switch's loss (arXiv:2101.03961, equations 4 to 6).

Shape suffixes: N tokens, D model width, E experts, K chosen, F an expert's width, M rows of the sorted buffer.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model.config import ModelConfig

ALIGN = 8  # rows: 16 bytes of BF16


class Router(nn.Module):
    """A token's share of each expert."""

    stays = "the router: it decides by small differences, and its softmax is FP32"  # why no backend converts it

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.experts, config.d_model))

    def forward(self, x_ND: Tensor) -> Tensor:
        """x_ND of any floating dtype -> p_NE, FP32."""
        return F.linear(x_ND.float(), self.weight.float()).softmax(dim=-1)


class Experts(nn.Module):
    """E SwiGLU networks, their weights stacked: w1 and w3 [E, F, D], w2 [E, D, F]."""

    stays = "experts are multiplied in groups, which is done in the weights' own type"

    def __init__(self, config: ModelConfig, act: nn.Module) -> None:
        super().__init__()
        up = (config.experts, config.d_ffn, config.d_model)
        self.w1 = nn.Parameter(torch.empty(up))  # gate
        self.w3 = nn.Parameter(torch.empty(up))  # up
        self.w2 = nn.Parameter(torch.empty(config.experts, config.d_model, config.d_ffn))  # down
        self.act = act

    def forward(self, x_MD: Tensor, ends_E: Tensor) -> Tensor:
        """Rows sorted by expert; expert e has those up to ends_E[e], int32, the last one the rest."""
        x_MD = x_MD.to(self.w1.dtype)
        h_MF = self.act(grouped(x_MD, self.w1, ends_E), grouped(x_MD, self.w3, ends_E))
        return grouped(h_MF, self.w2, ends_E)


class MixtureOfExperts(nn.Module):
    """In place of a block's FeedForward. After a forward in training: `imbalance` (FP32, with a gradient), `load_E`."""

    def __init__(self, config: ModelConfig, act: nn.Module) -> None:
        super().__init__()
        self.topk = config.topk
        self.router = Router(config)
        self.experts = Experts(config, act)
        self.imbalance: Tensor | None = None
        self.load_E: Tensor | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        with torch.autocast(x_BTD.device.type, enabled=False):  # the router decides by small differences
            p_NE = self.router(x_ND)
            share_NK, chosen_NK = p_NE.topk(self.topk, dim=-1)
            share_NK = share_NK / share_NK.sum(-1, keepdim=True)
            load_E = load(chosen_NK, p_NE.shape[1])
            if self.training:
                self.imbalance, self.load_E = balance(p_NE, load_E), load_E
            row_NK, ends_E, rows = places(chosen_NK, load_E)
            x_MD = x_ND.new_zeros(rows, x_ND.shape[1])
            x_MD = x_MD.index_copy(0, row_NK.flatten(), x_ND.repeat_interleave(self.topk, dim=0))
            y_MD = self.experts(x_MD, ends_E)
            y_ND = (y_MD[row_NK].float() * share_NK.unsqueeze(-1)).sum(dim=1)
        return y_ND.type_as(x_BTD).view_as(x_BTD)


def load(chosen_NK: Tensor, experts: int) -> Tensor:
    """[E], int64: how many of the choices fell on each expert."""
    return (chosen_NK.flatten().unsqueeze(-1) == torch.arange(experts, device=chosen_NK.device)).sum(dim=0)


def balance(p_NE: Tensor, load_E: Tensor) -> Tensor:
    """E * sum_e f_e P_e; scalar, FP32; 1 where all experts are equal, E where one has everything."""
    f_E = load_E.float() / load_E.sum()
    return p_NE.shape[1] * (f_E * p_NE.mean(dim=0)).sum()


def places(chosen_NK: Tensor, load_E: Tensor) -> tuple[Tensor, Tensor, int]:
    """Where each choice stands in the sorted buffer: (its row, [N, K]; the end of each expert's rows, [E] int32; rows)."""
    choices, experts = chosen_NK.numel(), load_E.numel()
    rows = math.ceil(choices / ALIGN) * ALIGN + experts * ALIGN
    ends_E = (load_E + ALIGN - 1).div(ALIGN, rounding_mode="floor").mul(ALIGN).cumsum(0)
    ends_E = torch.cat([ends_E[:-1], ends_E.new_full((1,), rows)])
    order = chosen_NK.flatten().argsort(stable=True)  # choices, by expert; a token's own order within
    sorted_ = chosen_NK.flatten()[order]
    begin_E = F.pad(ends_E[:-1], (1, 0))
    before_E = F.pad(load_E.cumsum(0)[:-1], (1, 0))
    row = begin_E[sorted_] + torch.arange(choices, device=order.device) - before_E[sorted_]
    return torch.empty_like(row).index_copy(0, order, row).view_as(chosen_NK), ends_E.int(), rows


def grouped(x_MI: Tensor, w_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """x_MO: row m times the transposed weight of the expert e in whose run, ends_E[e - 1] .. ends_E[e], it lies."""
    known = x_MI.dtype == torch.bfloat16 or not torch.compiler.is_compiling()  # the compiler knows BF16's alone (2.13)
    if known and one_kernel(x_MI.device.type, x_MI.dtype):
        return F.grouped_mm(x_MI, w_EOI.transpose(-2, -1), offs=ends_E)
    return one_by_one(x_MI, w_EOI, ends_E)


@torch.compiler.disable  # as many rows as the data say: a compiler cannot know
def one_by_one(x_MI: Tensor, w_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """`grouped`, an expert at a time: where torch has no kernel for it. Waits for the device, to know the ends."""
    ends = ends_E.tolist()
    return torch.cat([x_MI[begin:end] @ w.t() for begin, end, w in zip([0, *ends], ends, w_EOI)])


@torch.compiler.assume_constant_result
def one_kernel(device: str, dtype: torch.dtype) -> bool:
    """Has this torch a grouped product for these, forward and backward? Found out by trying a small one."""
    return _tried(device, dtype)


@functools.cache
def _tried(device: str, dtype: torch.dtype) -> bool:
    try:
        with torch.enable_grad():
            x = torch.ones(2 * ALIGN, ALIGN, device=device, dtype=dtype, requires_grad=True)
            w = torch.ones(2, ALIGN, ALIGN, device=device, dtype=dtype, requires_grad=True)
            ends = torch.tensor([ALIGN, 2 * ALIGN], device=device, dtype=torch.int32)
            y = F.grouped_mm(x, w.transpose(-2, -1), offs=ends)
            y.backward(torch.ones_like(y))
        return y.dtype == dtype and w.grad is not None and bool((w.grad == ALIGN).all())
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
