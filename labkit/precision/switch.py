"""A linear that can be told, in the middle of a run, to compute in BF16 instead of FP8 and back.

FP8 hurts most where a run is most sensitive: in its first steps, when weights and activations change by the step, and
in its last, when the learning rate is so small that rounding is all that is left to see. So a schedule trains a few
steps at both ends in BF16 (`[precision] schedule`, see labkit.train.schedule), in one run, with the same weights,
optimizer and data.

`switched(kind)` puts `Switch` in front of a linear's own class. While `plain` is set the module is an nn.Linear: one
product of its input and its weight, in the type they have (under FSDP2 that is the BF16 copy that was gathered);
otherwise the class behind it computes as ever. The module keeps its parameters and its place in the model.

Under torch.compile the flag is a constant of the compiled code: each switch compiles every block's second form, once,
so one more graph, and a step that takes as long as the first one did. Transformer Engine needs none of this: it has a
switch of its own, `te.autocast(enabled=...)`.
"""

from __future__ import annotations

import functools

import torch.nn.functional as F
from torch import Tensor, nn

BF16, FP8 = "bf16", "fp8"  # the two phases


class Switch:
    """Mixed in front of a linear's class; `plain` chooses."""

    plain = False

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, getattr(self, "bias", None)) if self.plain else super().forward(x)


@functools.cache
def switched(kind: type[nn.Module]) -> type[nn.Module]:
    """`kind` with a switch: a class named "Switched<kind>", whose instances may be made from those of `kind` by setting
    their `__class__`."""
    return type(f"Switched{kind.__name__}", (Switch, kind), {"__module__": __name__})


def set_plain(modules: list[nn.Module], plain: bool) -> None:
    """Make all `modules` plain, or FP8 again. A module gets its switch the first time that it is made plain."""
    for module in modules:
        if plain and not isinstance(module, Switch):
            module.__class__ = switched(type(module))
        if isinstance(module, Switch):
            module.plain = plain
