"""Presets: what `lab compare` trains, as TOML files in labkit/compare/presets/ or of your own.

A preset is one `[train]` table and several arms. An arm is the same training with a few settings changed, so that
whatever an arm does not name is equal by construction: data, order, seed, initial weights, schedule.

    title = "..."            one line for people
    device = "cpu"           "cpu" or "cuda"
    world_size = 2           ranks; 0 means every GPU of this machine
    parts = ["speed"]        only this part ("speed", "safety"); default: both, where there is a [speed]
    [train]                  labkit.train.config.TrainConfig
    [arms.fp8]
    label = "FP8 tensorwise"
    role = "candidate"       "baseline" (exactly one), "twin", "reference", "candidate", "broken", "fine"
    train.precision = { backend = "torchao", recipe = "tensorwise" }
    expect = { speed = 77000, safety = 480000 }     tokens/s of one rank, measured somewhere: only for predicting
    minutes
    gate = "fp8-first"       train this arm only if that one has passed: see labkit.compare.plan

"broken" must be rejected, or the comparison has no power. "fine" is broken too, but so little that it may pass unseen:
it tells how small a mistake this comparison can see.

A preset may ask a second question, how fast the arms are, at another size:

    [speed]
    arms = ["bf16", "fp8"]                          of the above; the baseline must be among them
    seconds = 60                                    the window of each arm, after `warmup` steps; then `profile` steps
    train = { model = "1b", seq_len = 4096 }        put over [train]; the arm's own settings go on top
    batch_by_memory = { "70" = 8, "130" = 20 }      sequences a GPU and micro-batch, by the GiB that it has at least
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from labkit.errors import LabError
from labkit.strict import Config, strict_validate
from labkit.train.config import TrainConfig

CONTROLS = ("baseline", "twin", "broken")  # roles that a verdict on any candidate rests on
PRESETS = Path(__file__).parent / "presets"
UNENDING = 10**6  # steps of a timed training: the window ends it, and the schedule stays flat


class Expect(Config):
    """Tokens/s that one rank is expected to train, in each part; None: as the baseline. startup: seconds before the
    first step, where compiling takes longer than the preset's `startup_seconds`."""

    speed: float | None = Field(default=None, gt=0, strict=False)
    safety: float | None = Field(default=None, gt=0, strict=False)
    startup: float | None = Field(default=None, ge=0, strict=False)


class Speed(Config):
    """The speed question: which arms, at which size, in how long a window."""

    arms: list[str] = Field(min_length=1)
    seconds: float = Field(default=60.0, gt=0, strict=False)
    warmup: int = Field(default=8, ge=3)
    profile: int = Field(default=2, ge=0)
    train: dict[str, Any] = Field(default_factory=dict)
    batch_by_memory: dict[str, int] = Field(default_factory=dict)


class ArmConfig(Config):
    """One training of the comparison, with the settings in which it differs from `[train]`."""

    label: str
    role: Literal["baseline", "twin", "reference", "candidate", "broken", "fine"]
    train: dict[str, Any] = Field(default_factory=dict)
    gate: str | None = None
    expect: Expect = Field(default_factory=lambda: Expect())


class Preset(Config):
    """A whole comparison. `name` is the file's stem."""

    name: str
    title: str
    device: Literal["cpu", "cuda"] = "cpu"
    world_size: int = Field(default=1, ge=0)
    parts: list[Literal["speed", "safety"]] = Field(default=["speed", "safety"], min_length=1)
    note: str = ""
    startup_seconds: float = Field(default=20.0, ge=0, strict=False)
    train: dict[str, Any]
    arms: dict[str, ArmConfig]
    speed: Speed | None = None

    @property
    def timed(self) -> list[str]:
        """The arms of the speed part; none without one."""
        return self.speed.arms if self.speed else []

    def window(self) -> Speed:
        """[speed]; LabError if there is none."""
        if self.speed is None:
            raise LabError(f"preset {self.name} has no [speed] section, so there is nothing to time")
        return self.speed

    def speed_config(self, arm: str, memory_gib: float | None = None, world: int = 1) -> TrainConfig:
        """The training that an arm is timed in: [train], then [speed] train, then the arm's own. Without evaluations,
        probes and checkpoints; the window ends it. memory_gib: of each GPU, for `batch_by_memory`."""
        timed = {"steps": UNENDING, "perturb": 0.0, "warmup_steps": 0}
        timed |= dict.fromkeys(("eval_every", "probe_every", "checkpoint_every"), 0)
        by_memory, own = self.window().batch_by_memory, self.arms[arm].train
        fitting = [rows for gib, rows in by_memory.items() if memory_gib and memory_gib >= float(gib)]
        given = (self.train, self.window().train, own)
        parts = next((layer["accumulation"] for layer in reversed(given) if "accumulation" in layer), 1)
        batch = {"batch_size": max(fitting) * world * parts} if fitting and isinstance(parts, int) else {}
        merged = reduce(_merge, (self.train, batch, self.window().train, own, timed))
        return strict_validate(TrainConfig, merged, f"preset {self.name}, [speed], arm {arm}")

    def config(self, arm: str) -> TrainConfig:
        """The full training configuration of one arm."""
        where = f"preset {self.name}, arm {arm}"
        return strict_validate(TrainConfig, _merge(self.train, self.arms[arm].train), where)

    def baseline(self) -> str:
        """Name of the arm that the others are held against."""
        return next(name for name, arm in self.arms.items() if arm.role == "baseline")

    def only(self, names: Iterable[str]) -> Preset:
        """The preset with these arms alone, in the preset's order; an unknown name is a LabError."""
        wanted = [name.strip() for name in names if name.strip()]
        for name in wanted:
            if name not in self.arms:
                raise LabError(f"preset {self.name} has no arm '{name}'; it has: {', '.join(self.arms)}")
        if not wanted:
            raise LabError(f"--arms names no arm; preset {self.name} has: {', '.join(self.arms)}")
        return self.model_copy(update={"arms": {k: v for k, v in self.arms.items() if k in wanted}})


def available() -> list[str]:
    """Names of the presets that come with labkit."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_preset(name: str, settings: Iterable[str] = ()) -> Preset:
    """A preset by name or by path of a TOML file, with `KEY=VALUE` settings put over it.

    Raises LabError for an unknown name, a file that is no TOML, an unknown key, a wrong type, or not exactly one
    baseline.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        raise LabError(
            f"no file {path}"
            if name.endswith(".toml")
            else f"there is no preset '{name}'; there are: {', '.join(available())} (or give a TOML file)"
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not valid TOML: {error}") from None
    for setting in settings:
        _put(raw, setting)
    preset = strict_validate(Preset, {"name": path.stem, **raw}, f"preset {path.stem}")
    baselines = [name for name, arm in preset.arms.items() if arm.role == "baseline"]
    if len(baselines) != 1:
        raise LabError(f'preset {path.stem} needs exactly one arm with role = "baseline"; it has {len(baselines)}')
    for arm in preset.arms:
        preset.config(arm)
    check_gates(preset)
    if preset.speed:
        check_speed(preset)
    return preset


def check_speed(preset: Preset) -> None:
    """LabError: [speed] names an arm that is not there, leaves out the baseline, or has settings that do not fit."""
    where = f"[speed] of preset {preset.name}"
    for arm in preset.timed:
        if arm not in preset.arms:
            raise LabError(f"{where} names '{arm}', which is no arm; there are: {', '.join(preset.arms)}")
        config = preset.speed_config(arm)
        if preset.arms[arm].gate:
            raise LabError(
                f"{where} names '{arm}', which has a gate: speed comes first, and the gate is decided by the safety "
                "part; take it out of [speed]"
            )
        if config.precision.schedule:
            raise LabError(
                f"{where} names '{arm}', which has a precision schedule: a window would time its first phase alone; "
                "take it out of [speed]"
            )
    if preset.baseline() not in preset.timed:
        raise LabError(
            f"{where} must name the baseline, {preset.baseline()}: without it no arm is faster or slower than anything"
        )
    if bad := [gib for gib in preset.window().batch_by_memory if not gib.replace(".", "", 1).isdigit()]:
        raise LabError(f"[speed] batch_by_memory takes GiB as keys, as in {{ \"70\" = 8 }}, not '{bad[0]}'")


def check_gates(preset: Preset) -> None:
    """LabError: a gate that is no candidate arm, or that cannot be decided before the arm behind it is due."""
    names = list(preset.arms)
    for name, arm in preset.arms.items():
        if arm.gate is None:
            continue
        if arm.gate not in preset.arms or preset.arms[arm.gate].role != "candidate":
            raise LabError(
                f"arm {name} of preset {preset.name} has the gate '{arm.gate}', which must be an arm with "
                'role = "candidate"'
            )
        before = names[: names.index(name)]
        deciding = [arm.gate, *(n for n in names if preset.arms[n].role in CONTROLS)]
        if late := [n for n in deciding if n not in before]:
            raise LabError(
                f"arm {name} of preset {preset.name} stands before {late[0]}, by which its gate is decided: "
                f"put [arms.{name}] behind it"
            )
        if not any(preset.arms[n].role == "broken" for n in before):
            raise LabError(
                f'arm {name} of preset {preset.name} has a gate, and no arm of role "broken" shows that '
                "the gate could have stayed closed: add one before it"
            )


def print_list() -> None:
    """Print every preset with its arms."""
    for name in available():
        preset = load_preset(name)
        print(f"{name}: {preset.title}")
        for key, arm in preset.arms.items():
            timed = ", timed" if key in preset.timed else ""
            gate = f", only if {arm.gate} passes" if arm.gate else ""
            print(f"    {key:<12} {arm.label} ({arm.role}{timed}{gate})")


def _merge(base: dict, over: dict) -> dict:
    """`over` put onto `base`, table by table; neither is changed."""
    out = dict(base)
    for key, value in over.items():
        out[key] = _merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def _put(raw: dict, setting: str) -> None:
    """Set `a.b.c=VALUE` in nested tables. VALUE is read as TOML, and as plain text where it is no TOML."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise LabError(f"--set takes KEY=VALUE, for example train.steps=50; got '{setting}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, last = key.strip().split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise LabError(f"--set {key}: '{table}' is a value, not a table")
    raw[last] = value
