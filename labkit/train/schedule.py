"""BF16 first, FP8 for most of the run, BF16 at the end: a precision schedule, within one run.

    step   1 ... first | first + 1 ... steps - last | steps - last + 1 ... steps
           BF16        | FP8                        | BF16

The steps come from `[precision] schedule` and are a function of the step alone: so a run that is resumed in any phase
is in the right one. What switches is the backend (`Backend.switch`); weights, optimizer
and data go on. The step's held-out evaluation computes in the step's phase: what is judged is the model as it is being
trained.

Each switch is an event, "precision switch", with the step that is the first of the new phase. Each step's line says
what it computed in, and the run counts its steps in FP8 (`fp8_steps`), from the modules and not from this file: a run
of which a fifth was BF16 must not pass for an FP8 run.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import LabError
from labkit.precision.switch import BF16, FP8
from labkit.train.config import TrainConfig


class Schedule:
    """The phases of one run, and the backend that follows them. Without a schedule: what the backend computes in."""

    def __init__(self, config: TrainConfig, backend: Any) -> None:
        self.asked, self.steps, self.backend = config.precision.schedule, config.steps, backend
        self.now: str | None = None
        if self.asked and backend is None:
            raise LabError(
                "a precision schedule needs a precision backend: give `train` the one that converted the model"
            )

    def phase(self, step: int) -> str:
        """What step `step` (1, 2, ..., steps) computes in: "bf16" or "fp8"."""
        if not self.asked:
            return FP8
        first, last = self.asked.bf16_steps(self.steps)
        return FP8 if first < step <= self.steps - last else BF16

    def enter(self, step: int) -> str | None:
        """Bring the backend into the phase of `step`; a sentence if that was a switch within this run."""
        was, self.now = self.now, self.phase(step)
        if not self.asked or was == self.now:
            return None
        self.backend.switch(self.now)
        return was and f"the linears now compute in {self.now.upper()}, until here in {was.upper()}"

    def begins(self, step: int) -> bool:
        """Is `step`, whose phase has been entered, the first of its FP8 phase?"""
        return self.in_fp8() and (step == 1 or self.phase(step - 1) == BF16)

    def in_fp8(self) -> bool:
        """Do the linears compute in FP8 now? The backend's own answer."""
        return self.backend is not None and self.backend.in_fp8()

    def flags(self, step: int | None = None) -> dict[str, Any] | None:
        """What a checkpoint carries: the precision as it is now, or as it must have been after step `step`."""
        if self.backend is None:
            return None
        return {**self.backend.flags(), **({} if step is None else {"phase": self.phase(step)})}
