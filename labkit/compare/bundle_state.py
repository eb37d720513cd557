"""Is a run whole? What `lab bundle` asks before it packs one, answered in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.compare.background import going
from labkit.record.read import RunData, read_run

UNENDING = 10**6  # steps of a run that a clock ends (labkit.compare.speed)


def state(run: Path) -> str:
    """ "whole", or one sentence on why this run is not: it goes on, was killed, failed, or lacks something. LabError:
    no run."""
    records = dict(_records(run, read_run(run)))
    for name, record in records.items():
        if record.alive:
            return f"{_named(name)} is still going on ({_progress(record)})"
    if going(run):  # detached a moment ago: it has not opened its record yet
        return "the run is still going on"
    for name, record in records.items():
        if record.status == "interrupted":
            return (
                f"{_named(name)} was stopped or killed ({_progress(record)}); the command that started it goes on "
                "with it"
            )
        if record.status != "finished":
            return f"{_named(name)} has not finished: its status is '{record.status}'"
    for name, record in records.items():
        lacks = missing(name, record)
        if lacks:
            return lacks
    return "whole"


def missing(name: str, record: RunData) -> str:
    """What a finished record should hold and does not, as a sentence; "" if nothing."""
    said = _named(name)
    for file in ("steps.jsonl", "events.jsonl"):
        if not (record.path / file).is_file():
            return f"{said} lacks {file}"
    if record.truncated:
        return f"{said} has {record.truncated} lines that cannot be read"
    results = record.run.get("results") or {}
    if record.run.get("kind") == "compare":
        for arm, row in (results.get("arms") or {}).items():
            never_ran = isinstance(row, dict) and row.get("status") in ("skipped", "failed")
            if arm not in record.arms and not never_ran:
                return f"{said} lacks the record of its arm {arm} (arms/{arm})"
        for arm in (results.get("speed") or {}).get("arms") or {}:
            if not (record.path / "speed" / arm / "run.json").is_file():
                return f"{said} lacks the record of its timed arm {arm} (speed/{arm})"
        if not (record.path / "report.html").is_file():
            return f"{said} lacks report.html: `lab report {record.path.name}` draws it"
    steps = (record.run.get("config") or {}).get("steps")
    if record.run.get("kind") == "train" and isinstance(steps, int) and steps < UNENDING and "speed" not in results:
        last = max((line.get("step", 0) for line in record.steps), default=0)
        if last != steps:
            return f"{said} says that it finished, but its steps end at {last} of {steps}"
    return ""


def _records(run: Path, data: RunData) -> Iterator[tuple[str, RunData]]:
    """The run and every record below it, by path relative to the run; the run itself is ""."""
    yield "", data
    for file in sorted(run.rglob("run.json")):
        if file.parent != run and not any(part.startswith(".") for part in file.relative_to(run).parts):
            yield file.parent.relative_to(run).as_posix(), read_run(file.parent)


def _named(name: str) -> str:
    return name if name else "the run"


def _progress(record: RunData) -> str:
    """How far it came; a comparison has no steps of its own, only its arms have."""
    if record.run.get("kind") == "compare":
        below = [
            read_run(file.parent)
            for file in (*record.path.glob("arms/*/run.json"), *record.path.glob("speed/*/run.json"))
        ]
        return f"{sum(each.status == 'finished' for each in below)} arms finished"
    last = max((line.get("step", 0) for line in record.steps), default=0)
    steps = (record.run.get("config") or {}).get("steps")
    planned = f" of {steps}" if isinstance(steps, int) and steps < UNENDING else ""
    return f"step {last}{planned}" if last else "no step yet"
