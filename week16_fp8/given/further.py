"""What the notebook's last section runs: the stretch tasks' formats on real tensors. A CPU, seconds."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from week16_fp8 import blockwise, casts
from week16_fp8.stretch import mxfp8, nvfp4

RULES = ("floor", "ceil", "even", "rceil")


def sqnr(x: Tensor, back: Tensor) -> float:
    """dB."""
    return float(10 * torch.log10(x.double().square().sum() / (back.double() - x.double()).square().sum()))


class Rule(NamedTuple):
    """Of one tensor in MXFP8 by one rule: the SQNR in dB; the shares of the blocks whose amax saturates, and whose
    amax is below half of the largest element."""

    dB: float
    saturated: float
    low: float


def by_rule(x: np.ndarray) -> dict[str, Rule]:
    """x [rows, columns] in MXFP8 along its rows, by each rule. Blocks of zeros are left out."""
    x_RC, found = torch.from_numpy(x), {}
    amax = F.pad(x_RC, (0, -x_RC.shape[1] % mxfp8.BLOCK)).unflatten(1, (-1, mxfp8.BLOCK)).abs().amax(2)
    for rule in RULES:
        elements, codes = mxfp8.to_mx(x_RC, rule)
        lies = (amax / mxfp8.scale_of(codes))[amax > 0]
        high, low = (lies > mxfp8.LARGEST).double().mean(), (lies <= mxfp8.LARGEST / 2).double().mean()
        found[rule] = Rule(sqnr(x_RC, mxfp8.from_mx(elements, codes)), float(high), float(low))
    return found


SIGNS = torch.tensor([1, 1, -1, 1, -1, -1, 1, 1, -1, 1, 1, 1, -1, -1, -1, 1.0])


def of_dw(dy: np.ndarray, x: np.ndarray, draws: int = 16) -> dict[str, float]:
    """The SQNR in dB of dw = dy^T x with both operands in NVFP4, by trick; and of the mean of so many stochastic ones."""
    dy_NM, x_KM = torch.from_numpy(dy).t(), torch.from_numpy(x).t()
    exact = dy_NM.double() @ x_KM.double().t()
    torch.manual_seed(16)

    def product(signs: Tensor | None, noise: nvfp4.Noise | None) -> Tensor:
        a, b = (nvfp4.transformed(one, signs) for one in (dy_NM, x_KM))
        return nvfp4.multiplied(nvfp4.to_nvfp4(a, noise=noise), nvfp4.to_nvfp4(b), torch.float32)

    tried = {"neither": (None, None), "transform": (SIGNS, None), "stochastic": (None, torch.rand_like)}
    tried["both"] = SIGNS, torch.rand_like
    found = {name: sqnr(exact, product(*tricks)) for name, tricks in tried.items()}
    for name in ("stochastic", "both"):
        mean = torch.stack([product(*tried[name]) for _ in range(draws)]).mean(0)
        found[f"{name}, mean of {draws}"] = sqnr(exact, mean)
    return found


class Kind(NamedTuple):
    """Bits a value, with all scales; dB by tensor."""

    bits: float
    dB: list[float]


def formats(tensors: list[np.ndarray]) -> dict[str, Kind]:
    """Every format of this week on these tensors, each along its rows."""

    def one_scale(x: Tensor, fmt: str) -> Tensor:
        s = casts.scale_of(casts.amax(x), fmt)
        return casts.rounded(x, s, fmt) / s

    def in_nvfp4(x: Tensor, square: bool = False, noise: nvfp4.Noise | None = None) -> Tensor:
        q = nvfp4.to_nvfp4(x, square, noise)
        return nvfp4.without_S(q) * q.S

    torch.manual_seed(16)
    ways = {
        "BF16": (16.0, lambda x: x.bfloat16().float()),
        "E4M3, one scale": (8.0, lambda x: one_scale(x, "e4m3")),
        "E5M2, one scale": (8.0, lambda x: one_scale(x, "e5m2")),
        "E4M3, blocks of 128": (8 + 8 / 128, lambda x: blockwise.on_grid(x, square=False)),
        "MXFP8, rceil": (8 + 8 / 32, lambda x: mxfp8.rounded(x, "rceil")),
        "MXFP8, floor": (8 + 8 / 32, lambda x: mxfp8.rounded(x, "floor")),
        "NVFP4": (4 + 8 / 16, in_nvfp4),
        "NVFP4, 16 x 16": (4 + 8 / 256, lambda x: in_nvfp4(x, square=True)),
        "NVFP4, stochastic": (4 + 8 / 16, lambda x: in_nvfp4(x, noise=torch.rand_like)),
    }
    given = [torch.from_numpy(x) for x in tensors]
    return {name: Kind(bits, [sqnr(x, way(x)) for x in given]) for name, (bits, way) in ways.items()}
