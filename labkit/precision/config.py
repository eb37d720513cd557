"""What a run may configure of a precision, and the one frozen spec that a backend is given. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from labkit.precision.flags import OPERANDS
from labkit.strict import Config, Count, CountOrOff, require

Epsilon = Annotated[float, Field(ge=0, lt=1)]
# A scale may be any FP32 number, or a power of two, all that E8M0's eight bits can hold. None: the recipe's own.
ScaleKind = Literal["fp32", "e8m0"] | None

PLAIN = ("fp32", "bf16", "amp")  # the backends whose linears are nn.Linear: nothing is converted

Steps = Annotated[  # 20 is a number of steps, 0.1 a share of them
    Annotated[int, Field(ge=0), Tag("<steps>")] | Annotated[float, Field(ge=0, lt=1), Tag("<share>")],
    Discriminator(lambda value: "<share>" if isinstance(value, float) else "<steps>"),
]


class ScheduleConfig(Config):
    """First and last steps of a run that compute in BF16, FP8 in between: a number, or a share of the run's steps."""

    bf16_first: Steps = 0
    bf16_last: Steps = 0

    def bf16_steps(self, steps: int) -> tuple[int, int]:
        """(first, last) in whole steps of a run of `steps`; a share that is not nothing is at least one step."""
        first, last = (
            max(round(value * steps), 1 if value else 0) if isinstance(value, float) else value
            for value in (self.bf16_first, self.bf16_last)
        )
        return first, last


class AmaxEpsilon(Config):
    """The least amax that a scale is made from, by operand; 0: none."""

    input: Epsilon = 0.0
    weight: Epsilon = 0.0
    gradient: Epsilon = 0.0


class ScaleKinds(Config):
    """What kind of number a scale is, by operand."""

    input: ScaleKind = None
    weight: ScaleKind = None
    gradient: ScaleKind = None


class LossScaling(Config):
    """What an FP16 run multiplies its loss by: see labkit.train.loss_scale. dynamic = false keeps `initial`."""

    initial: Annotated[float, Field(gt=0)] = 65536.0
    dynamic: bool = True
    growth_interval: Count = 2000  # good steps in a row until it doubles


class PrecisionConfig(Config):
    """Which number format the block linears compute in. `skip` names modules that stay in BF16."""

    backend: Annotated[str, Field(min_length=1)] = "bf16"  # the names: labkit.precision
    recipe: str | None = None  # None: the backend's own default
    skip: list[str] = Field(default=["head"])
    fused: bool = False  # te: norms and SwiGLU inside the linears' kernels
    schedule: ScheduleConfig | None = None  # BF16 at both ends of the run
    calibrate: CountOrOff = 0  # delayed scaling: passes to find scales where FP8 begins
    fp8_parameters: bool = False  # the weights themselves FP8, masters in the optimizer
    amax_epsilon: AmaxEpsilon = AmaxEpsilon()  # te block, emulated, week16: amaxes below it count as it
    scales: ScaleKinds = ScaleKinds()  # the same: any FP32 number, or powers of two alone
    loss_scaling: LossScaling | None = None  # amp fp16; None: dynamic, from 65536

    @field_validator("amax_epsilon", "scales", mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        """A number or a name alone is for all three operands."""
        return dict.fromkeys(OPERANDS, value) if type(value) in (int, float, str) else value

    @model_validator(mode="after")
    def _only_fp16_scales_its_loss(self) -> "PrecisionConfig":
        require(
            self.loss_scaling is None or self.recipe == "fp16",
            "loss_scaling is for backend amp with recipe fp16, whose range needs it: take it out",
        )
        return self

    @property
    def scaled_loss(self) -> LossScaling | None:
        """How the loss is scaled; None: it is not."""
        return (self.loss_scaling or LossScaling()) if self.recipe == "fp16" else None


@dataclass(frozen=True)
class PrecisionSpec:
    """All that a backend needs to know of a run (`labkit.precision.registry.spec_of`); None: the default, or not checked.

    device: where the model will live; ranks: FSDP2 cuts the weights over so many; tokens: of a rank's micro-batch.
    """

    recipe: str | None = None
    skip: tuple[str, ...] = ()
    fused: bool = False
    fp8_parameters: bool = False
    calibrate: int = 0
    device: Any = None
    ranks: int = 1
    tokens: int | None = None
    amax_epsilon: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
