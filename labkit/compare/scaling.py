"""`lab scaling`: does each GPU train as fast among eight as alone? Weak scaling, a table from run records.

For each number of GPUs the speed part of a preset runs in a folder of its own, RUN/1, RUN/2, ...: every rank keeps the
batch that one GPU has alone, so the work of a GPU stays the same and the whole grows. What is lost is what the ranks
wait for one another.

    share(N) = tokens/s of N GPUs / N  over  tokens/s of the fewest GPUs / their number

The fewest is usually the machine's first GPU, and GPUs differ: labkit.compare.scaling_each has a better yardstick.

Stopped for whatever reason, the same command goes on; what is measured is not measured again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.comm.ranks import under_torchrun
from labkit.compare.arms import Preset, load_preset
from labkit.compare.budget import Budget
from labkit.compare.plan import check_arm, check_device, gpu_memory_gib, other_settings
from labkit.errors import LabError
from labkit.record.read import RunData, read_run
from labkit.record.run import NCCL

HEADS = ("arm", "GPUs", "tokens/s", "tokens/s a GPU", "% of the fewest", "ms a step", "peak GiB")
UNFINISHED = 3


def scaling(
    preset: str,
    counts: str,
    *,
    arms: Iterable[str] | None = None,
    out: Path | None = None,
    settings: Iterable[str] = (),
    budget_minutes: float | None = None,
    price_per_hour: float | None = None,
    each: bool = False,
    console: Console | None = None,
) -> int:
    """Run what is missing and print the table. counts: "1,2,4,8". each: then time every GPU alone, all at once (see
    labkit.compare.scaling_each). Returns 0; 3 if the budget left something for another call, 1 if an arm failed.
    LabError before anything starts: a count that this machine does not have."""
    from labkit.compare.compare import compare
    from labkit.compare.scaling_each import against_each, place, time_each

    console = console or Console()
    if under_torchrun():
        raise LabError("lab scaling starts its ranks itself, as many as it compares: call it without torchrun")
    numbers, settings = parse(counts), list(settings)
    whole = load_preset(preset, settings)
    if whole.speed is None:
        raise LabError(f"preset {whole.name} has no [speed] section, so there is nothing to time")
    there = check_device(whole.model_copy(update={"world_size": 0}))
    if whole.device == "cuda" and max(numbers) > there:
        raise LabError(f"--gpus names {max(numbers)} GPUs and this machine has {there}")
    if each and max(numbers) == 1:
        raise LabError("--each tells what GPUs lose together, and --gpus names no more than one")
    memory = gpu_memory_gib(whole)
    wanted = list(arms) if arms is not None else runnable(whole, memory, console)
    out = Path(out or Path("runs") / f"{whole.name}-scaling")
    runs = {n: [*settings, *same_work(whole, memory, n)] for n in {*numbers, 1}}
    lone = [place(out, i) for i in range(max(numbers) if each else 0)]
    for folder, here in (*((out / str(n), runs[n]) for n in numbers), *((folder, runs[1]) for folder in lone)):
        refuse_other(folder, load_preset(preset, here))
    budget, status = Budget(budget_minutes, price_per_hour), 0
    for n in numbers:
        if measured(out / str(n), wanted):
            continue
        if (rest := left(budget)) == 0:
            status = UNFINISHED
            break
        status = compare(
            preset,
            arms=wanted,
            out=out / str(n),
            settings=runs[n],
            part="speed",
            budget_minutes=rest,
            price_per_hour=price_per_hour,
            console=console,
        )
        if status:
            break
    if each and not status:
        rest = left(budget)
        status = (
            UNFINISHED
            if rest == 0
            else time_each(
                preset,
                lone,
                arms=wanted,
                settings=runs[1],
                cuda=whole.device == "cuda",
                budget_minutes=rest,
                console=console,
            )
        )
    rows = rows_of(out)
    if rows:
        console.print(_table(rows))
        if uneven := unequal(rows):
            console.print(uneven, highlight=False)
    for sentence in against_each(out):
        console.print(sentence, highlight=False)
    if status == UNFINISHED:
        console.print("The budget is spent; the same command goes on.", highlight=False)
    return status


def left(budget: Budget) -> float | None:
    """Minutes that are left, not under 0; None: no limit."""
    return None if budget.minutes is None else max(0.0, budget.minutes - budget.seconds() / 60)


def parse(counts: str) -> list[int]:
    """ "1,2,4" as numbers, in order; LabError for anything else."""
    try:
        numbers = sorted({int(word) for word in counts.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise LabError(f"--gpus takes numbers of GPUs by comma, as in 1,2,4,8; got '{counts}'")
    return numbers


def runnable(preset: Preset, memory_gib: float | None, console: Console) -> list[str]:
    """The arms of the speed part that this machine can run; what cannot is told. LabError for the baseline."""
    found = []
    for arm in preset.speed.arms:
        try:
            check_arm(preset.speed_config(arm, memory_gib, 1), preset.device, 1)
            found.append(arm)
        except LabError as error:
            if arm == preset.baseline():
                raise
            console.print(f"{preset.arms[arm].label}: skipped, {error}", markup=False, highlight=False)
    return found


def same_work(preset: Preset, memory_gib: float | None, ranks: int) -> list[str]:
    """Settings in which each of `ranks` ranks has the batch that it would have alone, in each arm."""
    batches = (
        f"arms.{arm}.train.batch_size={preset.speed_config(arm, memory_gib, 1).batch_size * ranks}"
        for arm in preset.speed.arms
    )
    return [f"world_size={ranks}", *batches]


def refuse_other(folder: Path, preset: Preset) -> None:
    """LabError if `folder` holds a run of other settings, NCCL's included: it would answer for this one."""
    if (folder / "run.json").exists():
        versions = read_run(folder).run.get("versions") or {}
        here = {name: os.environ.get(name) or None for name in NCCL} if preset.device == "cuda" else {}
        other = other_settings(folder, preset) or next((k for k, v in here.items() if versions.get(k) != v), "")
        if other:
            raise LabError(f"{folder} holds a run with other settings ({other}): choose another folder with --out")


def measured(folder: Path, arms: Iterable[str]) -> bool:
    """Whether this folder's record has a result for each of these arms."""
    try:
        found = _speed(read_run(folder)).get("arms") or {}
    except LabError:
        return False
    return all(arm in found for arm in arms)


def rows_of(out: Path, inner: str = ".") -> list[dict[str, Any]]:
    """A row for each arm and number of ranks that the records below `out`, N/inner/run.json, hold, arm by arm."""
    found, records = [], {file.parts[len(Path(out).parts)]: file for file in Path(out).glob(f"[0-9]*/{inner}/run.json")}
    for folder in sorted(records, key=int):
        data = read_run(records[folder].parent)
        window = ((data.run.get("config") or {}).get("speed") or {}).get("seconds")
        for name, arm in (_speed(data).get("arms") or {}).items():
            found.append(
                {
                    "folder": folder,
                    "arm": name,
                    "label": arm["label"],
                    "ranks": arm["ranks"],
                    "rate": arm["tokens_per_s"],
                    "each": arm["tokens_per_s"] / arm["ranks"],
                    "tokens_step": arm["tokens_step"],
                    "seq_len": arm["seq_len"],
                    "window": window,
                    "step_ms": 1e3 * arm["step_p50"],
                    "peak_gib": arm["memory"]["peak"] / 2**30,
                }
            )
    order = list(dict.fromkeys(row["arm"] for row in found))
    found.sort(key=lambda row: (order.index(row["arm"]), row["ranks"]))
    for row in found:
        fewest = next(other for other in found if other["arm"] == row["arm"])
        row["share"] = row["each"] / fewest["each"]
    return found


def unequal(rows: list[dict[str, Any]]) -> str:
    """A sentence if a GPU's work was not the same everywhere, or not timed for as long (a GPU slows as it warms), so
    that the shares are no weak scaling; else ""."""
    for arm in dict.fromkeys(row["arm"] for row in rows):
        sizes = sorted({(row["tokens_step"], row["seq_len"]) for row in rows if row["arm"] == arm})
        if len(sizes) > 1:
            told = " and ".join(f"{tokens:,} tokens of {length:,}" for tokens, length in sizes)
            return f"These shares are no weak scaling: in {arm} a GPU had {told} a step."
        windows = sorted({row["window"] for row in rows if row["arm"] == arm and row["window"]})
        if len(windows) > 1:
            told = " and ".join(f"{seconds:g}" for seconds in windows)
            return (
                f"These shares are no weak scaling: {arm} was timed for {told} s, and a GPU slows as it "
                "warms. Take the same speed.seconds for all."
            )
    return ""


def cells(row: dict[str, Any]) -> list[str]:
    """One line under HEADS."""
    return [
        row["label"],
        str(row["ranks"]),
        f"{row['rate']:,.0f}",
        f"{row['each']:,.0f}",
        f"{100 * row['share']:.1f}",
        f"{row['step_ms']:,.1f}",
        f"{row['peak_gib']:.1f}",
    ]


def markdown(out: Path) -> str:
    """The table of these records as Markdown. LabError if there are none, or they are no weak scaling."""
    from labkit.compare.scaling_each import against_each

    rows = rows_of(out)
    if not rows:
        raise LabError(f"{out} holds no records of lab scaling")
    if uneven := unequal(rows):
        raise LabError(uneven)
    lines = [list(HEADS), ["---", *["--:"] * (len(HEADS) - 1)], *map(cells, rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([table, *against_each(out)])


def _table(rows: list[dict[str, Any]]) -> Table:
    out = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, head in enumerate(HEADS):
        out.add_column(head, justify="right" if i else "left", no_wrap=bool(i))
    for row in rows:
        out.add_row(*cells(row))
    return out


def _speed(data: RunData) -> dict[str, Any]:
    return (data.run.get("results") or {}).get("speed") or {}
