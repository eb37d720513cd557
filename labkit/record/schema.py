"""What run.json holds, as types: parsed once when a run is read, attributes from then on.

Records of every version stay readable: unknown keys are left out, and a value of another type counts as absent.
"""

import math
from contextlib import suppress
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic import ValidationInfo as Info
from pydantic import ValidatorFunctionWrapHandler as Handler

from labkit.record.kernels import Breakdown


class Record(BaseModel):
    """What all tables of a record share: nothing that stands in one is an error."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As on disk, where names differ."""
        return super().model_dump(by_alias=True, **how)

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_its_default(cls, value: Any, parse: Handler, info: Info) -> Any:
        # Of several tables one that is none must not cost the others.
        kept: Any = None
        if isinstance(value, dict):
            kept = {key: one for key, one in value.items() if isinstance(one, dict)}
        elif isinstance(value, list):
            kept = [one for one in value if isinstance(one, dict)]
        for attempt in (value, kept):
            with suppress(ValidationError):
                return parse(attempt)
        return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)


def on_disk(name: str, default: Any = None) -> Any:
    """A field that has this name in run.json."""
    return Field(default=default, validation_alias=name, serialization_alias=name)


BASELINE_FORMAT = AliasChoices("baseline_format", "yardstick")  # the second in records of before


# ---- every run


class Cpu(Record):
    model: str | None = None
    architecture: str | None = None
    cores: int | None = None
    usable_threads: int | None = None


class Gpu(Record):
    name: str | None = None
    driver: str | None = None
    capability: str | None = None


class Hardware(Record):
    cpu: Cpu = Field(default_factory=Cpu)
    gpus: list[Gpu] = []
    memory_bytes: float | None = None
    os: str | None = None


class World(Record):
    """The ranks: how many, on "cpu" or "cuda"."""

    size: int | None = None
    device: str | None = None


class Precision(Record):
    backend: str | None = None
    recipe: str | None = None


class PlannedArm(Record):
    """An arm of the preset. of: the arm of which it is a further run; look: the interim analysis that it is for."""

    label: str | None = None
    role: str | None = None
    of: str | None = None
    look: int = 1


class PlannedSpeed(Record):
    arms: list[str] = []
    seconds: float | None = None


class Settings(Record):
    """Of `config`, a training's or a preset's, what readers of records ask for."""

    title: str | None = None
    note: str = ""
    device: str | None = None
    format: str = "FP8"
    baseline_format: str = Field(default="BF16", validation_alias=BASELINE_FORMAT)
    parts: list[str] = ["speed", "safety"]
    repeat: dict[str, Any] | None = None
    arms: dict[str, PlannedArm] = {}
    speed: PlannedSpeed = Field(default_factory=PlannedSpeed)
    steps: int | None = None
    train: dict[str, Any] = {}
    precision: Precision = Field(default_factory=Precision)


class Item(Record):
    """One arm of one part ("speed" or "safety"): seconds predicted and measured; left: for another call."""

    part: str = ""
    arm: str = ""
    label: str = ""
    predicted_s: float = 0.0
    measured_s: float | None = None
    left: bool | None = None

    @property
    def key(self) -> str:
        return f"{self.part} {self.arm}"


class Began(Record):
    """The call that is at work in a comparison's folder: since 1970, with its limit and what it predicted."""

    began: float | None = None
    minutes: float | None = None
    predicted_s: float | None = None
    items: list[Item] = []


class RunFile(Record):
    """run.json, whoever wrote it."""

    kind: str = ""
    status: str = "unknown"
    command: str | None = None
    title: str | None = None
    label: str | None = None
    role: str | None = None
    device: str | None = None
    started: str | None = None
    finished: str | None = None
    call: Began = Field(default_factory=Began)
    config: Settings = Field(default_factory=Settings)
    hardware: Hardware | None = None
    world: World | None = None
    precision: Precision = Field(default_factory=Precision)
    versions: dict[str, Any] = {}
    corpus: dict[str, Any] = {}
    seeds: Any = None
    parameters: float | None = None


# ---- one training


class StepMemory(Record):
    peak_bytes: int | None = None


class Step(Record):
    """A line of steps.jsonl, as far as comparisons read it by name; `RunData.series` has the rest."""

    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    memory: StepMemory = Field(default_factory=StepMemory)
    skipped: bool = False

    @property
    def lost(self) -> bool:
        """Was the loss or the gradient's norm NaN or infinite?"""
        return not all(math.isfinite(value) for value in (self.loss, self.grad_norm) if value is not None)


class Event(Record):
    """A line of events.jsonl."""

    time: str = ""
    step: int | None = None
    kind: str = ""
    message: str = ""


class Conversion(Record):
    """What a backend made of the model's linears."""

    converted: list[str] | None = None
    skipped: dict[str, str] = {}
    module_type: str | None = None
    backend: str | None = None
    note: str = ""


class Timing(Record):
    """A window of timed steps. Seconds a step, bytes of a rank; device_used_bytes: as the driver counts; error: half of
    the 95 % interval of the median step, as a share of it."""

    tokens_per_s: float = math.nan
    mean_tokens_per_s: float | None = None
    step_p10: float = math.nan
    step_p50: float = math.nan
    step_p90: float = math.nan
    steps: int = 0
    warmup: int = 0
    window_s: float | None = None
    error: float | None = None
    memory: dict[str, int] = {}
    kernels: Breakdown | None = None
    device_used_bytes: int | None = on_disk("taken_bytes")
    meter: dict[str, Any] | None = None
    shortages: int | None = None
    windows: int = 1  # 2: the first scattered, and this is the second


class TrainResults(Record):
    """What `train_job` leaves. peak_bytes: of each rank; steps: where it ended; skipped: steps without an update."""

    tokens_per_s: float | None = None
    peak_bytes: list[int] = []
    steps: int | None = None
    skipped: list[int] = []
    stopped: str | None = None
    paused: bool = False
    fp8_steps: int | None = None
    evidence: dict[str, Any] = {}
    speed: Timing | None = None


class TrainRun(RunFile):
    conversion: Conversion = Field(default_factory=Conversion)
    evidence: dict[str, Any] = {}
    results: TrainResults = Field(default_factory=TrainResults)


# ---- a comparison


class Sqnr(Record):
    """The lowest signal to quantisation noise of a run."""

    tensor: str = ""
    db: float = math.nan
    step: int = 0


class ArmRow(PlannedArm):
    """An arm of the loss's part. val_loss: the last, in nats a token; converted, skipped: linears; nonfinite: steps."""

    status: str = "pending"
    note: str = ""
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    val_loss: float | None = on_disk("heldout")
    sqnr: Sqnr | None = None
    converted: int | None = None
    skipped: int | None = None
    nonfinite: int | None = None


class TimedRow(Timing):
    """An arm of the speed part. tokens_step: of one rank; mfu: by convention and peak, shares of 1."""

    label: str = ""
    role: str = ""
    library: str = "plain"
    attention: str | None = None
    batch: int = 0
    seq_len: int = 0
    ranks: int = 1
    tokens_step: int = 0
    skipped: int = 0
    fused: bool = False
    converted: int | None = None
    width: int | None = None
    module_types: dict[str, int] | None = None
    flops_per_s: dict[str, float] = {}
    mfu: dict[str, float] = {}
    mfu_note: str = ""

    def per_thousand(self, seconds: float | None = None) -> float:
        """Milliseconds that a GPU needs for 1,000 tokens, from its seconds for a step; default: the median step."""
        return 1e3 * (self.step_p50 if seconds is None else seconds) * 1000 / self.tokens_step

    @property
    def of_one(self) -> float:
        """Tokens/s of a GPU, or of a CPU's rank."""
        return self.tokens_per_s / self.ranks

    @property
    def unit(self) -> str:
        return "tokens/s" if self.ranks == 1 else "tokens/s a GPU" if self.mfu else "tokens/s a rank"

    @property
    def half_spread(self) -> float:
        """Half of the distance from the 10th to the 90th percentile of the step times, as a share of the median."""
        return (self.step_p90 - self.step_p10) / self.step_p50 / 2


class Ratio(Record):
    """Of tokens/s: to the baseline's, with half of its 95 % interval, and to the BF16 of the arm's own library."""

    baseline: float | None = None
    error: float | None = None
    library: float | None = None


class SpeedVerdict(Record):
    """word: faster, same, slower, incomplete. next: what to try."""

    word: str = "incomplete"
    sentence: str = ""
    reasons: list[str] = []
    next: list[str] = []
    ratios: dict[str, Ratio] = {}
    best: str | None = None


class SpeedResults(Record):
    arms: dict[str, TimedRow] = {}
    verdict: SpeedVerdict = Field(default_factory=SpeedVerdict)


class Judged(Record):
    """One run in the verdict. gap: [(step, per cent)] against the baseline. An arm's first run also has what was found
    over all of its runs: value, its interval low to high and error, per cent; needed: runs that would decide it."""

    gap: list[tuple[int, float]] = []
    value: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    runs: int | None = None
    needed: int | None = None
    look: int = 1
    step: int | None = None
    word: str = ""
    sentence: str = ""


class Band(Record):
    """The gaps that are accepted, per cent."""

    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    name: str = ""


class Verdict(Record):
    """On the losses. word: pass, fail, undecided, no-power, incomplete; judged, asked: how many; next: advice."""

    word: str = "incomplete"
    sentence: str = ""
    reasons: list[str] = []
    statistic: str = ""
    band: Band | None = None
    from_step: int | None = None
    judged: int = 0
    asked: int = 0
    candidates: list[str] = []
    arms: dict[str, Judged] = {}
    next: list[str] = []


class Call(Record):
    """One call of `lab compare`. ended: False where it was killed, and what it took is a least."""

    began: float | None = None
    minutes: float | None = None
    price_per_hour: float | None = None
    seconds: float = 0.0
    cost: float | None = None
    ended: bool = True
    items: list[Item] = []

    @property
    def done(self) -> list[Item]:
        return [item for item in self.items if item.measured_s is not None]

    @property
    def left(self) -> list[Item]:
        # Old records say of no item that it was left.
        return [item for item in self.items if (item.measured_s is None if item.left is None else item.left)]


class Try(Record):
    """One batch that an arm was tried with on a GPU of `gib`. bytes: need, at the peak, and rest, between two steps."""

    micro_batch_size: int = on_disk("rows", 0)
    fitted: bool = False
    need: int | float = 0
    rest: int | float = 0
    short: int = 0
    gib: float | None = None


class CompareResults(Record):
    arms: dict[str, ArmRow] = {}
    verdict: Verdict | None = None
    speed: SpeedResults | None = None
    calls: list[Call] = []
    tries: dict[str, list[Try]] = {}

    @property
    def timed(self) -> dict[str, TimedRow]:
        return self.speed.arms if self.speed else {}


class CompareRun(RunFile):
    results: CompareResults = Field(default_factory=CompareResults)
