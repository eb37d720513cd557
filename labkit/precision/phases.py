"""BF16 first, FP8 for most of the run, BF16 at the end: a precision schedule, within one run.

    step   1 ... first | first + 1 ... steps - last | steps - last + 1 ... steps
           BF16        | FP8                        | BF16

The phase is a function of the step alone, so a resumed run is in the right one. `switched(kind)` puts `Switch` in front
of a linear's class: while `plain` is set, the module is an nn.Linear.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.precision.config import ScheduleConfig

BF16, FP8 = "bf16", "fp8"  # the two phases


class Switch(nn.Module):
    """Mixed in front of a linear's class; `plain` chooses."""

    plain = False
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, getattr(self, "bias", None)) if self.plain else super().forward(x)


@functools.cache
def switched(kind: type[nn.Module]) -> type[nn.Module]:
    """The class "Switched<kind>"; instances of `kind` become its by setting `__class__`."""
    return type(f"Switched{kind.__name__}", (Switch, kind), {"__module__": __name__})


def set_plain(modules: Iterable[nn.Module], plain: bool) -> None:
    """Make all `modules` plain, or FP8 again. A module gets its switch the first time that it is made plain."""
    for module in modules:
        if plain and not isinstance(module, Switch):
            kind: Any = type(module)  # Any: to mypy a metaclass's instances are not hashable
            module.__class__ = switched(kind)
        if isinstance(module, Switch):
            module.plain = plain


class PrecisionSchedule:
    """The phases of a run of `steps`, and the `base.Backend` (or None) that follows them. config None: one phase."""

    def __init__(self, config: ScheduleConfig | None, steps: int, backend: Any) -> None:
        self.config, self.steps, self.backend = config, steps, backend
        self.now: str | None = None
        if config and backend is None:
            raise LabError("a precision schedule needs the backend that converted the model: give it to `train`")

    def phase(self, step: int) -> str:
        """What step `step` (1, 2, ..., steps) computes in: "bf16" or "fp8"."""
        if not self.config:
            return FP8
        first, last = self.config.bf16_steps(self.steps)
        return FP8 if first < step <= self.steps - last else BF16

    def enter(self, step: int) -> str | None:
        """Bring the backend into the phase of `step`; a sentence if that was a switch within this run."""
        was, self.now = self.now, self.phase(step)
        if self.backend is None or not self.config or was == self.now:
            return None
        self.backend.switch(self.now)
        return was and f"the linears now compute in {self.now.upper()}, until here in {was.upper()}"

    def begins(self, step: int) -> bool:
        """Is `step`, whose phase has been entered, the first of its FP8 phase?"""
        return self.in_fp8() and (step == 1 or self.phase(step - 1) == BF16)

    def in_fp8(self) -> bool:
        """Do the linears compute in FP8 now? The backend's own answer."""
        return self.backend is not None and self.backend.state.in_fp8()

    def flags(self, step: int | None = None) -> dict[str, Any] | None:
        """What a checkpoint carries: the precision as it is now, or as it must have been after step `step`."""
        if self.backend is None:
            return None
        return {**self.backend.state.flags(), **({} if step is None else {"phase": self.phase(step)})}
