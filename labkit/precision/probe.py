"""What FP8 does to each tensor of a training step, at the steps that are probed.

Hooks on every converted linear see x, the weight w (under FSDP2: gathered), y and the gradient dy. x, w and dy are
rounded in the backend's format and scale by torch's cast, and compared; for y the product is computed again in FP32.
A probe step runs eagerly: compiled code would not notice the hooks. Each rank describes its own tensors.
"""

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 1 << 22  # elements in one piece: bounds the temporaries to a few dozen MB
OUTPUT_ROWS = 512  # rows (tokens) of the output that are computed again in FP32, evenly spread
LARGEST = torch.finfo(torch.float32).max
SQNR_EXACT = 200.0  # dB; stands for "no error at all", so that a record never holds an infinity


@dataclass(frozen=True)
class ScaleStat:
    """One tensor at one probe step. All five are finite floats.

    scale       the factor in force; with several per tensor the smallest, which serves the largest values
    amax        max |x|, before scaling; an overflowed (inf) or NaN tensor gives the largest fp32 number
    overflow    per cent of the elements beyond the format's largest value under that scale: they saturate
    underflow   per cent of the elements that were not zero and became zero
    sqnr        10 log10(sum x^2 / sum (x - x8 / scale)^2), dB; for ".output": of the layer's output against fp32
    """

    scale: float
    amax: float
    overflow: float
    underflow: float
    sqnr: float


class Probe:
    """Context manager around one micro-batch; afterwards `stats` has the numbers. modules: name -> linear."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        rounding: Callable[[Any, str, Tensor], tuple[torch.dtype, Tensor] | None],
        plain: Callable[[Tensor], Tensor],
    ) -> None:
        self.modules, self.rounding, self.plain = modules, rounding, plain
        self.raw: dict[str, Tensor] = {}  # name -> [scale, amax, elements, over, under, signal, noise], fp64
        self.stats: dict[str, ScaleStat] = {}
        self.open = ExitStack()

    def __enter__(self) -> "Probe":
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and asking would load the compiler
            self.open.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in self.modules.items():
            self.open.callback(module.register_forward_hook(self._hook(name)).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self.open.close()
        if error[0] is None and self.raw:  # a step that failed has only half of its numbers
            rows = torch.stack(list(self.raw.values())).cpu().tolist()  # one wait for the device, at the end
            for name, (scale, amax, elements, over, under, signal, noise) in zip(self.raw, rows):
                # JSON holds no inf and no NaN.
                scale, amax = (value if abs(value) <= LARGEST else LARGEST for value in (scale, amax))
                over, under = 100 * over / elements, 100 * under / elements
                self.stats[name] = ScaleStat(scale, amax, over, under, decibel(signal, noise))

    def _hook(self, name: str) -> Callable[[Any, tuple, Tensor], None]:
        def seen(module: Any, args: tuple, y: Tensor) -> None:
            x, last, port = args[0].detach(), "", module
            with torch.no_grad():
                if hasattr(module, "observed"):  # a fused module knows what it quantises inside
                    for part, slot, tensor, inside in module.observed(x):
                        self._tensor(inside, name + part, slot, tensor.detach())
                    last, port = module.last()
                else:
                    self._tensor(module, name, "input", x)
                    self._tensor(module, name, "weight", self.plain(module.weight.detach()))
                self._output(name, x, module, y.detach())
            if y.requires_grad:
                y.register_hook(lambda dy: self._tensor(port, name + last, "grad", dy.detach()))

        return seen

    @torch.no_grad()
    def _tensor(self, module: Any, name: str, slot: str, x: Tensor) -> None:
        x = x.reshape(-1, x.shape[-1])
        if (rounding := self.rounding(module, slot, x)) is not None:
            self.raw[f"{name}.{slot}"] = tensor_numbers(x, *rounding)

    @torch.no_grad()
    def _output(self, name: str, x: Tensor, module: Any, y: Tensor) -> None:
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        rows = slice(0, None, max(1, -(-x.shape[0] // OUTPUT_ROWS)))
        if hasattr(module, "reference"):
            reference = module.reference(x[rows])
        else:
            bias = getattr(module, "bias", None)
            bias = bias.float() if bias is not None and bias.numel() else None
            with torch.autocast(x.device.type, enabled=False):  # amp's hooks run inside its autocast
                reference = F.linear(x[rows].float(), self.plain(module.weight.detach()).float(), bias)
        noise = (reference - y[rows].float()).square().sum(dtype=torch.float64)
        zero, signal = torch.zeros_like(noise), reference.square().sum(dtype=torch.float64)
        head = [zero + 1, y.abs().max().double(), zero + y.numel()]
        self.raw[f"{name}.output"] = torch.stack([*head, zero, zero, signal, noise])


def tensor_numbers(x: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """[smallest scale, amax, elements, saturating, flushed to zero, signal, noise] of x [M, N], fp64, on x's device."""
    amax, beyond = x.abs().amax().float(), saturates_above(dtype)
    counts = torch.zeros(4, dtype=torch.float64, device=x.device)
    rows = max(1, CHUNK // max(1, x.shape[1]))
    for begin in range(0, x.shape[0], rows):
        part = x[begin : begin + rows].float()
        s = scale[begin : begin + rows] if scale.dim() == 2 and scale.shape[0] > 1 else scale
        scaled = part * s
        back = saturating(scaled, dtype).float() / s
        counts += torch.stack(
            [
                (scaled.abs() > beyond).sum().double(),
                ((part != 0) & (back == 0)).sum().double(),
                part.square().sum(dtype=torch.float64),
                (part - back).square_().sum(dtype=torch.float64),
            ]
        )
    head = torch.stack([scale.amin().double(), amax.double(), counts.new_tensor(x.numel())])
    return torch.cat([head, counts])


def saturating(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as a float8 tensor, saturating on every torch version (a bare cast of 1000 to E4M3 is NaN on 2.11)."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def saturates_above(dtype: torch.dtype) -> float:
    """Values beyond this would round to a code that does not exist: half a step above the largest."""
    about = torch.finfo(dtype)
    return about.max + math.ldexp(about.eps, math.frexp(about.max)[1] - 1) / 2


def decibel(signal: float, noise: float) -> float:
    """10 log10(signal / noise), within +-SQNR_EXACT so that it is finite; E4M3 gives about 31.5, E5M2 25.5, BF16 56."""
    if noise == 0 and not math.isnan(signal):
        return SQNR_EXACT
    ratio = signal / noise if signal >= 0 and noise > 0 else 0.0  # a NaN on either side: nothing survived
    if math.isnan(ratio) or ratio <= 0:
        return -SQNR_EXACT
    return max(-SQNR_EXACT, min(SQNR_EXACT, 10 * math.log10(ratio))) if ratio < math.inf else SQNR_EXACT
