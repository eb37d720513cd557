"""`lab compare`: train the arms of a preset one after another, then judge them.

    plan      what this machine can run is found out, and said, before anything starts: GPUs, backends, dims, divisibility
    run       each arm is `train_job` on its own ranks, writing its own run folder arms/NAME; a finished arm is never run twice
    judge     from the folders alone: verdict, table, report.html

So whatever stops a comparison, the same command goes on with the arms it has. Under torchrun every rank comes through here;
rank 0 plans, writes and prints, and the others follow its plan.
"""
from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from labkit.comm.group import Group
from labkit.comm.outcome import RanksFailed
from labkit.comm.ranks import run_ranks, under_torchrun
from labkit.errors import LabError
from labkit.record.arms import Preset, load_preset
from labkit.record.clean import jsonable
from labkit.record.progress import TrainingProgress
from labkit.record.read import load_run, read_run
from labkit.record.run import RunRecord
from labkit.record.summary import summarise
from labkit.train.config import TrainConfig, strict_validate
from labkit.train.corpus import build_corpus
from labkit.train.job import train_job
from labkit.train.loop import rows_per_micro_batch
from labkit.train.precision import get_backend


@dataclass
class Plan:
    """What will run: arms in order, those already finished, and those this machine cannot run (with the reason)."""
    preset: Preset
    out: Path
    world_size: int
    todo: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def compare(preset: str, *, arms: Iterable[str] | None = None, out: Path | None = None, settings: Iterable[str] = (),
            fresh: bool = False, console: Console | None = None) -> int:
    """Run a comparison and print its verdict. Returns the exit status: 0 if the verdict is pass, or if the arms asked for by
    name have their results and are too few for a verdict; 1 for everything else (fail, no power, an arm that failed).

    LabError, before anything starts: unknown preset or arm, a setting that does not fit, a machine that cannot run it, a
    folder that holds something else. KeyboardInterrupt passes through with the record marked as interrupted.
    """
    leader = int(os.environ.get("RANK", 0)) == 0 if under_torchrun() else True
    console = (console or Console()) if leader else Console(quiet=True)
    whole = load_preset(preset, settings)
    wanted = list(whole.only(arms).arms) if arms is not None else list(whole.arms)
    if under_torchrun():
        # One rank decides what there is to do, or two could see the folder in two states.
        plan = run_ranks(_plan_on_rank_0, whole, wanted, arms is not None, out, fresh, timeout=None, device="cpu")[0]
        if isinstance(plan, LabError):
            raise plan
    else:
        plan = make_plan(whole, wanted, explicit=arms is not None, out=out, fresh=fresh)
    record = RunRecord.open(plan.out) if leader else None
    if record:
        record.update(status="running", finished=None)
    failed: dict[str, str] = {}
    try:
        with record if record else nullcontext():
            if leader:
                announce(plan, console)
                prepare_corpus(plan, console)
            for arm in plan.todo:
                why = run_arm(plan, arm, console, leader)
                if why:
                    failed[arm] = why
                    console.print(f"{whole.arms[arm].label} failed: {why}", style="bold", markup=False, highlight=False)
            if not leader:
                return 0
            word = summarise(plan.out, plan.preset, plan.missing, failed, console, record)
    except KeyboardInterrupt:
        console.print(f"Interrupted. The same command goes on with the arms it has: {plan.out}", highlight=False)
        raise
    finally:
        if record:
            record.close()
    return 0 if not failed and (word == "pass" or word == "incomplete" and arms is not None) else 1


def make_plan(preset: Preset, wanted: list[str], *, explicit: bool, out: Path | None, fresh: bool) -> Plan:
    """Check everything that can be checked without training, and open or create the comparison's record."""
    world = check_device(preset)
    out = Path(out or Path("runs") / preset.name)
    missing = {}
    for arm in wanted:
        try:
            check_arm(preset, arm, world)
        except LabError as error:
            if explicit or preset.arms[arm].role == "baseline":
                raise LabError(f"arm {arm} ({preset.arms[arm].label}) cannot run: {error}") from None
            missing[arm] = str(error)
    prepare_folder(preset, out, fresh)
    done = [arm for arm in preset.arms if is_done(preset, arm, out, world)]
    todo = [arm for arm in wanted if arm not in missing and arm not in done]
    return Plan(preset, out, world, todo, done, missing)


def check_device(preset: Preset) -> int:
    """The number of ranks; LabError if the machine lacks what the preset asks for."""
    import torch
    if preset.device == "cpu":
        return int(os.environ["WORLD_SIZE"]) if under_torchrun() else preset.world_size or 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        raise LabError(f"preset {preset.name} needs a CUDA GPU and this machine shows none: `lab doctor` says why; "
                       "the preset cpu-tiny runs anywhere")
    if under_torchrun():
        return int(os.environ["WORLD_SIZE"])
    if preset.world_size > gpus:
        raise LabError(f"preset {preset.name} needs {preset.world_size} GPUs and this machine has {gpus}: "
                       f"add --set world_size={gpus}")
    return preset.world_size or gpus


def check_arm(preset: Preset, arm: str, world: int) -> None:
    """LabError if this arm cannot run here: its backend, its dims, its batch over the ranks."""
    import torch
    from labkit.train.model import Transformer
    config = preset.config(arm)
    rows = rows_per_micro_batch(config, world)
    backend = get_backend(config.precision.backend)
    recipe = backend.check_recipe(config.precision.recipe)
    able = backend.availability(recipe, torch.device(preset.device))
    if not able.ok:
        raise LabError(str(able))
    with torch.device("meta"):
        backend.convert(Transformer(config.resolved_model), recipe, config.precision.skip)
    backend.check_tokens(rows * config.seq_len)


def prepare_folder(preset: Preset, out: Path, fresh: bool) -> None:
    """Create the comparison's record, or accept the one that is there if it is of the same settings."""
    if fresh and out.exists():
        aside = next(p for n in range(1, 10_000) if not (p := out.with_name(f"{out.name}.{n}")).exists())
        out.rename(aside)
        print(f"the run in {out} was moved to {aside}")
    settings = jsonable(preset.model_dump())
    if (out / "run.json").exists():
        there = load_run(out).get("config", {})
        different = first_difference(there, settings)
        if different:
            raise LabError(f"{out} holds a comparison with other settings ({different}): choose another folder with --out, "
                           "or --fresh to move that one aside")
        return
    if out.exists() and any(out.iterdir()):
        raise LabError(f"{out} holds files but no run: choose another folder with --out")
    RunRecord.create(out, kind="compare", config=settings, seeds={"run": preset.train.get("seed", 0)}).close()


def is_done(preset: Preset, arm: str, out: Path, world: int) -> bool:
    """Whether the arm's record is finished, of this very configuration (settings added since count with their defaults)
    and of as many ranks."""
    try:
        run = load_run(out / "arms" / arm)
        config = strict_validate(TrainConfig, run.get("config", {}), "the record")
    except LabError:
        return False
    same = jsonable(config.model_dump()) == jsonable(preset.config(arm).model_dump())
    return run.get("status") == "finished" and same and (run.get("world") or {}).get("size") == world


def first_difference(a: Any, b: Any, where: str = "") -> str:
    """Dotted name of the first setting in which two nested tables differ; "" if they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            name = f"{where}.{key}" if where else key
            if key not in a or key not in b:
                return name
            if found := first_difference(a[key], b[key], name):
                return found
        return ""
    return "" if a == b else where


def announce(plan: Plan, console: Console) -> None:
    """Say what will run, and what will not and why."""
    preset = plan.preset
    console.print(f"[bold]{preset.title}[/bold]", highlight=False)
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    console.print(f"{ranks} on {preset.device}, {preset.config(preset.baseline()).steps} steps an arm; folder {plan.out}",
                  highlight=False)
    for arm in plan.done:
        console.print(f"  {preset.arms[arm].label}: finished already, kept", highlight=False)
    for arm, why in plan.missing.items():
        console.print(f"  {preset.arms[arm].label}: skipped, {why}", highlight=False, markup=False)
    if not plan.todo:
        console.print("Nothing left to train: this is the finished run. --fresh trains it again.", highlight=False)


def prepare_corpus(plan: Plan, console: Console) -> None:
    """Build the tokens once, here, so that the ranks find them in the cache and nobody waits without being told."""
    configs = {json_key(c.data): c.data for c in (plan.preset.config(arm) for arm in plan.todo)}
    for data in configs.values():
        with console.status("corpus: looking for text") as status:
            corpus = build_corpus(data, progress=lambda what, share: status.update(f"corpus: {what} ({share:.0%})"))
        console.print(f"corpus: {len(corpus.train):,} train and {len(corpus.heldout):,} held-out tokens from "
                      f"{len(corpus.files['train']) + len(corpus.files['heldout']):,} files, hash {corpus.hash[:12]}",
                      highlight=False, soft_wrap=True)


def json_key(config: Any) -> str:
    return config.model_dump_json()


def run_arm(plan: Plan, arm: str, console: Console, leader: bool) -> str:
    """Train one arm on its ranks. Returns "" or, in a sentence, why it failed."""
    config, folder = plan.preset.config(arm), plan.out / "arms" / arm
    fields = {"arm": arm, "label": plan.preset.arms[arm].label, "role": plan.preset.arms[arm].role,
              "command": load_run(plan.out)["command"]}     # what was typed; a rank's own command line says nothing
    size = None if under_torchrun() else plan.world_size
    watching = TrainingProgress(console, plan.preset.arms[arm].label, folder, config.steps) if leader else nullcontext()
    try:
        with watching:
            run_ranks(arm_on_rank, config.model_dump(), str(folder), fields, size=size, timeout=None,
                      device=plan.preset.device)
    except RanksFailed as failure:
        return str(failure.error) if isinstance(failure.error, LabError) else failure.autopsy.cause
    return ""


def arm_on_rank(group: Group, config: dict, folder: str, fields: dict) -> None:
    """What each rank does for an arm: train, leave everything in the folder."""
    train_job(group, config, folder, record_fields={**fields, "world": {"size": group.size, "device": group.device.type}})


def _plan_on_rank_0(group: Group, preset: Preset, wanted: list[str], explicit: bool, out: Path | None, fresh: bool) -> Any:
    if group.rank:
        return None
    try:
        return make_plan(preset, wanted, explicit=explicit, out=out, fresh=fresh)
    except LabError as error:
        return error
