"""torchao's float8 training (0.18): `Float8Linear`, with the recipes under torchao's own names.

    tensorwise            one scale per tensor; activations and weights E4M3, gradients E5M2
    rowwise               one power-of-two scale per row of each operand; E4M3 throughout
    rowwise_with_gw_hp    the same, but weight gradients are computed in BF16

Scales come from the tensor at hand, so there is no state. Weights are gathered in BF16 and cast on every rank.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from labkit.precision.base import Availability, Backend, importable, quiet_import
from labkit.precision.recipes import RECIPES

INSTALL = "pip install 'torchao>=0.18'"


class TorchAO(Backend):
    name = "torchao"
    recipes = tuple(RECIPES["torchao"])

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        needed = ("Float8LinearConfig", "convert_to_float8_training")
        return importable("torchao", "torchao.float8", needed, INSTALL)

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        float8 = quiet_import("torchao.float8")
        if not torch.cuda.is_available():
            _outside_onednn()
        holder = nn.ModuleDict({"linear": linear})  # the public entry also applies torchao's own compiler fixes
        float8.convert_to_float8_training(holder, config=float8.Float8LinearConfig.from_recipe_name(recipe))
        return holder["linear"]

    def _numbers(self) -> dict[str, Any]:
        config = next(iter(self.modules.values())).config
        formats = config.cast_config_input.target_dtype, config.cast_config_grad_output.target_dtype
        scaling = "tensor" if self.recipe == "tensorwise" else "row"
        return dynamic_flags(*formats, scaling, config.round_scales_to_power_of_2)

    def _rounding(self, linear: Any, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor]:
        """Of the products y and dx; rowwise recipes round dy and x once more, by columns, for dw."""
        config = linear.config
        cast = getattr(config, "cast_config_grad_output" if slot == "grad" else f"cast_config_{slot}")
        # Rows of x and dy are tokens, rows of w are output features: along a row runs the sum of the product, but for
        # w in dx, which torchao scales again.
        scale = float8_utils().tensor_to_scale(
            x,
            cast.target_dtype,
            scaling_granularity=cast.scaling_granularity,
            axiswise_dim=-1,
            round_scales_to_power_of_2=config.round_scales_to_power_of_2,
        )
        return cast.target_dtype, scale.float()


@functools.cache
def float8_utils() -> Any:
    """torchao's own functions from tensors to scales, and its amax epsilon."""
    return quiet_import("torchao.float8.float8_utils")


def dynamic_flags(
    forward: torch.dtype, backward: torch.dtype, scaling: str = "tensor", power_of_two: bool = False
) -> dict[str, Any]:
    """The flags (labkit.precision.flags) of scales that torchao finds from the tensor at hand."""
    names = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
    return {
        "forward": names[forward],
        "backward": names[backward],
        "scaling": scaling,
        "block": None,
        "power_of_two": power_of_two,
        "amax_epsilon": float(float8_utils().EPS),
    }


@functools.cache
def _outside_onednn() -> None:
    """Let torch's own kernel compute FP8 products on a CPU, in place of oneDNN's."""
    # On Intel CPUs torch 2.13 hands them to oneDNN, which has no kernel for them but its reference, two loops in plain
    # C++: [256, 128] @ [128, 128] takes 0.7 s there and 0.002 s in ATen, with the same result.
    ops = quiet_import("torchao.float8.float8_ops")
    original = ops.addmm_float8_unwrapped

    @functools.wraps(original)
    def product(a_data: Tensor, *args: Any, **named: Any) -> Tensor:
        if a_data.device.type != "cpu" or torch.compiler.is_compiling():
            return original(a_data, *args, **named)
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return original(a_data, *args, **named)
        finally:
            torch._C._set_mkldnn_enabled(enabled)

    ops.addmm_float8_unwrapped = product
