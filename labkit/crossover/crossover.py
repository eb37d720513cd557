"""What `lab crossover` does: measure what is missing, keep it, draw it, print it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from labkit.compare.background import refuse_company
from labkit.compare.terminal import say
from labkit.crossover import record as records
from labkit.crossover.grid import ARMS, BASE, FP8, TIE, Shape, describe, parse_arms, parse_sizes, speedup
from labkit.errors import LabError
from labkit.record import benchmark
from labkit.record.files import writable
from labkit.record.run import now

SIZES = {"cuda": "1K,4K,16K", "cpu": "128,512"}  # of M, of K and of N


@dataclass(frozen=True)
class Request:
    """The command's options, as they were typed."""

    M: str | None = None
    K: str | None = None
    N: str | None = None
    arms: str | None = None
    device: str | None = None
    out: Path = Path("runs/crossover")
    seconds: float = 300.0
    budget: float = 0.1
    compiled: bool = True


def crossover(request: Request, console: Console | None = None) -> int:
    """Measure the map and draw it. Returns 0 if every shape is measured, 1 if the time was up. LabError: cannot begin."""
    import torch

    from labkit.crossover.linear import LOOPS

    console, out = console or Console(), request.out
    device = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in SIZES:
        raise LabError(f"--device is cuda or cpu, not '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise LabError("--device cuda, and torch sees no GPU: `lab doctor` says why; --device cpu runs anywhere")
    if not request.seconds > 0 or not request.budget > 0:
        raise LabError("--seconds and --budget are above 0")
    sizes = {name: parse_sizes(getattr(request, name) or SIZES[device], name.lower()) for name in "MKN"}
    arms, missing = choose_arms(parse_arms(request.arms), device, explicit=request.arms is not None)
    about = benchmark.about("crossover", device)
    fresh = {
        **about,
        "status": "running",
        "finished": None,
        "device": device,
        "device_name": about["hardware_name"],
        "grid": sizes,
        "arms": arms,
        "method": {"budget": request.budget, "loops": LOOPS, "compiled": request.compiled},
        "cells": [],
        "missing": missing,
    }
    if device == "cuda":
        refuse_company(out)
    record = records.resume(out, fresh)
    writable(out)
    for arm, why in missing.items():
        say(console, f"{ARMS[arm][2]}: left out, {why}")
    whole = _measure(record, out, torch.device(device), request.seconds, console)
    draw(record, out, console)
    if not whole:
        say(console, f"{len(records.list_missing(record))} shapes are left: the same command goes on with them.")
    return int(not whole)


def choose_arms(arms: list[str], device: str, explicit: bool) -> tuple[list[str], dict[str, str]]:
    """Return (arms that can run here, {arm: why not}). LabError if one that was named cannot, or none can."""
    from labkit.precision.registry import availability

    found = {arm: availability(*ARMS[arm][:2], device) for arm in arms}
    missing = {arm: str(able) for arm, able in found.items() if not able.ok}
    left = [arm for arm in arms if arm not in missing]
    if missing and (explicit or len(left) < 2):
        arm = next(iter(missing))
        raise LabError(f"arm {arm} cannot run here: {missing[arm]}")
    return left, missing


def _measure(record: dict[str, Any], out: Path, device: Any, seconds: float, console: Console) -> bool:
    """Fill the map shape by shape; False if the time was up before the end."""
    from labkit.crossover.linear import measure

    end = time.monotonic() + seconds
    left = records.list_missing(record)
    for number, shape in enumerate(left, 1):
        if number > 1 and time.monotonic() > end:
            records.save({**record, "status": "stopped"}, out)
            return False
        new = measure(shape, record["arms"], device, record["method"]["budget"], record["method"]["compiled"])
        kept = [cell for cell in record["cells"] if Shape(cell["M"], cell["K"], cell["N"]) != shape]
        record["cells"] = kept + [cell.to_dict() for cell in new]
        records.save(record, out)
        times = {cell.arm: cell for cell in new}
        gains = {arm: speedup(times[BASE], times[arm]) for arm in times if arm != BASE}
        words = ", ".join(f"{arm} {gain:.2f}" if gain else f"{arm} -" for arm, gain in gains.items())
        say(console, f"{number:3d} of {len(left)}  {shape!s:>17s}  {words}")
    record.update(status="finished", finished=now())
    records.save(record, out)
    return True


def draw(record: dict[str, Any], folder: Path, console: Console) -> None:
    """Draw pictures and tables of a map from its record alone, and print where FP8 loses."""
    from labkit.crossover import pictures

    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    made = [pictures.heat_map(record, arm, figures) for arm in record["arms"] if arm in FP8]
    made = [picture for picture in [*made, pictures.split(record, figures)] if picture]
    timed = {arm for (_, arm), cell in records.cells(record).items() if cell.seconds}
    tables = [records.table(record, arm) for arm in record["arms"] if arm in timed - {BASE}]
    (folder / "crossover.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    for arm in record["arms"]:
        say(console, summarise(record, arm))
    say(console, f"{folder / 'crossover.md'} and {len(made)} pictures in {figures}")


def summarise(record: dict[str, Any], arm: str) -> str:
    """Summarise an arm in a few sentences: how often it pays, its best and its worst shape with the reason."""
    have = records.cells(record)
    if arm == BASE:
        fast = [(shape.flops / cell.took, shape) for (shape, a), cell in have.items() if a == BASE and cell.seconds]
        rate, shape = max(fast, default=(0.0, "no shape"))
        return f"{ARMS[arm][2]}: up to {rate / 1e12:.3g} TFLOP/s (at {shape})"
    pairs = [(gain, shape) for shape, a in have if a == arm and (gain := speedup(*records.pair(have, shape, arm)))]
    if not pairs:
        reasons = {cell.why_not for (_, a), cell in have.items() if a == arm and cell.why_not}
        return f"{ARMS[arm][2]}: not measured ({'; '.join(sorted(reasons)) or 'its shapes are still to come'})"
    wins, loses = sum(gain > 1 + TIE for gain, _ in pairs), sum(gain < 1 - TIE for gain, _ in pairs)
    text = f"{ARMS[arm][2]}: faster at {wins} of {len(pairs)} shapes, slower at {loses}."
    for _, shape in dict.fromkeys((max(pairs), min(pairs))):
        text += f"\n    {describe(have[shape, BASE], have[shape, arm])}"
    return text
