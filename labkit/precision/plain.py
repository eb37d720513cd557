"""The backends that leave nn.Linear alone: the baselines of every comparison. (A third one is amp.py.)

`bf16`: weights are gathered and multiplied in BF16 (8 bits of mantissa less than FP32's 24, the same range).
`fp32`: nothing is rounded below FP32.

Neither replaces a module, so `converted` lists the linears that compute in this format. They have no scale. A probe
still gives the SQNR of each layer's output against FP32: about 56 dB for BF16, against which FP8's number is held.
"""

from __future__ import annotations

import torch
from torch import nn

from labkit.precision.base import Backend


class Plain(Backend):
    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return linear

    def _in_fp8(self) -> bool:
        return False


class BF16(Plain):
    name = "bf16"
    recipes = ("bf16",)
    param_dtype = torch.bfloat16


class FP32(Plain):
    name = "fp32"
    recipes = ("fp32",)
    param_dtype = torch.float32
