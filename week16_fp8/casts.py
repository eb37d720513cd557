"""FP8 with torch: rounding by torch's own cast, and the scale as a tensor.

From task 16.3 on torch's float8 dtypes are allowed: you know what they do. The cast here saturates on every version of
torch, since it clamps first; it is the device's own, fast on a GPU, and what 16.1's table says on both (tests compare
them, code by code).

`Recipe` says which format each operand has, and what a scale belongs to: everything that 16.4 and 16.5 vary.

    HYBRID     x and w in E4M3, dy in E5M2, one scale per tensor: torchao's and Transformer Engine's "tensorwise"
    E4M3_ONLY  all three in E4M3, one scale per tensor
    BLOCKWISE  all three in E4M3, a power-of-two scale for each block of 128 values (week16_fp8.blockwise)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from week16_fp8.formats import FORMATS

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SLOTS = ("input", "weight", "grad")
LARGEST_FLOAT32 = torch.finfo(torch.float32).max
Way = Callable[..., Tensor]


@dataclass(frozen=True)
class Recipe:
    """forward: the format of x and w; backward: of dy. epsilon: by slot, the least amax; 0 where it has none.
    power_of_two: for all three, or by slot: ask `powers`."""

    forward: str = "e4m3"
    backward: str = "e5m2"
    blocks: bool = False
    power_of_two: bool | Mapping[str, bool] = False
    epsilon: Mapping[str, float] = field(default_factory=dict)

    def format(self, slot: str) -> str:
        """ "input" and "weight" have the forward format, "grad" the backward one."""
        return self.backward if slot == "grad" else self.forward

    def powers(self, slot: str) -> bool:
        """Are this operand's scales powers of two?"""
        return self.power_of_two if isinstance(self.power_of_two, bool) else self.power_of_two[slot]

    def configured(self, amax_epsilon: Mapping[str, float], scales: Mapping[str, str]) -> Recipe:
        """This recipe with what a configuration's [precision] says, by operand: "input", "weight", "gradient"."""
        slot = {"input": "input", "weight": "weight", "gradient": "grad"}
        powers = {one: self.powers(one) for one in SLOTS} | {slot[o]: kind == "e8m0" for o, kind in scales.items()}
        epsilon = {**self.epsilon, **{slot[o]: value for o, value in amax_epsilon.items()}}
        return replace(self, power_of_two=powers, epsilon=epsilon)


HYBRID = Recipe()
E4M3_ONLY = Recipe(backward="e4m3")
BLOCKWISE = Recipe(backward="e4m3", blocks=True, power_of_two=True)


def amax(x: Tensor) -> Tensor:
    """max |x|, fp32 scalar; without the temporary that x.abs().max() would make. NaN if there is one in x."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).float()


def scale_of(amax: Tensor, fmt: str, *, epsilon: float = 0.0, power_of_two: bool = False) -> Tensor:
    """Task 16.4. `scaling.scale_from_amax` for tensors, on their own device: fp32, of amax's shape, by the same rules.

    No value is looked at from Python (no `.item()`, no `if`): a GPU would have to be waited for, once a tensor.
    """
    ### BEGIN SOLUTION 16.4 the scale as a tensor
    held = amax.double().clamp(min=epsilon)  # max(amax, epsilon); NaN and infinity stay
    scale = (FORMATS[fmt].largest / held).clamp(max=LARGEST_FLOAT32)
    if power_of_two:
        scale = torch.exp2(torch.frexp(scale)[1] - 1.0)  # the power of two at or below
    return torch.where((held > 0) & held.isfinite(), scale, 1.0).float()  # 1 where no scale helps
    ### END SOLUTION


def rounded(x: Tensor, scale: Tensor, fmt: str) -> Tensor:
    """x * scale as the format holds it, saturating, in x's own dtype: the FP8 values, not yet scaled back.

    scale: fp32, broadcasts against x. Every FP8 value is a BF16 value and an FP32 value, exactly.
    """
    way = through_a_table if x.is_cpu else in_one_kernel(through, x.device)
    return way(x.detach(), scale, FORMATS[fmt].largest, DTYPES[fmt])


def unscaled(y: Tensor, s_a: Tensor, s_b: Tensor) -> Tensor:
    """y / (s_a * s_b), in y's dtype: in FP32, and rounded once. FP32 y is changed in place.

    s_a, s_b: fp32 scalars, divided out one by one: their product can leave FP32's range.
    """
    return in_one_kernel(dividing, y.device)(y, s_a, s_b)


def dividing(y: Tensor, s_a: Tensor, s_b: Tensor) -> Tensor:
    """`unscaled`, one operation after another."""
    return y.float().mul_(s_a.reciprocal()).mul_(s_b.reciprocal()).to(y.dtype)


def through(x: Tensor, scale: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """`rounded`, one operation after another."""
    return (x.float() * scale).clamp(-largest, largest).to(dtype).to(x.dtype)


def through_a_table(x: Tensor, scale: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """`through` for a CPU, where torch widens E4M3 one number after another: looking the 256 values up takes half as
    long (torch 2.13). E5M2, the upper half of an FP16 number, needs no table."""
    y8 = (x.float() * scale).clamp_(-largest, largest).to(dtype)
    if dtype == torch.float8_e5m2:
        return y8.to(x.dtype)
    return F.embedding(y8.view(torch.uint8).int(), values_of(dtype, x.dtype)).squeeze(-1)


@functools.cache
def values_of(dtype: torch.dtype, to: torch.dtype) -> Tensor:
    """The values of the 256 codes, [256, 1]."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).to(to)[:, None]


def in_one_kernel(way: Way, device: torch.device) -> Way:
    """`way` compiled where Triton casts to FP8, as it is elsewhere."""
    if device.type == "cuda":
        from labkit.precision.broken import casts_in_triton  # a GPU's matter alone

        return compiled(way) if casts_in_triton(device) else way
    return way


@functools.cache
def compiled(way: Way, compiler: str = "inductor") -> Way:
    """The kernels of `way`, each of which reads and writes the tensor, as one. Nothing is fused with what comes before
    or after, so the values stay those of eager mode. The first tensor decides the tiles, also for other processes, by
    the compiler's cache on disk: after a small one a large one takes more than twice as long (H200)."""
    return torch.compile(way, backend=compiler, dynamic=True)
