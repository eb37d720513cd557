"""A run's record for other people's tools: TensorBoard's event files, and an offline run of Weights & Biases.

loss, heldout, grad_norm, ...        the step line's numbers, by their names; memory as memory/peak_bytes
scale/layers.0.attn.wq.input, ...    the probed tensors: scale, amax, overflow, underflow
grad_norm/layers.0, rank_seconds/0   where they were recorded
events                               as text, at their steps, each kind under its own name
"""

import datetime
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record.files import explained
from labkit.record.read import RunData, as_dict, read_run
from labkit.watch.tables import numbers

WRITERS = ("tensorboard", "wandb")  # packages


def export(run: Path, to: str, out: Path | None = None) -> str:
    """Write the record of the training in `run`; return a sentence about it. LabError: no run, no tool, a full folder."""
    if to not in WRITERS:
        raise LabError(f"--to must be {' or '.join(WRITERS)}, not {to!r}")
    data = read_run(run)
    if data.is_comparison:
        arms = " or ".join(str(run / "arms" / name) for name in list(data.arms)[:2]) or "one of its arms"
        raise LabError(f"{run} is a comparison: export one of its trainings, for example {arms}")
    if not data.steps:
        raise LabError(f"{run} has no step yet: there is nothing to export")
    out = out if out is not None else run / to
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise LabError(f"{out} exists already: choose another folder with --out, or remove it")
    if importlib.util.find_spec(to) is None:
        raise LabError(f"{to} is not installed: `make watch`, or pip install {to}")
    with explained(out, full="nothing of the run was touched."):
        out.mkdir(parents=True, exist_ok=True)
        written = (_write_tensorboard if to == "tensorboard" else _write_wandb)(data, out)
    return f"{len(data.steps)} steps, {written}"


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (name, number) of everything in a step line that is a number."""
    for key, value in line.items():
        if isinstance(value, (bool, int, float)) and key != "step":
            yield key, float(value)
    for key in ("memory", "aside", "rank_seconds", "grad_norms"):
        for name, number in numbers(line.get(key)).items():
            yield f"{'grad_norm' if key == 'grad_norms' else key}/{name}", number
    for tensor, stat in as_dict(line.get("scales")).items():
        for quantity, number in numbers(stat).items():
            yield f"{quantity}/{tensor}", number


def _write_tensorboard(data: RunData, out: Path) -> str:
    from torch.utils.tensorboard import SummaryWriter

    # A step line has its seconds and no time of day: the run's start, and what training has taken since.
    writer, now = SummaryWriter(str(out)), _time_of(data.run.get("started"))
    for line in data.steps:
        now += line.get("seconds", 0.0)
        for name, number in scalars(line):
            writer.add_scalar(name, number, int(line["step"]), now)
    for event in data.happened:
        writer.add_text(f"event/{event.kind}", event.message, event.step or 0, _time_of(event.time))
    writer.close()
    return f"{len(data.events)} events for TensorBoard in {out}: tensorboard --logdir {out}"


def _write_wandb(data: RunData, out: Path) -> str:
    import wandb

    # Nothing of this machine beside what the record says of it.
    quiet = {"silent": True, "console": "off", "x_disable_stats": True, "x_disable_meta": True}
    settings = wandb.Settings(mode="offline", **quiet, disable_git=True, disable_code=True, save_code=False)
    about = {key: data.run.get(key) for key in ("status", "seeds", "versions", "hardware", "command")}
    project = os.environ.get("WANDB_PROJECT", "distributed-training-labs")
    config = {**data.config, "run": about}
    run = wandb.init(project=project, name=data.path.name, dir=str(out), config=config, settings=settings)
    events: dict[int, dict[str, str]] = {}
    for event in data.happened:
        events.setdefault(event.step or 0, {})[f"event/{event.kind}"] = event.message
    for line in data.steps:
        run.log({**dict(scalars(line)), **events.pop(int(line["step"]), {})}, step=int(line["step"]))
    # What happened at steps that the record no longer has, or at none.
    rest = ((step, kind, text) for step, some in events.items() for kind, text in some.items())
    run.summary["other_events"] = [f"step {step}: {kind}: {text}" for step, kind, text in rest]
    run.finish()
    wandb.teardown()  # until it has ended, the last lines are not on the disk
    send = f"wandb sync {out}/wandb/offline-run-*"
    return f"{len(data.events)} events as an offline run of Weights & Biases in {out}: {send}"


def _time_of(stamp: Any) -> float:
    """Return the seconds since 1970 of a record's time; 0 if it is none."""
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return 0.0
