"""The student's own FP8 linear as a precision backend, once it is finished.

Week 16 has students write an FP8 linear. When it works, it can run as one more arm of the comparison. Nothing depends
on it: before that, `availability` says so and the arm is skipped.

The part is named in `PARTS` below, as "module:name", and looked up when asked for. It must be a class with nn.Linear's
constructor, (in_features, out_features, bias=False, ...), and its `weight`. Buffers would not survive: a model is built
without memory, and only its parameters are given values afterwards.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.precision.base import Availability, Backend, in_words
from labkit.precision.formats import E4M3, E5M2, Format, scale_for

PARTS = {"week16": "week16_fp8.fp8_linear:FP8Linear"}  # backend name -> "module:name"

UNFINISHED = Availability(False, "your FP8 linear is not finished: arm skipped", "finish week 16 and run it again")


class Student(Backend):
    recipes = ("yours",)
    compiles = "between"  # nobody knows whether it can be compiled

    def __init__(self, name: str = "week16") -> None:
        super().__init__()
        self.name = name

    def _availability(self, recipe: str, device: torch.device | None) -> Availability:
        """Found, and able to run one small forward and backward pass?"""
        module, _, attribute = PARTS[self.name].partition(":")
        try:
            kind = _look_up(self.name)
            with torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")):  # not the caller's "meta"
                new = _like(kind, nn.Linear(16, 32, bias=False))
                x = torch.ones(16, 16, requires_grad=True)
                new(x).sum().backward()
        except NotImplementedError:
            return UNFINISHED
        except ModuleNotFoundError as error:
            if error.name and module.startswith(error.name):
                return Availability(False, f"there is no {module} here: arm skipped", "run from the course's folder")
            return _fails("does not import", error)
        except AttributeError as error:
            if getattr(error, "name", None) == attribute:
                return UNFINISHED
            return _fails("fails", error)
        except (Exception, SystemExit) as error:
            return _fails("fails", error)
        missing = [what for what, grad in (("its input", x.grad), ("its weight", new.weight.grad)) if grad is None]
        if missing:
            return Availability(False, f"your FP8 linear gives no gradient to {missing[0]}: arm skipped", "see week 16")
        return Availability(True)

    def replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        return _like(_look_up(self.name), linear)

    def scaling(self, linear: nn.Module, slot: str, x: Tensor) -> tuple[Format, Tensor] | None:
        """What the module says in its own `scaling(slot, x)`, if it has one; otherwise current scaling per tensor."""
        if hasattr(linear, "scaling"):
            return linear.scaling(slot, x)
        fmt = E5M2 if slot == "grad" else E4M3
        return fmt, scale_for(x.abs().amax().float(), fmt)


def _fails(how: str, error: BaseException) -> Availability:
    return Availability(False, f"your FP8 linear {how} ({in_words(error)}): arm skipped", "see week 16's checks")


def _look_up(name: str) -> type[nn.Module]:
    module, _, attribute = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _like(kind: type[nn.Module], linear: nn.Linear) -> nn.Module:
    new = kind(linear.in_features, linear.out_features, bias=linear.bias is not None)
    if not isinstance(getattr(new, "weight", None), nn.Parameter) or new.weight.shape != linear.weight.shape:
        raise LabError(f"{kind.__name__} has no parameter `weight` of shape [out_features, in_features]")
    new.weight = linear.weight
    if linear.bias is not None:
        new.bias = linear.bias
    return new
