"""Presets: what `lab compare` trains, as TOML files in labkit/compare/presets/ or of your own.

Their keys are the fields of these classes. An arm is the same training with a few settings changed.
"""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from labkit.errors import LabError
from labkit.record.schema import BASELINE_FORMAT
from labkit.strict import Config, read_file, strict_validate
from labkit.train.config import TrainConfig

CONTROLS = ("baseline", "broken")  # roles that a verdict on any candidate rests on
PRESETS = Path(__file__).parent / "presets"
ROUNDING = 2.0**-9  # half a unit in bf16's last place, relative: what rounding the weights once may have done
ALONE = 3  # runs of a candidate where no record tells the spread
HARMLESS = ("train.checkpoint_every", "train.checkpoint_at_end", "train.probe_every")  # they change no training
Gib = Annotated[str, Field(pattern=r"^\d+\.?\d*$")]  # a key, as in { "70" = 8 }
UNENDING = 10**6  # steps of a timed training: the window ends it, and the schedule stays flat


class Expect(Config):
    """Tokens/s of one rank in each part, seconds of start-up and of all probes, steps until a control is rejected."""

    speed: float | None = Field(default=None, gt=0, strict=False)
    safety: float | None = Field(default=None, gt=0, strict=False)
    startup: float | None = Field(default=None, ge=0, strict=False)
    probes: float = Field(default=0.0, ge=0, strict=False)
    steps: int | None = Field(default=None, ge=1)


class Speed(Config):
    """[speed]: how fast the arms are, at another size, in how long a window."""

    arms: list[str] = Field(min_length=1)  # the baseline among them
    seconds: float = Field(default=60.0, gt=0, strict=False)  # of each arm's window
    least: float | None = Field(default=None, gt=0, strict=False)  # it may end from here on: labkit.compare.speed
    warmup: int = Field(default=8, ge=3)  # steps before it
    profile: int = Field(default=2, ge=0)  # steps after it
    train: dict[str, Any] = Field(default_factory=dict)  # put over [train]; the arm's own settings go on top
    batch_by_memory: dict[Gib, int] = Field(default_factory=dict)  # {GiB of a GPU at least: sequences a micro-batch}
    batch: Literal["largest"] | None = None  # from these on, the most that fit: labkit.compare.batches


class Records(Config):
    """What records tell of one run's scatter: standard deviations in per cent; how many deviations it counts for."""

    baseline: float = Field(gt=0, strict=False)
    candidate: float = Field(gt=0, strict=False)
    weight: float = Field(gt=0, strict=False)


class Repeat(Config):
    """[repeat]: how often each arm is trained. Its runs are arms: `bf16-2` is the second run of bf16."""

    baseline: int = Field(default=4, ge=2)
    candidate: int = Field(default=ALONE, ge=2)
    more: int = Field(default=ALONE, ge=0)  # further runs of one that is undecided after these
    seed: int = Field(default=0, ge=0)  # another number, other draws
    judged: list[str] = Field(default_factory=list)  # these alone, the first of them first, if nobody names arms
    spread: Records | None = None  # `--set train...` makes another training, and drops it


class ArmConfig(Config):
    """[arms.NAME]: one training of the comparison. of, look: which arm's further run it is, for which interim analysis."""

    label: str
    # "broken" must be rejected, or the comparison has no power; "fine" is broken so little that it may pass unseen.
    role: Literal["baseline", "reference", "candidate", "broken", "fine", "repeat"]
    train: dict[str, Any] = Field(default_factory=dict)  # put over [train]
    gate: str | None = None  # train this arm only if that one has passed: labkit.compare.plan
    of: str | None = None
    look: int = 1
    expect: Expect = Field(default_factory=lambda: Expect())


class Preset(Config):
    """A whole comparison. `name` is the file's stem."""

    name: str
    title: str
    device: Literal["cpu", "cuda"] = "cpu"
    world_size: int = Field(default=1, ge=0)  # ranks; 0: every GPU of this machine
    parts: list[Literal["speed", "safety"]] = Field(default=["speed", "safety"], min_length=1)
    check: bool = False  # without [repeat]: not whether losses are the same, only whether arms run, convert and learn
    note: str = ""
    format: str = Field(default="FP8", min_length=1)  # what the candidates are called in sentences
    # What the baseline is called; "yardstick" in records and presets of before.
    baseline_format: str = Field(default="BF16", min_length=1, validation_alias=BASELINE_FORMAT)
    without_fp8: str | None = None  # the preset that answers on a GPU without FP8 products
    startup_seconds: float = Field(default=20.0, ge=0, strict=False)
    again_seconds: float | None = Field(default=None, ge=0, strict=False)  # of a run in the processes of the last one
    ahead_seconds: float = Field(default=0.0, ge=0, strict=False)  # of these, in which processes start beside others
    train: dict[str, Any]  # of labkit.train.config.TrainConfig
    arms: dict[str, ArmConfig]
    speed: Speed | None = None
    repeat: Repeat | None = None

    @property
    def timed(self) -> list[str]:
        """The arms of the speed part; none without one."""
        return self.speed.arms if self.speed else []

    @property
    def judged(self) -> list[str]:
        """The candidates whose loss is compared if nobody names arms."""
        candidates = [name for name, arm in self.arms.items() if arm.role == "candidate"]
        return self.repeat.judged or candidates if self.repeat else candidates

    @property
    def trained(self) -> list[str]:
        """The arms that are trained for their loss if nobody names arms."""
        if not (self.repeat and self.repeat.judged):
            return list(self.arms)
        ours = (self.baseline(), *self.judged)
        return [n for n, arm in self.arms.items() if n in ours or arm.of in ours or arm.role == "broken"]

    def window(self) -> Speed:
        """[speed]; LabError if there is none."""
        if self.speed is None:
            raise LabError(f"preset {self.name} has no [speed] section, so there is nothing to time")
        return self.speed

    def speed_config(self, arm: str, memory_gib: float | None = None, world: int = 1) -> TrainConfig:
        """The training that an arm is timed in, without evaluations, probes or checkpoints; memory_gib: of each GPU."""
        timed: dict[str, Any] = {"steps": UNENDING, "perturb": 0.0, "warmup_steps": 0}
        timed |= {"eval_every": 0, "probe_every": 0, "checkpoint_every": 0, "recovery": {"rollback_after": 0}}
        window, own = self.window(), self.arms[arm].train
        fitting = [rows for gib, rows in window.batch_by_memory.items() if memory_gib and memory_gib >= float(gib)]
        parts = reduce(_merge, (self.train, window.train, own)).get("accumulation", 1)
        batch = {"batch_size": max(fitting) * world * parts} if fitting and isinstance(parts, int) else {}
        merged = reduce(_merge, (self.train, batch, window.train, own, timed))
        return strict_validate(TrainConfig, merged, f"preset {self.name}, [speed], arm {arm}")

    def config(self, arm: str) -> TrainConfig:
        """The full training configuration of one arm."""
        where = f"preset {self.name}, arm {arm}"
        return strict_validate(TrainConfig, _merge(self.train, self.arms[arm].train), where)

    def config_of(self, part: str, arm: str, memory_gib: float | None, world: int) -> TrainConfig:
        """The training that an arm runs in this part, "speed" or "safety"."""
        return self.speed_config(arm, memory_gib, world) if part == "speed" else self.config(arm)

    def baseline(self) -> str:
        """Name of the arm that the others are held against."""
        return next(name for name, arm in self.arms.items() if arm.role == "baseline")

    def only(self, names: Iterable[str]) -> "Preset":
        """The preset with these arms and their runs alone, in the preset's order; an unknown name is a LabError."""
        wanted = [name.strip() for name in names]
        if unknown := [name for name in wanted if name not in self.arms]:
            raise LabError(f"preset {self.name} has no arm '{unknown[0]}'; it has: {', '.join(self.arms)}")
        return self.model_copy(update={"arms": {k: v for k, v in self.arms.items() if {k, v.of} & set(wanted)}})


def available() -> list[str]:
    """Names of the presets that come with labkit."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_preset(name: str, settings: Iterable[str] = ()) -> Preset:
    """A preset by name or TOML file, with `KEY=VALUE` settings put over it. LabError: no such preset, or a wrong one."""
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file() and not name.endswith(".toml"):
        raise LabError(f"there is no preset '{name}'; there are: {', '.join(available())} (or give a TOML file)")
    raw, settings = read_file(path, tomllib.loads, "TOML"), list(settings)
    for setting in settings:
        _put(raw, setting)
    preset = strict_validate(Preset, {"name": path.stem, **raw}, f"preset {path.stem}")
    baselines = [name for name, arm in preset.arms.items() if arm.role == "baseline"]
    if len(baselines) != 1:
        raise LabError(f'preset {path.stem} needs exactly one arm with role = "baseline"; it has {len(baselines)}')
    preset = with_runs(preset, [setting.partition("=")[0].strip() for setting in settings])
    for arm in preset.arms:
        preset.config(arm)
    if wrong := next(mistakes(preset), ""):
        raise LabError(wrong)
    return preset


def with_runs(preset: Preset, changed: Sequence[str] = ()) -> Preset:
    """The preset with an arm for each further run; changed: settings put over it, which void the records' spread."""
    if not (repeat := preset.repeat):
        return preset
    other = any(".train." in f".{key}" and key not in HARMLESS and not key.startswith("speed.") for key in changed)
    if repeat.spread and other and not any(key.startswith("repeat.spread") for key in changed):
        runs = {key: max(ALONE, getattr(repeat, key)) for key in ("candidate", "more")}
        repeat = repeat.model_copy(update={"spread": None, **runs})
    first: dict[str, ArmConfig] = {}
    second: dict[str, ArmConfig] = {}
    for name, arm in preset.arms.items():
        runs_of_it = {"baseline": repeat.baseline, "candidate": repeat.candidate, "fine": repeat.candidate}
        own, more = runs_of_it.get(arm.role, 1), repeat.more if arm.role == "candidate" else 0
        # BF16's and the candidates' draws are independent, and so are those of another seed.
        seed = 2000 * repeat.seed + (0 if arm.role == "baseline" else 1000)
        if arm.gate:
            first, second = {**first, **second}, {}
        for run in range(own + more):
            moved = {"perturb": ROUNDING, "perturb_seed": seed + run} if arm.role in runs_of_it else {}
            given: dict[str, Any] = {"train": {**moved, **arm.train}}
            if run:
                given["train"]["probe_every"] = 0  # what the format does to a tensor is seen in the first run
                label, look = f"{arm.label}, run {run + 1}", 1 if run < own else 2
                given |= {"label": label, "role": "repeat", "of": name, "look": look}
            (first if run < own else second)[f"{name}-{run + 1}" if run else name] = arm.model_copy(update=given)
    return preset.model_copy(update={"repeat": repeat, "arms": {**first, **second}})


def mistakes(preset: Preset) -> Iterator[str]:
    """What is wrong between a preset's tables, a sentence each."""
    names, roles, base = list(preset.arms), {name: arm.role for name, arm in preset.arms.items()}, preset.baseline()
    if preset.repeat is None and not preset.check and "safety" in preset.parts:
        yield (
            f"preset {preset.name} has no [repeat]: one run of an arm cannot tell whether its loss is another's. Add "
            "[repeat], empty for the usual number of runs; or check = true, to know only whether the arms run, convert "
            'and learn; or parts = ["speed"]'
        )
    for name in preset.repeat.judged if preset.repeat else ():
        if roles.get(name) != "candidate":
            there = ", ".join(other for other in names if roles[other] == "candidate")
            yield f"[repeat] of preset {preset.name} judges '{name}', which is no candidate; there are: {there}"
    gated = {name: arm.gate for name, arm in preset.arms.items() if arm.gate}
    for name, gate in gated.items():
        where = f"arm {name} of preset {preset.name} has the gate '{gate}'"
        if preset.repeat is None:
            yield f"{where}, and without [repeat] nothing is judged that could open it"
        if roles.get(gate) != "candidate":
            yield f'{where}, which must be an arm with role = "candidate"'
        if "broken" not in roles.values():
            yield f'{where}, and no arm of role "broken" shows that it could have stayed closed'
        for other in (gate, *(n for n in names if roles[n] in CONTROLS)):
            if other not in names[: names.index(name)]:
                yield f"{where} and stands before {other}, by which that is decided: put [arms.{name}] behind it"
    where = f"[speed] of preset {preset.name}"
    # Where the GPU's memory decides the batch, the one of [train] is none that anybody times.
    smallest = min(map(float, preset.speed.batch_by_memory), default=None) if preset.speed else None
    for name in preset.timed:
        if name not in names:
            yield f"{where} names '{name}', which is no arm; there are: {', '.join(names)}"
        elif preset.speed_config(name, smallest).precision.schedule:
            yield f"{where} names '{name}', which has a precision schedule: a window would time its first phase alone"
        elif name in gated:
            yield f"{where} names '{name}', which has a gate: the safety part decides about it later"
    if preset.speed and base not in preset.timed:
        yield f"{where} must name the baseline, {base}: without it no arm is faster or slower than anything"


def print_list() -> None:
    """Print every preset with its arms."""
    for preset in map(load_preset, available()):
        print(f"{preset.name}: {preset.title}")
        for key, arm in preset.arms.items():
            timed, gate = ", timed" if key in preset.timed else "", f", only if {arm.gate} passes" if arm.gate else ""
            if not arm.of:
                print(f"    {key:<12} {arm.label} ({arm.role}{timed}{gate})")


def _merge(base: dict, over: dict) -> dict:
    """`over` put onto `base`, table by table; neither is changed."""
    out = dict(base)
    for key, value in over.items():
        out[key] = _merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def _put(raw: dict, setting: str) -> None:
    """Set `a.b.c=VALUE` in nested tables. VALUE is read as TOML, and as plain text where it is no TOML."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not key:
        raise LabError(f"--set takes KEY=VALUE, for example train.steps=50; got '{setting}'")
    *tables, last = key.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise LabError(f"--set {key}: '{table}' is a value, not a table")
    try:
        raw[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raw[last] = text
