"""Looking inside a training step: what FP8 does to each tensor, at the steps where one looks.

Between `__enter__` and `__exit__` every converted linear carries a hook. It sees the input x and the weight w that the
layer really got (under FSDP2: gathered, since we are inside the block's forward), the output y that it really gave, and
later the gradient dy that reaches it. For x, w and dy it asks the backend for the format and scale in force, rounds
with our own reference quantiser, and compares; for y it computes the product again in FP32.

    overflow   |x| * s beyond the largest code: saturates          underflow   x not 0, rounded value 0
    sqnr       10 log10(sum x^2 / sum (x - x8 / s)^2)

So the numbers mean the same for every backend, whether the scale comes from this tensor, from ten steps ago, or from
each block.

At other steps there is no hook and no cost. Compiled code would not notice a hook that comes after compiling, so a
probe step runs eagerly. Nothing is communicated: a rank describes its own tensors.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.precision.base import ScaleStat
from labkit.precision.formats import Format, decibel, quantise

if TYPE_CHECKING:
    from labkit.precision.base import Backend

CHUNK = 1 << 22  # elements looked at at a time: bounds the temporaries to a few dozen MB
OUTPUT_ROWS = 512  # rows (tokens) of the output that are computed again in FP32, evenly spread
LARGEST = torch.finfo(torch.float32).max


class Probe:
    """Context manager around forward and backward of one micro-batch; afterwards `backend.scales()` has the numbers."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.raw: dict[str, Tensor] = {}  # name -> [scale, amax, elements, over, under, signal, noise], fp64
        self.handles: list = []
        self.eager = ExitStack()

    def __enter__(self) -> Probe:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and asking would load the compiler
            self.eager.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in self.backend.modules.items():
            self.handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *error) -> None:
        for handle in self.handles:
            handle.remove()
        self.eager.close()
        if error == (None, None, None):  # a step that failed has only half of its numbers
            self.backend._stats = self._read()

    def _hook(self, name: str):
        def seen(module: nn.Module, args: tuple, y: Tensor) -> None:
            x = args[0].detach()
            if hasattr(module, "observed"):  # a fused module knows what it quantises inside
                self._fused(module, name, x, y)
                return
            with torch.no_grad():
                self._tensor(module, name, "input", x)
                self._tensor(module, name, "weight", self.backend.plain(module.weight.detach()))
                self._output(name, x, module, y.detach())
            if y.requires_grad:
                y.register_hook(lambda dy: self._tensor(module, name, "grad", dy.detach()))

        return seen

    @torch.no_grad()
    def _tensor(self, module: nn.Module, name: str, slot: str, x: Tensor) -> None:
        x = x.reshape(-1, x.shape[-1])
        scaling = self.backend.scaling(module, slot, x) if self.backend.in_fp8() else None
        if scaling is None:  # nothing is rounded, as in a schedule's BF16 phase
            return
        fmt, scale = scaling
        self.raw[f"{name}.{slot}"] = tensor_numbers(x, fmt, scale)

    def _fused(self, module: nn.Module, name: str, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            for part, slot, tensor, port in module.observed(x):
                self._tensor(port, name + part, slot, tensor.detach())
            self._output(name, x, module, y.detach())
        if y.requires_grad:
            part, port = module.last()
            y.register_hook(lambda dy: self._tensor(port, name + part, "grad", dy.detach()))

    @torch.no_grad()
    def _output(self, name: str, x: Tensor, module: nn.Module, y: Tensor) -> None:
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        rows = slice(0, None, max(1, -(-x.shape[0] // OUTPUT_ROWS)))
        if hasattr(module, "reference"):
            reference = module.reference(x[rows])
        else:
            bias = getattr(module, "bias", None)
            bias = bias.float() if bias is not None and bias.numel() else None
            reference = F.linear(x[rows].float(), self.backend.plain(module.weight.detach()).float(), bias)
        noise = (reference - y[rows].float()).square().sum(dtype=torch.float64)
        self.raw[f"{name}.output"] = torch.stack(
            [
                v.double()
                for v in (
                    torch.ones_like(noise),
                    y.abs().max(),
                    noise.new_tensor(y.numel()),
                    torch.zeros_like(noise),
                    torch.zeros_like(noise),
                    reference.square().sum(dtype=torch.float64),
                    noise,
                )
            ]
        )

    def _read(self) -> dict[str, ScaleStat]:
        """One wait for the device, at the end."""
        if not self.raw:
            return {}
        rows = torch.stack(list(self.raw.values())).cpu().tolist()
        return {name: _stat(*row) for name, row in zip(self.raw, rows)}


def tensor_numbers(x: Tensor, fmt: Format, scale: Tensor) -> Tensor:
    """[smallest scale, amax, elements, saturating, flushed to zero, signal, noise] of x [M, N], fp64, on x's device."""
    amax = x.abs().amax().float()
    counts = torch.zeros(4, dtype=torch.float64, device=x.device)
    rows = max(1, CHUNK // max(1, x.shape[1]))
    for begin in range(0, x.shape[0], rows):
        part = x[begin : begin + rows].float()
        s = scale[begin : begin + rows] if scale.dim() == 2 and scale.shape[0] > 1 else scale
        scaled = part * s
        back = quantise(scaled, fmt) / s
        counts += torch.stack(
            [
                (scaled.abs() > fmt.saturates_above).sum().double(),
                ((part != 0) & (back == 0)).sum().double(),
                part.square().sum(dtype=torch.float64),
                (part - back).square_().sum(dtype=torch.float64),
            ]
        )
    head = torch.stack([scale.amin().double(), amax.double(), counts.new_tensor(x.numel())])
    return torch.cat([head, counts])


def _stat(
    scale: float, amax: float, elements: float, over: float, under: float, signal: float, noise: float
) -> ScaleStat:
    return ScaleStat(
        scale=_finite(scale),
        amax=_finite(amax),
        overflow=100 * over / elements,
        underflow=100 * under / elements,
        sqnr=decibel(signal, noise),
    )


def _finite(value: float) -> float:
    return value if abs(value) <= LARGEST else LARGEST  # inf and NaN, neither of which JSON holds
