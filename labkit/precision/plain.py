"""The backends that leave nn.Linear alone, baselines of every comparison: `bf16` and `fp32` (a third one: amp.py)."""

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
