"""What week 16 gives to the comparison, once it is finished: the student's own FP8 linear, and the week's reference.

`PARTS` ("module:name") is imported when a run requests one; before the week is solved, the arm is skipped. `emulated`
is a `Backend` of its own; `week16` a class with nn.Linear's constructor and its `weight`, without buffers (models are
built on "meta"), 16.10's where the GPU has FP8 products and it is solved, else 16.5's. `scaled(amax_epsilon, scales)`
gives its constructor's keyword `recipe`, `numbers()` says what a module computes in (labkit.precision.flags).
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import LabError, in_words
from labkit.precision.base import Availability, Backend
from labkit.precision.flags import compact
from labkit.precision.recipes import FP8_UNITS, RECIPES, lacks
from labkit.precision.torchao_backend import float8_utils

PARTS = {"week16": "week16_fp8.linear:FP8Linear", "emulated": "week16_fp8.emulated:Emulated"}
TENSOR_CORES = "week16_fp8.stretch.tensor_cores:TensorCoreLinear"
NAMES = {"week16": "your FP8 linear", "emulated": "week 16's emulated FP8"}


def emulated() -> Backend:
    """Week 16's reference; where it cannot be had, a backend that says why."""
    try:
        return load(PARTS["emulated"])()
    except (Exception, SystemExit) as error:
        return Absent(explain("emulated", error))


class Absent(Backend):
    """In the place of week 16's reference where it is not there or not finished."""

    name = "emulated"
    recipes = tuple(RECIPES["emulated"])

    def __init__(self, why: Availability) -> None:
        super().__init__()
        self._why = why

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        return self._why


class Student(Backend):
    name = "week16"
    recipes = ("yours",)
    note = "emulated: FP8 values multiplied in BF16; says nothing about FP8's speed"
    compiles = "between"  # nobody knows whether it can be compiled

    def __init__(self) -> None:
        super().__init__()
        self._part = PARTS[self.name]

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        has_cuda = torch.cuda.is_available() and (device is None or device.type == "cuda")
        if has_cuda and not lacks((FP8_UNITS,), torch.cuda.get_device_capability(device)):
            able = try_out(self.name, lambda linear: self._holding(load(TENSOR_CORES), linear), device)
            if able.ok:
                self._part, self.compiles = TENSOR_CORES, "block"
                self.note = "FP8 products on tensor cores (task 16.10)"
                return able
            self.note = f"emulated, since task 16.10's products on tensor cores are not to be had: {able}"
        return try_out(self.name, lambda linear: self._replace(linear, recipe), device)

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return self._holding(load(self._part), linear)

    def _holding(self, kind: Any, linear: nn.Linear) -> nn.Module:
        """A `kind` with the parameters of `linear`."""
        options = {}
        if self._epsilon or self._scales:
            if not hasattr(kind, "scaled"):
                raise LabError(f"{kind.__name__} has no `scaled`, so amax_epsilon and scales cannot reach it")
            options["recipe"] = kind.scaled(self._epsilon, self._scales)
        new = kind(linear.in_features, linear.out_features, bias=linear.bias is not None, **options)
        if not isinstance(getattr(new, "weight", None), nn.Parameter) or new.weight.shape != linear.weight.shape:
            raise LabError(f"{kind.__name__} has no parameter `weight` of shape [out_features, in_features]")
        new.weight = linear.weight
        if linear.bias is not None:
            new.bias = linear.bias
        return new

    def _numbers(self) -> dict[str, Any]:
        module: Any = next(iter(self.modules.values()), None)
        return compact(module.numbers()) if hasattr(module, "numbers") else super()._numbers()

    def _rounding(self, linear: Any, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor] | None:
        """What the module says in its own `scaling(slot, x)`, if it has one; otherwise current scaling per tensor."""
        if hasattr(linear, "scaling"):
            return linear.scaling(slot, x)
        dtype = torch.float8_e5m2 if slot == "grad" else torch.float8_e4m3fn
        return dtype, float8_utils().tensor_to_scale(x, dtype)


def load(part: str) -> Any:
    """What "module:name" means."""
    module, _, attribute = part.partition(":")
    return getattr(importlib.import_module(module), attribute)


def try_out(name: str, replace: Callable[[nn.Linear], nn.Module], device: torch.device | None) -> Availability:
    """Able to run one small forward and backward pass?"""
    try:
        with torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")):  # not the caller's "meta"
            new: Any = replace(nn.Linear(16, 32, bias=False))
            x = torch.ones(16, 16, requires_grad=True)
            new(x).sum().backward()
    except (Exception, SystemExit) as error:
        return explain(name, error)
    missing = [what for what, grad in (("its input", x.grad), ("its weight", new.weight.grad)) if grad is None]
    if missing:
        return Availability(False, f"{NAMES[name]} gives no gradient to {missing[0]}: arm skipped", "see week 16")
    return Availability(True)


def explain(name: str, error: BaseException) -> Availability:
    """An error of a part in words; NotImplementedError is a task that is not solved yet."""
    module, _, attribute = PARTS[name].partition(":")
    if isinstance(error, NotImplementedError) or (isinstance(error, AttributeError) and error.name == attribute):
        return Availability(False, f"{NAMES[name]} is not finished: arm skipped", "finish week 16 and run it again")
    if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
        return Availability(False, f"there is no {module} here: arm skipped", "run from the course's folder")
    return Availability(False, f"{NAMES[name]} fails ({in_words(error)}): arm skipped", "see week 16's checks")
