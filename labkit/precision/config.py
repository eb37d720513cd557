"""What a run may ask of a precision: the tables of a config, and the one frozen spec that a backend is given.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from labkit.strict import Config, CountOrOff

Steps = Annotated[  # 20 is a number of steps, 0.1 a share of them
    Annotated[int, Field(ge=0), Tag("<steps>")] | Annotated[float, Field(ge=0, lt=1), Tag("<share>")],
    Discriminator(lambda value: "<share>" if isinstance(value, float) else "<steps>"),
]


class ScheduleConfig(Config):
    """Steps at the beginning and at the end of a run that compute in BF16; FP8 in between. See labkit.precision.phases.

    A whole number is a number of steps; a number with a point is a share of the run's steps.
    """

    bf16_first: Steps = 0
    bf16_last: Steps = 0

    def bf16_steps(self, steps: int) -> tuple[int, int]:
        """(first, last) in whole steps of a run of `steps`; a share that is not nothing is at least one step."""
        first, last = (
            max(round(value * steps), 1 if value else 0) if isinstance(value, float) else value
            for value in (self.bf16_first, self.bf16_last)
        )
        return first, last


class PrecisionConfig(Config):
    """Which number format the block linears compute in. `skip` names modules that stay in BF16."""

    backend: Annotated[str, Field(min_length=1)] = "bf16"  # the names: labkit.precision
    recipe: str | None = None  # None: the backend's own default
    skip: list[str] = Field(default=["head"])
    fused: bool = False  # te: norms and SwiGLU inside the linears' kernels
    schedule: ScheduleConfig | None = None  # BF16 at both ends of the run
    calibrate: CountOrOff = 0  # delayed scaling: passes to find scales where FP8 begins
    fp8_parameters: bool = False  # the weights themselves FP8, masters in the optimizer


@dataclass(frozen=True)
class PrecisionSpec:
    """All that a backend needs to know of a run: `labkit.precision.registry.spec_of` makes it from a PrecisionConfig.

    recipe: None is the backend's default. device: where the model will live (torch.device or its name); None: where its
    parameters are, else the GPU if there is one. ranks: FSDP2 cuts the weights over so many. tokens: of a micro-batch
    on one rank; None: not checked.
    """

    recipe: str | None = None
    skip: tuple[str, ...] = ()
    fused: bool = False
    fp8_parameters: bool = False
    calibrate: int = 0
    device: Any = None
    ranks: int = 1
    tokens: int | None = None
