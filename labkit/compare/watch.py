"""Looking at a comparison from outside: what is done, what runs now, how it ended. Reads the folder, changes nothing.

`lab status RUN` shows it once; `lab compare` follows a run that goes on in its folder instead of starting a second one.
The folder tells everything, so it does not matter who started the run, or whether it is detached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from labkit.compare import background
from labkit.compare.progress import TrainingProgress, last_step, step_words
from labkit.errors import LabError
from labkit.record.read import RunData, is_alive, load_run, read_run

LOOK = 0.3  # seconds between two looks
LEFT = 130  # exit status when the one who watches leaves: Ctrl-C


def arms(out: Path) -> Iterator[tuple[str, str, Path]]:
    """(part, label, folder) of every arm that the comparison is made of, in the order in which they run."""
    run = load_run(out)
    config = run.get("config") or {}
    labels = {name: arm.get("label", name) for name, arm in (config.get("arms") or {}).items()}
    parts = config.get("parts") or ["speed", "safety"]
    if "speed" in parts:
        yield from (
            ("speed", labels.get(name, name), out / "speed" / name)
            for name in (config.get("speed") or {}).get("arms") or ()
        )
    if "safety" in parts:
        yield from (("safety", label, out / "arms" / name) for name, label in labels.items())


def line(part: str, label: str, folder: Path) -> str:
    """One arm in words: finished, at work, paused; "" if it has not begun."""
    try:
        data = read_run(folder)
    except LabError:
        return ""
    return f"{label} ({part}): {_how_far(data)}"


def _how_far(data: RunData) -> str:
    results = data.run.get("results") or {}
    if data.status == "finished":
        rate = (results.get("speed") or {}).get("tokens_per_s") or results.get("tokens_per_s")
        return "finished" + (f", {rate:,.0f} tokens/s" if rate else "")
    last = last_step(data.path / "steps.jsonl")
    steps = (data.run.get("config") or {}).get("steps")
    of = f" of {steps}" if steps and steps < 10**6 else ""  # a window ends by the clock
    told = f"step {last['step']}{of}, {step_words(last)}" if last else "no step yet"
    return f"{'paused' if results.get('paused') else data.status} at {told}" if data.status != "running" else told


def overview(out: Path, console: Console) -> int:
    """Print where the comparison in `out` stands. Returns 0 if it goes on or is finished, 3 if the same command would
    go on with it, 1 if it died or failed. LabError: no comparison there."""
    run = read_run(out)
    if run.run.get("kind") != "compare":
        raise LabError(f"{out} holds no comparison: `lab report {out}` draws the page of any run")
    on = background.going(out)
    call = run.run.get("call") or {}
    if on:
        console.print(f"{out} is running{_since(out, call)}.", highlight=False, soft_wrap=True)
        for told in filter(None, (line(*arm) for arm in arms(out))):
            console.print(f"  {told}", highlight=False, markup=False)
        return 0
    if tell_death(out, console):
        return 1
    if run.status != "finished" and not (run.run.get("results") or {}).get("verdict"):
        console.print(
            f"{out} has not come to an end ({run.status}); the same command goes on:", highlight=False, soft_wrap=True
        )
        for told in filter(None, (line(*arm) for arm in arms(out))):
            console.print(f"  {told}", highlight=False, markup=False)
        return 1 if run.status == "failed" else 3
    from labkit.compare.summary import show

    show(out, console)
    return {"finished": 0, "failed": 1}.get(run.status, 3)


def _since(out: Path, call: dict[str, Any]) -> str:
    began = call.get("began")
    if not began:
        return ""
    told = f", {(time.time() - began) / 60:.1f} minutes by now"
    if call.get("predicted_s"):
        told += f", {call['predicted_s'] / 60:.1f} predicted"
    if call.get("minutes"):
        told += f", at most {call['minutes']:g}"
    process = background.process_of(out)
    return told + (f" (detached, process {process.pid})" if process and process.alive else "")


def follow(out: Path, console: Console) -> int:
    """Watch the run that goes on in `out` to its end, then show what came of it. Returns its exit status; 130 if the
    one who watches leaves, and then the run goes on."""
    told: set[Path] = set()
    try:
        overview(out, console)
        console.print("Ctrl-C leaves it running; --stop pauses it.", highlight=False)
        while background.going(out):
            now = next((arm for arm in arms(out) if arm[2] not in told and is_alive(arm[2])), None)
            if now is None:
                time.sleep(LOOK)
                continue
            part, label, folder = now
            steps = (load_run(folder).get("config") or {}).get("steps")
            with TrainingProgress(
                console, label if part == "safety" else f"{label}, speed", folder, steps if part == "safety" else None
            ):
                while background.going(out) and is_alive(folder):
                    time.sleep(LOOK)
            told.add(folder)
            console.print(line(*now), highlight=False, markup=False)
    except KeyboardInterrupt:
        console.print(f"Left. The run goes on: `lab status {out}` shows it.", highlight=False, soft_wrap=True)
        return LEFT
    status = overview(out, console)
    process = background.process_of(out)
    return process.exit if process and process.exit is not None else status


def stop(out: Path, console: Console) -> int:
    """Ask the run in `out` to pause, and wait until it has. LabError if nothing runs there."""
    if not background.going(out):
        raise LabError(f"nothing is running in {out}")
    background.ask_to_stop(out)
    console.print(
        "Asked to pause. It does so between two steps, which may take a minute while it compiles.", highlight=False
    )
    try:
        while background.going(out):
            time.sleep(LOOK)
    except KeyboardInterrupt:
        console.print("Left. It stops by itself.", highlight=False)
        return LEFT
    overview(out, console)
    return 0


def tell_death(out: Path, console: Console) -> bool:
    """If the last detached run of this folder ended without a word of its own, tell its last ones. Was it so?"""
    process = background.died(out)
    if process is None:
        return False
    how = "was killed, or the machine went down" if process.exit is None else "ended with an error"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(process.began))
    console.print(
        f"The detached run of {when} {how}. The last lines of {out / background.LOG}:",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    for said in (background.last_words(out) or "(nothing)").splitlines():
        console.print(f"    {said}", highlight=False, markup=False, soft_wrap=True)
    console.print("What it finished is kept; the same command goes on.", highlight=False)
    return True
