"""The backends that leave nn.Linear alone, baselines of every comparison: `bf16`, `fp32`, and autocast's `amp`."""

from contextlib import AbstractContextManager
from dataclasses import asdict, replace

import torch
from torch import nn

from labkit.errors import LabError
from labkit.precision.base import Backend, ConversionReport
from labkit.precision.config import PrecisionSpec
from labkit.precision.products import use as use_products

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast


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


class Amp(Plain):
    """Automatic mixed precision: torch.autocast over FP32 weights, in BF16 or in FP16, for every machine without FP8.

    Norms, softmax, the loss and the weights stay FP32. FP16 gradients below 6e-8 become zero, so it needs loss scaling
    (arXiv:1710.03740, section 3.2). A linear's SQNR against FP32 is about 51 dB in BF16 and 69 dB in FP16.
    """

    name = "amp"
    recipes = tuple(DTYPES)
    param_dtype = torch.float32
    note = "autocast casts the operands of every matrix product, the head's too; the weights stay FP32"

    def convert(self, model: nn.Module, spec: PrecisionSpec) -> ConversionReport:
        if named := [pattern for pattern in spec.skip if pattern != "head"]:
            raise LabError(
                f"amp casts every matrix product: [precision] skip = {named} would skip nothing, take it out"
            )
        report = super().convert(model, replace(spec, skip=()))
        if report.bf16_products is None or self.recipe != "fp16":
            return report
        return replace(report, bf16_products=asdict(use_products(half=True)))

    def autocast(self) -> AbstractContextManager:
        assert self.recipe is not None, "convert comes first"
        device = next(iter(self.modules.values())).weight.device
        return torch.autocast(device.type, DTYPES[self.recipe])
