"""What a comparison will do: parts, arms, ranks, what is finished, and what this machine cannot run and why.

An arm behind a gate is trained only if the gate's arm passed, where a negative control was rejected. Gates and second
looks are judged when their arms are due, from the records alone.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm.ranks import under_torchrun
from labkit.compare import memory as needed
from labkit.compare import repeats
from labkit.compare.arms import find_run, heldout_of
from labkit.compare.batches import Search
from labkit.compare.budget import Ranks, predict
from labkit.compare.preset import CONTROLS, Preset, load_preset
from labkit.errors import LabError
from labkit.precision.registry import availability, get_backend, spec_of
from labkit.record.clean import jsonable
from labkit.record.read import load_run
from labkit.record.run import RunRecord
from labkit.record.schema import CompareRun, Item, TrainRun, Try, World
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import rows_per_micro_batch

PARTS = ("speed", "safety")
PREDICTS = re.compile(r"(startup|again|ahead)_seconds|without_fp8|\.expect\b")  # settings that change no training


@dataclass
class Plan:
    """What will run: (part, arm) in order, those already finished, and arms this machine cannot run (and why)."""

    preset: Preset
    out: Path
    world_size: int
    todo: list[tuple[str, str]] = field(default_factory=list)
    done: list[tuple[str, str]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    memory_gib: float | None = None
    requested: list[str] = field(default_factory=list)  # candidates whose loss is to be judged
    tries: dict[str, list[Try]] = field(default_factory=dict)  # of timed arms, on GPUs of this size

    def config(self, part: str, arm: str) -> TrainConfig:
        """The training that this arm runs in this part, or runs next."""
        config = self.preset.config_of(part, arm, self.memory_gib, self.world_size)
        if part == "safety" or not self.tries.get(arm):
            return config
        size = max(1, self.search(arm).micro_batch_size)
        return config.replace(batch_size=size * self.world_size * config.accumulation)

    def search(self, arm: str) -> Search:
        """What was tried of a timed arm, in sequences of a GPU and micro-batch."""
        config = self.preset.speed_config(arm, self.memory_gib, self.world_size)
        first = rows_per_micro_batch(config.batch_size, config.accumulation, self.world_size)
        have = (self.memory_gib or 0) * needed.GIB if self.preset.window().batch else None
        return Search(first, have, self.tries.get(arm, ()))

    def heldouts(self) -> dict[str, dict[int, float]]:
        """{step: held-out loss} of each finished run of the safety part."""
        runs = {name: find_run(self.out / "arms" / name) for name in self.preset.arms}
        return {name: heldout_of(run) for name, run in runs.items() if run and run.status == "finished"}

    def gate_closed(self, part: str, arm: str) -> str:
        """Why the arm may not be trained yet, as a sentence without its end; "" if it may, or has no gate."""
        gate = self.preset.arms[arm].gate
        if not gate or part == "speed":
            return ""
        finished, where = self.heldouts(), f"its gate, {self.preset.arms[gate].label},"
        if gate not in finished:
            first = [name for name, about in self.preset.arms.items() if about.role in CONTROLS or name == gate]
            return f"{where} has no finished result yet: train that arm first (`--arms {','.join(first)}`)"
        verdict = repeats.judge(finished, self.preset, [gate])
        opened = verdict.word == "pass" and verdict.arms[gate].word == "same"
        return "" if opened else f"{where} is closed. {verdict.sentence}".rstrip(".")

    def second_look(self, part: str, arm: str) -> str:
        """ "" for an arm that is no run of a second look; else what becomes of it, as `repeats.second_look` says."""
        if part == "speed" or self.preset.arms[arm].look == 1:
            return ""
        return repeats.second_look(self.heldouts(), self.preset, arm, self.requested)

    def baselines(self) -> list[dict[int, float]]:
        """{step: held-out loss} of each finished BF16 run; none in a preset without `[repeat]`."""
        base, runs = self.preset.baseline(), self.heldouts() if self.preset.repeat else {}
        return [losses for run, losses in runs.items() if base in (run, self.preset.arms[run].of)]

    def items(self) -> list[Item]:
        """In order, with what it takes to start each: see `Session._on_ranks`."""
        found, before = [], ("safety", "")
        for part, arm in self.todo:
            of = self.preset.arms[arm].of or arm
            ranks: Ranks = "fresh" if before[0] == "speed" else "started"
            found.append(self.item(part, arm, "kept" if before == (part, of) == ("safety", of) else ranks))
            before = part, of
        return found

    def item(self, part: str, arm: str, ranks: Ranks = "fresh") -> Item:
        """What the arm is expected to take from here on."""
        tried = len(self.tries.get(arm, ()))
        return predict(self.preset, part, arm, self.memory_gib, self.world_size, tried, ranks)

    def sure(self) -> list[Item]:
        """The items without those that only an undecided candidate needs."""
        return [item for item in self.items() if item.part == "speed" or self.preset.arms[item.arm].look == 1]


def fitting(preset: Preset, settings: Iterable[str]) -> Preset:
    """The preset, or its `without_fp8` where this machine's GPUs have no FP8 products. settings: put over either."""
    from labkit.precision.matrix import this_gpu
    from labkit.precision.recipes import FP8_UNITS

    if preset.device != "cuda" or preset.without_fp8 is None:
        return preset
    gpu = this_gpu()
    return preset if gpu is None or gpu >= FP8_UNITS.least else load_preset(preset.without_fp8, settings)


def check_part(preset: Preset, part: str | None, named: Iterable[str] = ()) -> tuple[str, ...]:
    """The parts to run; LabError for one that does not exist or that the preset does not have, or for speed alone of an
    arm that it does not time."""
    if part not in (None, *PARTS):
        raise LabError(f"--part takes speed or safety, not '{part}'")
    if part == "speed" or (part is None and preset.parts == ["speed"]):
        preset.window()
    untimed = [arm for arm in named if arm not in preset.timed and not preset.arms[arm].of]
    if part == "speed" and untimed:
        remedy = f"--set 'speed.arms={json.dumps([*preset.timed, *untimed])}' does"
        raise LabError(f"preset {preset.name} does not time {', '.join(untimed)}: {remedy}")
    if part is not None and part not in preset.parts:
        raise LabError(f"preset {preset.name} is about {preset.parts[0]} alone: leave out --part {part}")
    return (part,) if part else tuple(p for p in PARTS if p in preset.parts and (preset.speed or p == "safety"))


def make_plan(
    preset: Preset, wanted: list[str], *, explicit: bool, out: Path, fresh: bool, parts: tuple[str, ...]
) -> Plan:
    """Check everything that can be checked without training, and open or create the comparison's record."""
    world, memory = check_device(preset), gpu_memory_gib(preset)
    for part in parts if memory else ():
        refuse_too_large(preset.config_of(part, preset.baseline(), memory, world), world, memory or 0.0)
    if preset.timed and preset.window().batch and (memory is None or under_torchrun()):
        why = "torchrun's ranks are no fresh processes" if memory else "a CPU has no memory of its own"
        raise LabError(f'speed.batch = "largest" looks for what a GPU holds, in fresh processes, and {why}')
    missing: dict[str, str] = {}
    every = [(part, arm) for part in parts for arm in preset.arms if part == "safety" or arm in preset.timed]
    ours = {"speed": wanted, "safety": wanted if explicit else [arm for arm in wanted if arm in preset.trained]}
    requested = [(part, arm) for part in parts for arm in ours[part] if (part, arm) in every]
    for part, arm in requested:
        try:
            check_arm(preset.config_of(part, arm, memory, world), preset.device, world)
        except LabError as error:
            if explicit or preset.arms[arm].role == "baseline":
                raise LabError(f"arm {arm} ({preset.arms[arm].label}) cannot run: {error}") from None
            missing[arm] = str(error)
    prepare_folder(preset, out, fresh)
    known = CompareRun.model_validate(load_run(out)).results.tries
    tries = {arm: [each for each in found if each.gib == memory] for arm, found in known.items()}
    plan = Plan(preset, out, world, missing=missing, memory_gib=memory, tries=tries)
    plan.done = [each for each in every if is_done(plan, *each)]
    begun = {arm for part, arm in [*plan.done, *requested] if part == "safety"}
    candidates = [name for name, arm in preset.arms.items() if arm.role == "candidate"]
    plan.requested = [name for name in candidates if (name in preset.judged and not explicit) or name in begun]
    plan.todo = [each for each in requested if each[1] not in missing and each not in plan.done]
    plan.todo = [each for each in plan.todo if plan.second_look(*each) != "decided"]
    return plan


def decisive_first(plan: Plan) -> list[tuple[str, str]]:
    """What is to do: speed and loss of the candidate that [repeat] judges first, then of the next one; after these the
    second looks, then what is timed beside them. In the preset's order where it has gates, or no loss to judge."""
    arms, judged = plan.preset.arms, plan.preset.judged
    if not plan.preset.repeat or any(arm.gate for arm in arms.values()):
        return plan.todo
    places = sorted(plan.requested, key=[*judged, *arms].index)

    def place(each: tuple[str, str]) -> tuple[int, int]:
        part, name = each
        of, last = arms[name].of or name, len(places)
        if arms[of].role in ("baseline", "broken"):
            return (0, 0) if part == "speed" else (0, 2)
        if arms[name].look > 1:
            return last, 0
        at = places.index(of) if of in places else last
        return (at, 1) if part == "speed" else (at, 3)

    return sorted(plan.todo, key=place)


def gpu_memory_gib(preset: Preset) -> float | None:
    """GiB of this rank's GPU; None on a CPU."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if preset.device == "cuda" else None


def check_device(preset: Preset) -> int:
    """The number of ranks; LabError if the machine lacks what the preset asks for."""
    import torch

    gpus = torch.cuda.device_count() if preset.device == "cuda" and torch.cuda.is_available() else 0
    if preset.device == "cuda" and not gpus:
        why = "needs a CUDA GPU and this machine shows none: `lab doctor` says why; the preset cpu-tiny runs anywhere"
        raise LabError(f"preset {preset.name} {why}")
    if under_torchrun():
        return int(os.environ["WORLD_SIZE"])
    if preset.device == "cuda" and preset.world_size > gpus:
        why = f"needs {preset.world_size} GPUs and this machine has {gpus}: add --set world_size={gpus}"
        raise LabError(f"preset {preset.name} {why}")
    return preset.world_size or max(1, gpus)


def refuse_too_large(config: TrainConfig, world: int, have: float) -> None:
    """LabError where what each step leaves behind is more than a GPU of `have` GiB holds, whatever the batch."""
    if (held := needed.held(config, world) / needed.GIB) > have:
        raise LabError(
            f"the model's weights, gradients and AdamW states take {held:.0f} GiB of each of {world} GPUs, and a GPU "
            f"here has {have:.0f}: take more GPUs (--set world_size=N), or a smaller model"
        )


def check_arm(config: TrainConfig, device: str, world: int) -> None:
    """LabError if this training cannot run here: the backend's rules, its dims, its batch over the ranks."""
    import torch

    from labkit.model.decoder import Transformer
    from labkit.precision.matrix import refuse, this_gpu

    rows = rows_per_micro_batch(config.batch_size, config.accumulation, world)
    spec = spec_of(config.precision, ranks=world, tokens=rows * config.seq_len)
    refuse(config, this_gpu(device), world)
    able = availability(config.precision.backend, spec.recipe, device, spec.fp8_parameters)
    if not able.ok:
        raise LabError(str(able))
    with torch.device("meta"):
        get_backend(config.precision.backend).convert(Transformer(config.resolved_model), spec)


def prepare_folder(preset: Preset, out: Path, fresh: bool) -> None:
    """Create the comparison's record, or accept the one that is there if it is of the same settings."""
    if fresh and out.exists():
        aside = next(p for n in range(1, 10_000) if not (p := out.with_name(f"{out.name}.{n}")).exists())
        out.rename(aside)
        print(f"the run in {out} was moved to {aside}")
    settings = jsonable(preset.model_dump())
    if (out / "run.json").exists():
        if different := other_settings(out, preset):
            remedy = "choose another folder with --out, or --fresh to move that one aside"
            raise LabError(f"{out} holds a comparison with other settings ({different}): {remedy}")
        if set(preset.arms) - set(load_run(out)["config"]["arms"]):
            record = RunRecord.open(out)
            record.update(config=settings)
            record.close()
    elif out.exists() and any(out.iterdir()):
        raise LabError(f"{out} holds files but no run: choose another folder with --out")
    else:
        RunRecord.create(out, kind="compare", config=settings, seeds={"run": preset.train.get("seed", 0)}).close()


def other_settings(out: Path, preset: Preset) -> str:
    """Dotted name of the first setting in which the comparison in `out` differs from `preset`, or ""."""
    there, here = load_run(out).get("config", {}), jsonable(preset.model_dump())
    with suppress(LabError):  # settings that there were not yet when it was made get their defaults
        there = jsonable(strict_validate(Preset, there, "the record").model_dump())
    known = there.get("arms", {})  # others came later
    ours = {**here, "arms": {name: arm for name, arm in here["arms"].items() if name in known}}
    a, b = _flat(there), _flat(ours)
    return next((name for name in sorted(a | b) if a.get(name) != b.get(name) and not PREDICTS.search(name)), "")


def folder_of(out: Path, part: str, arm: str) -> Path:
    return out / ("speed" if part == "speed" else "arms") / arm


def is_done(plan: Plan, part: str, arm: str) -> bool:
    """Whether the arm's record is finished, of this training and number of ranks, and timed in the speed part."""
    try:
        found = load_run(folder_of(plan.out, part, arm))
        config = strict_validate(TrainConfig, found.get("config", {}), "the record")
    except LabError:
        return False
    run = TrainRun.model_validate(found)
    same = jsonable(config.model_dump()) == jsonable(plan.config(part, arm).model_dump())
    timed = part == "safety" or run.results.speed is not None
    return run.status == "finished" and same and timed and (run.world or World()).size == plan.world_size


def _flat(table: dict[str, Any], where: str = "") -> dict[str, Any]:
    """The values of nested tables by their dotted names."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{where}{key}.") if isinstance(value, dict) and value else {f"{where}{key}": value}
    return out
