"""The trainer: one entry point, your parts or torch's.

    torchrun --nproc-per-node 4 -m capstone.train config.toml --out runs/first      the ranks that torchrun started
    python -m capstone.train config.toml --ranks 4 --out runs/first                 ranks of its own, on this machine
    torchrun --max-restarts 3 ...                                                   a rank that dies: all begin anew

The folder of a run that was interrupted, killed or paused is gone on with, from its newest whole checkpoint. A
SIGTERM pauses the run, with a checkpoint, and status 3; so does Ctrl-C where the ranks are its own, and a second Ctrl-C
ends it at once. A folder in which another process trains is refused. A run whose last checkpoint could not be
written ends with status 2. (torchrun's own status is then 1, whatever its ranks': run.json says "paused".)

`running/config.py` says what a configuration holds. The run's folder is that of every training here (labkit.record):
run.json, steps.jsonl, events.jsonl. A configuration that cannot run is an error of one sentence and exit status 2,
before anything is built or written.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from capstone.running.config import CapstoneConfig, degrees, read
from labkit.comm.processes import RankPool
from labkit.comm.ranks import is_first, launched, of_this_machine, run_ranks
from labkit.errors import LabError, run_command
from labkit.record.clean import jsonable, typed_command
from labkit.record.run import RunRecord, read_run, sole_trainer
from labkit.strict import strict_validate
from labkit.train.state import difference_in_settings, settings

PAUSED = 3  # exit status: the same command goes on


def job(group: Any, values: dict[str, Any], out: str, typed: str | None = None, **drawn: Any) -> dict[str, Any]:
    """One rank's training, from the configuration's values to a summary. typed: the command for the record; a rank that
    was forked was typed by nobody. drawn: for `mine.run`, a corpus and weights in place of the configuration's."""
    config = degrees(strict_validate(CapstoneConfig, values, "the configuration"), group.size)
    refuse_another(Path(out), config)
    records: list[RunRecord] = []

    def opened(about: dict[str, Any], step: int | None = None) -> RunRecord | None:
        """Rank 0's record: a new one, or the one that is there, to go on behind `step` (None: the loop cuts it)."""
        if group.rank > 0:
            return None
        mesh = {key: getattr(config.parallel, key) for key in ("dp", "tp", "pp", "zero")}
        if (Path(out) / "run.json").exists():
            made = RunRecord.open(Path(out), resume_from=None if step is None else step + 1)
            made.update(status="running", finished=None, config=config, mesh=mesh, **about)
        else:
            seeds, more = {"run": config.seed}, {"parts": config.parts, "mesh": mesh, **about}
            made = RunRecord.create(Path(out), kind="train", command=typed, config=config, seeds=seeds, **more)
        records.append(made)
        return made

    if config.parts == "torch":
        from capstone.running.torch_way import run
    else:
        from capstone.running.mine import run
    with listening() as heard, sole_trainer(Path(out)) if group.rank == 0 else nullcontext():
        try:
            summary = run(group, config, Path(out), opened, heard=heard, **drawn)
            if summary["unsaved"] is not None:
                raise LabError(summary["unsaved"])
        except BaseException as error:
            for record in records:
                record.__exit__(type(error), error, error.__traceback__)  # "failed" or "interrupted", and why
            raise
        for record in records:
            record.results(**{key: summary[key] for key in ("heldout", "skipped", "steps")})
            record.finish("paused" if summary["paused"] else "finished")
    return {key: summary[key] for key in ("losses", "heldout", "skipped", "steps", "paused", "evidence")}


@contextmanager
def listening() -> Iterator[list[int]]:
    """The SIGTERMs that come meanwhile: they grow a list, and end nothing. So run.json says how a run ended, whenever in
    it, or before its first step or behind its last one, the signal came."""
    heard: list[int] = []
    try:
        before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    except ValueError:  # ranks that are threads hear nothing
        yield heard
        return
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before)


def refuse_another(out: Path, config: CapstoneConfig) -> None:
    """LabError if the folder holds a run of another configuration: it would be lost. Degrees and limits may change."""
    if not (out / "run.json").exists():
        return
    was = strict_validate(CapstoneConfig, read_run(out).run["config"], f"the config in {out / 'run.json'}")
    now = strict_validate(CapstoneConfig, jsonable(config), "the configuration")  # paths as a record shows them
    both = [{k: v for k, v in settings(one).items() if not k.startswith(("parallel.", "hang_"))} for one in (was, now)]
    if other := difference_in_settings(*both):
        raise LabError(f"{out} holds another run: {other}; set it back, or choose another folder with --out")


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m capstone.train", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("config", type=Path, help="a TOML file")
    add("--out", type=Path, default=None, help="the run's folder; default: runs/ and the file's name")
    add("--ranks", type=int, default=None, help="without torchrun: how many processes; default: what the degrees make")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    a = parser.parse_args(argv)
    config = read(a.config)
    p, started = config.parallel, launched(a.ranks)
    ranks = started or a.ranks or max(1, p.dp) * p.tp * p.pp
    out = a.out or Path("runs") / a.config.stem
    refuse_another(out, degrees(config, ranks))
    device = a.device if a.device != "auto" else _device(ranks)
    values, first = (config.model_dump(), str(out), typed_command()), is_first()
    with progress(out, config.steps) if first else nullcontext():
        if started:
            summary = run_ranks(job, *values, backend="torchrun", timeout=None, device=device)[0]
        else:
            with RankPool(ranks, device=device) as pool, passing_signals(pool, bool(config.checkpoint_every)):
                summary = pool.run(job, *values, timeout=None)[0]
    if first:
        last = max(summary["losses"])
        print(f"{out}: {summary['steps']} steps, loss {summary['losses'][last]:.4f}; {summary['evidence']}")
    return PAUSED if summary["paused"] else 0


def progress(out: Path, steps: int) -> AbstractContextManager:
    """A line now and then, or a bar on a terminal: the step, loss, rate and time left."""
    from rich.console import Console

    from labkit.compare.budget import Forecast
    from labkit.compare.follow import TrainingProgress
    from labkit.record.schema import Item

    alone = Forecast([], Item(arm=out.name, label=out.name), [])
    return TrainingProgress(Console(stderr=True), out.name, out, steps, alone)


@contextmanager
def passing_signals(pool: RankPool, kept: bool) -> Iterator[None]:
    """While it is open, SIGTERM and the first Ctrl-C are passed on to the ranks. They leave, with a checkpoint if it is
    to be `kept`."""

    def pass_on(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        does = "save a checkpoint and end" if kept else "end without a checkpoint, for checkpoint_every is 0"
        print(f"train: asked to stop: the ranks {does} after this step; Ctrl-C ends them at once", file=sys.stderr)
        pool.signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _device(ranks: int) -> str:
    import torch

    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= of_this_machine(ranks) else "cpu"


if __name__ == "__main__":
    run_command("train", main)
