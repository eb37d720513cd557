"""`lab scaling`: does each GPU train as fast among eight as alone? Weak scaling, a table from run records.

For each number of GPUs the speed part runs in RUN/1, RUN/2, ..., every rank with the batch that one GPU has alone.
`--each` times every GPU alone, all at once, in RUN/each/0/run, ...
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console

from labkit.comm.ranks import under_torchrun
from labkit.compare.arms import find_run
from labkit.compare.background import LOG, last_words
from labkit.compare.budget import Budget
from labkit.compare.compare import Request, compare
from labkit.compare.plan import check_arm, check_device, gpu_memory_gib, other_settings
from labkit.compare.preset import Preset, load_preset
from labkit.compare.session import UNFINISHED
from labkit.compare.table import Column, as_markdown, on_terminal
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.record.read import read_run
from labkit.record.run import NCCL
from labkit.record.schema import TimedRow

EACH = "each"
SAY_EVERY = 15.0  # seconds between two signs of life
PAUSE_SECONDS = 20.0  # for a training to write what it has


def scaling(request: Request, counts: str, *, each: bool = False, console: Console | None = None) -> int:
    """Run what is missing and print the table. counts: "1,2,4,8"; each: then time every GPU alone, all at once.

    Returns 0; 3 if something was left for another call, 1 if an arm failed. LabError: more GPUs than there are.
    """
    console = console or Console()
    if under_torchrun():
        raise LabError("lab scaling starts its ranks itself, as many as it compares: call it without torchrun")
    numbers, settings = parse(counts), list(request.settings)
    whole = load_preset(request.preset, settings)
    if whole.window().batch:  # LabError if there is no window
        raise LabError('lab scaling gives each GPU the same work: speed.batch = "largest" goes with lab compare alone')
    cuda, there = whole.device == "cuda", check_device(whole.model_copy(update={"world_size": 0}))
    if cuda and max(numbers) > there:
        raise LabError(f"--gpus names {max(numbers)} GPUs and this machine has {there}")
    memory = gpu_memory_gib(whole)
    wanted = list(request.arms) if request.arms is not None else runnable(whole, memory, console)
    out = Path(request.out or Path("runs") / f"{whole.name}-scaling")
    runs = {n: [*settings, *same_work(whole, memory, n)] for n in {*numbers, 1}}
    lone = [place(out, i) for i in range(max(numbers) if each else 0)]
    for folder, here in (*((out / str(n), runs[n]) for n in numbers), *((folder, runs[1]) for folder in lone)):
        refuse_other(folder, load_preset(request.preset, here))
    budget, status = Budget(request.budget_minutes, request.price_per_hour), 0
    together = replace(request, arms=wanted, part="speed")
    unmeasured = [n for n in numbers if not measured(out / str(n), wanted)]
    todo = [replace(together, out=out / str(n), settings=runs[n]) for n in unmeasured]
    for run in (*todo, *([None] if each else [])):  # None: every GPU alone
        left = None if budget.minutes is None else max(0.0, budget.minutes - budget.seconds() / 60)
        if left == 0:
            status = UNFINISHED
        elif run:
            status = compare(replace(run, budget_minutes=left), console)
        else:
            alone = replace(together, settings=runs[1], budget_minutes=left, price_per_hour=None)
            status = time_each(alone, lone, cuda=cuda, console=console)
        if status:
            break
    if rows := points_of(out):
        console.print(on_terminal(COLUMNS, rows))
        if uneven := unequal(rows):
            say(console, uneven)
    for sentence in against_each(out):
        say(console, sentence)
    if status == UNFINISHED:
        say(console, "The budget is spent; the same command goes on.")
    return status


# ---- what will run


def parse(counts: str) -> list[int]:
    """ "1,2,4" as numbers, in order; LabError for anything else."""
    if not re.fullmatch(r"[1-9]\d*( *, *[1-9]\d*)*", counts):
        raise LabError(f"--gpus takes numbers of GPUs by comma, as in 1,2,4,8; got '{counts}'")
    return sorted({int(word) for word in counts.split(",")})


def runnable(preset: Preset, memory_gib: float | None, console: Console) -> list[str]:
    """The arms of the speed part that this machine can run; what cannot is named. LabError for the baseline."""
    found = []
    for arm in preset.timed:
        try:
            check_arm(preset.speed_config(arm, memory_gib, 1), preset.device, 1)
            found.append(arm)
        except LabError as error:
            if arm == preset.baseline():
                raise
            say(console, f"{preset.arms[arm].label}: skipped, {error}")
    return found


def same_work(preset: Preset, memory_gib: float | None, ranks: int) -> list[str]:
    """Settings in which each of `ranks` ranks has the batch that it would have alone, in each arm."""
    alone = {arm: preset.speed_config(arm, memory_gib, 1).batch_size for arm in preset.timed}
    return [f"world_size={ranks}", *(f"arms.{arm}.train.batch_size={rows * ranks}" for arm, rows in alone.items())]


def refuse_other(folder: Path, preset: Preset) -> None:
    """LabError if `folder` holds a run of other settings, NCCL's included: it would answer for this one."""
    if (folder / "run.json").exists():
        versions = read_run(folder).comparison.versions
        here = {name: os.environ.get(name) or None for name in NCCL} if preset.device == "cuda" else {}
        other = other_settings(folder, preset) or next((k for k, v in here.items() if versions.get(k) != v), "")
        if other:
            raise LabError(f"{folder} holds a run with other settings ({other}): choose another folder with --out")


def measured(folder: Path, arms: Iterable[str]) -> bool:
    """Whether this folder's record has a result for each of these arms."""
    run = find_run(folder)
    return run is not None and set(arms) <= run.comparison.results.timed.keys()


# ---- every GPU alone, all at once


def place(out: Path, i: int) -> Path:
    """Where the record of process i is."""
    return Path(out) / EACH / str(i) / "run"


def time_each(request: Request, folders: list[Path], *, cuda: bool, console: Console) -> int:
    """Time the request's arms in a process for each folder, all at once, whose output goes to LOG beside the folder.
    cuda: process i sees the i-th GPU, else its share of threads. Returns 0, or 3 as `scaling`. LabError: one failed."""
    arms = list(request.arms or ())
    left = request.budget_minutes and max(0.01, round(request.budget_minutes, 2))
    request = replace(request, part="speed", budget_minutes=left)
    names = visible(len(folders)) if cuda else [str(i) for i in range(len(folders))]
    said = began = time.monotonic()
    running: dict[psutil.Popen, int] = {}
    try:
        for i, folder in enumerate(folders):
            if not measured(folder, arms):
                # On a CPU each would start a thread on every core, and they would wait for one another.
                threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(folders)))}
                running[start(request, folder, {"CUDA_VISIBLE_DEVICES": names[i]} if cuda else threads)] = i
        alive = list(running)
        while alive:
            ended, alive = psutil.wait_procs(alive, 0.1)
            for process in ended:
                if status := process.poll():
                    i = running[process]
                    raise LabError(f"GPU {names[i]} alone failed (status {status}): {last_words(folders[i].parent, 1)}")
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                say(console, f"{len(running)} GPUs, each alone, at once: {said - began:.0f} s")
        return 0 if all(measured(folder, arms) for folder in folders) else UNFINISHED
    except KeyboardInterrupt:
        psutil.wait_procs(running, PAUSE_SECONDS)  # Ctrl-C has reached them too, and they pause by themselves
        raise
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        psutil.wait_procs(running)


def start(request: Request, folder: Path, own: dict[str, str]) -> psutil.Popen:
    """The process whose record goes to `folder`, with this environment of its own."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command, env = [sys.executable, "-m", "labkit", *request.words(folder)], {**os.environ, **own}
    with folder.with_name(LOG).open("a", encoding="utf-8") as log:
        return psutil.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)


def visible(count: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES must say for each of the first `count` GPUs that this process sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return [name.strip() for name in given.split(",")][:count]


# ---- what the records say


@dataclass
class Point:
    """An arm timed on so many ranks. share: of a GPU's tokens/s with the fewest; window: seconds."""

    folder: str
    arm: str
    timed: TimedRow
    window: float | None
    share: float = 1.0


COLUMNS = [
    Column("arm", "timed.label"),
    Column("GPUs", "timed.ranks"),
    Column("tokens/s", "timed.tokens_per_s", "{:,.0f}"),
    Column("tokens/s a GPU", "timed.of_one", "{:,.0f}"),
    Column("% of the fewest", lambda point: 100 * point.share, "{:.1f}"),
    Column("ms/1k tokens", lambda point: point.timed.per_thousand(), "{:,.2f}"),
    Column("peak GiB", lambda point: point.timed.memory["peak"] / 2**30, "{:.1f}"),
]


def points_of(out: Path, inner: str = ".") -> list[Point]:
    """A point for each arm and number of ranks that the records below `out`, N/inner/run.json, hold, arm by arm."""
    by_arm: dict[str, list[Point]] = {}
    records = {file.parts[len(Path(out).parts)]: file for file in Path(out).glob(f"[0-9]*/{inner}/run.json")}
    for folder in sorted(records, key=int):
        run = read_run(records[folder].parent)
        for arm, timed in run.comparison.results.timed.items():
            by_arm.setdefault(arm, []).append(Point(folder, arm, timed, run.comparison.config.speed.seconds))
    for points in by_arm.values():
        points.sort(key=lambda point: point.timed.ranks)
        for point in points:
            point.share = point.timed.of_one / points[0].timed.of_one
    return [point for points in by_arm.values() for point in points]


def unequal(points: list[Point]) -> str:
    """A sentence if a GPU's work or window was not the same everywhere, so that this is no weak scaling; else ""."""
    for arm in dict.fromkeys(point.arm for point in points):
        ours = [point for point in points if point.arm == arm]
        works = {f"{point.timed.tokens_step:,} tokens of {point.timed.seq_len:,} a step" for point in ours}
        windows = {f"a window of {point.window:g} s" for point in ours if point.window}  # a GPU slows as it warms
        for different in (works, windows):
            if len(different) > 1:
                had = " and ".join(sorted(different))
                return f"These shares are no weak scaling: in {arm} a GPU had {had}. Take the same settings for all."
    return ""


def markdown(out: Path) -> str:
    """The table of these records as Markdown. LabError if there are none, or they are no weak scaling."""
    points = points_of(out)
    if not points:
        raise LabError(f"{out} holds no records of lab scaling")
    if uneven := unequal(points):
        raise LabError(uneven)
    return "\n\n".join([as_markdown(COLUMNS, points), *against_each(out)])


def against_each(out: Path) -> list[str]:
    """A sentence for each arm and number of GPUs that was timed together and, as many, alone; or why there is none."""
    lone, sentences = points_of(Path(out) / EACH, "run"), []
    for point in points_of(Path(out)) if lone else []:
        # The ranks of a run of n take GPUs 0 to n - 1.
        own = [one for one in lone if one.arm == point.arm and int(one.folder) < point.timed.ranks]
        if point.timed.ranks > 1 and len(own) == point.timed.ranks:
            # In a step that all take together everybody waits for the slowest chip: on four H200s one GPU had a lower
            # clock, and against GPU 0 the four lost 1.9 %, against that one 0.3 % (week16_fp8/results,
            # 2026-11-22-h200-scaling-once).
            slowest, rates = min(own, key=lambda one: one.timed.of_one), [one.timed.of_one for one in own]
            shares = (f"{100 * point.timed.of_one / rate:.1f} % of what" for rate in (mean(rates), min(rates)))
            fastest = f"GPU {slowest.folder} ({min(rates):,.0f} tokens/s; the fastest {max(rates):,.0f})"
            together = "{}: {} GPUs together train {} they train each alone and {} the slowest does, {}."
            sentence = together.format(point.timed.label, point.timed.ranks, *shares, fastest)
            sentences.append(unequal([point, *own]) or sentence)
    return sentences
