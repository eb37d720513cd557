"""`lab scaling --each`: every GPU alone, all at once; what the same GPUs train together is held against that.

One lone GPU is a poor yardstick. The chips of one machine differ by a per cent or two, and in a step that all take
together everybody waits for the slowest. On four H200s one reached a lower clock than the others; held against GPU 0
the four lost 1.9 %, held against that one 0.3 % (BF16; week16_fp8/results, 2026-11-22-h200-scaling-once). So as many
lone trainings as there are GPUs run at the same time, as warm as they will be together, each in a process that sees
one GPU: RUN/each/0/run, RUN/each/1/run, ... (a folder each, since a comparison refuses to start beside another).

    of the mean       what is lost, to messages and to the slow
    of the slowest    what is left of that once the slow one is taken out: messages, and steps that are not equally long
                      everywhere, less what each rank saves because it updates fewer weights
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from labkit.compare.scaling import measured, rows_of, unequal
from labkit.errors import LabError
from labkit.record.read import read_run

FOLDER = "each"
SAY_EVERY = 15.0  # seconds between two signs of life
PAUSE_SECONDS = 20.0  # for a training to write what it has


def place(out: Path, i: int) -> Path:
    """Where the record of process i is."""
    return Path(out) / FOLDER / str(i) / "run"


def time_each(
    preset: str,
    folders: list[Path],
    *,
    arms: Iterable[str],
    settings: Iterable[str],
    cuda: bool,
    budget_minutes: float | None,
    console: Console,
) -> int:
    """Time `arms` of `preset` in a process for each folder, all at once; those that have a result are left out.

    cuda: process i sees the i-th GPU alone; else it has its share of the cores. settings: those of one rank. What a
    process says goes to `log` beside its folder. Returns 0; 3 if the budget left something for another call.
    LabError: one failed, with the last line it said.
    """
    arms = list(arms)
    waiting = [i for i, folder in enumerate(folders) if not measured(folder, arms)]
    if not waiting:
        return 0
    command = [sys.executable, "-m", "labkit", "compare", "--preset", preset, "--part", "speed"]
    command += ["--arms", ",".join(arms)]
    for setting in settings:
        command += ["--set", setting]
    if budget_minutes is not None:
        command += ["--budget-minutes", str(max(0.01, round(budget_minutes, 2)))]
    gpus, began = visible(len(folders)) if cuda else [], time.monotonic()
    running: dict[int, subprocess.Popen] = {}
    try:
        for i in waiting:
            own = {"CUDA_VISIBLE_DEVICES": gpus[i]} if cuda else {}
            # On a CPU each would start a thread on every core, and they would wait for one another.
            share = cores(i, len(folders)) if not cuda else None
            folders[i].parent.mkdir(parents=True, exist_ok=True)
            with log_of(folders[i]).open("a", encoding="utf-8") as log:
                running[i] = subprocess.Popen(
                    [*command, "--out", str(folders[i])],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **own},
                    preexec_fn=share and partial(os.sched_setaffinity, 0, share),
                )
        said = began
        while True:
            codes = {i: process.poll() for i, process in running.items()}
            for i, code in codes.items():
                if code not in (None, 0, 3):
                    name = gpus[i] if cuda else i
                    raise LabError(f"GPU {name} alone failed (status {code}): {last_line(log_of(folders[i]))}")
            if None not in codes.values():
                return max(codes.values())
            time.sleep(0.1)
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                console.print(f"{len(running)} GPUs, each alone, at once: {said - began:.0f} s", highlight=False)
    except KeyboardInterrupt:
        wait(running.values(), PAUSE_SECONDS)  # Ctrl-C has reached them too, and they pause by themselves
        raise
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
        wait(running.values())


def wait(processes: Iterable[subprocess.Popen], seconds: float | None = None) -> None:
    """Until all have ended, or for so many seconds."""
    until = None if seconds is None else time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(None if until is None else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def visible(count: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES must say for each of the first `count` GPUs that this process sees."""
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(i) for i in range(count)]


def cores(i: int, count: int) -> list[int] | None:
    """Process i's share of this machine's cores, at least one; None where the system does not tell them."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    have = sorted(os.sched_getaffinity(0))
    each = max(1, len(have) // count)
    return [have[(i * each + k) % len(have)] for k in range(each)]


def against_each(out: Path) -> list[str]:
    """A sentence for each arm and number of GPUs that was timed together and, as many, alone; or why there is none."""
    lone, told = rows_of(Path(out) / FOLDER, "run"), []
    for row in rows_of(Path(out)) if lone else []:
        # The ranks of a run of n take GPUs 0 to n - 1.
        own = [one for one in lone if one["arm"] == row["arm"] and int(one["folder"]) < row["ranks"]]
        if row["ranks"] > 1 and len(own) == row["ranks"]:
            together = at_once([place(out, int(one["folder"])) for one in own], row["arm"])
            told.append(unequal([row, *own]) or _sentence(row, own, ", at once," if together else ""))
    return told


def at_once(folders: Iterable[Path], arm: str) -> bool:
    """Whether these runs trained this arm at the same time: a budget may have ended some of them, or one may be old."""
    try:
        runs = [read_run(folder / "speed" / arm).run for folder in folders]
        return max(run["started"] for run in runs) < min(run["finished"] for run in runs)
    except (LabError, KeyError):
        return False


def _sentence(row: dict[str, Any], own: list[dict[str, Any]], at_once: str) -> str:
    slowest, rates = min(own, key=lambda one: one["rate"]), [one["rate"] for one in own]
    of_slowest = 100 * row["each"] / slowest["rate"]
    return (
        f"{row['label']}: {row['ranks']} GPUs together train {100 * row['each'] / mean(rates):.1f} % of what "
        f"they train each alone{at_once} and {of_slowest:.1f} % of what the slowest does, GPU "
        f"{slowest['folder']} ({slowest['rate']:,.0f} tokens/s; the fastest {max(rates):,.0f})."
    )


def log_of(folder: Path) -> Path:
    return folder.with_name("log")


def last_line(log: Path) -> str:
    """What a process said last; "" if nothing."""
    return next((line.strip() for line in reversed(log.read_text(encoding="utf-8").splitlines()) if line.strip()), "")
