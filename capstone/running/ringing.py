"""What the notebook runs for C.4: rules on the lab's recorded runs, and the health page on one of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from capstone import health
from capstone.given.recorded import Recorded, load
from capstone.given.records import Alarm, Run

Rule = Callable[[Run], list[Alarm]]


def norm_beyond(sigmas: float) -> Rule:
    """Ring where the gradient's norm is more than so many sigmas above what was usual."""

    def rule(run: Run) -> list[Alarm]:
        z_S = health.unusual(run.norm_S[:, None], width=48, known=24, floor=0.05)[:, 0]
        return [Alarm(int(row), "norm") for row in (z_S > sigmas).nonzero().flatten()]

    return rule


def outcomes(rule: Rule) -> list[tuple[Recorded, Alarm | None]]:
    """Each of the lab's runs with its first alarm."""
    return [(one, min(rule(one.run), default=None, key=lambda alarm: alarm.row)) for one in load()]


def healthy_that_ring(rule: Rule) -> float:
    """Per cent of the healthy runs in which it rings."""
    rang = [alarm is not None for one, alarm in outcomes(rule) if one.fault is None]
    return 100 * sum(rang) / len(rang)


def in_time(one: Recorded, alarm: Alarm | None) -> bool:
    return alarm is not None and one.at is not None and one.harm is not None and one.at <= alarm.row <= one.harm


def price_list(thresholds: Sequence[float] = (3, 4, 6, 8, 12, 16)) -> str:
    """What a threshold on the gradient's norm buys: false alarms against faults in time, as text."""
    lines = ["sigmas   healthy runs that ring   faults announced in time"]
    for sigmas in thresholds:
        found = outcomes(norm_beyond(sigmas))
        faults = [in_time(one, alarm) for one, alarm in found if one.fault is not None]
        false = [alarm is not None for one, alarm in found if one.fault is None]
        lines.append(f"{sigmas:6g}   {sum(false):10} of {len(false):<11} {sum(faults):10} of {len(faults)}")
    return "\n".join(lines)


def page(fault: str) -> Any:
    """The health page of the lab's first run with this fault, your alarms among its own; a sentence without Panel."""
    from labkit.errors import LabError
    from labkit.watch import watch

    one = next(one for one in load() if one.fault == fault)
    try:
        return watch(folder_of(one), mine=True)
    except LabError as error:
        return str(error)


def as_text() -> str:
    """What your `alarms` say of each of the lab's runs, as text."""
    lines = ["fault      begins   harm   your alarm"]
    for one, alarm in outcomes(health.alarms):
        rang = "silent" if alarm is None else f"row {alarm.row}: {alarm.why}"
        lead = f", {one.harm - alarm.row} before" if alarm and one.harm is not None and in_time(one, alarm) else ""
        begins, harm = ("-" if row is None else row for row in (one.at, one.harm))
        lines.append(f"{one.fault or 'healthy':10} {begins:>6} {harm:>6}   {rang}{lead}")
    return "\n".join(lines)


def folder_of(one: Recorded) -> Path:
    """One of the lab's runs as a run folder, such as a training leaves."""
    folder = Path(tempfile.mkdtemp(prefix="recorded-")) / (one.fault or "healthy")
    folder.mkdir()
    run, steps = one.run, len(one.run.loss_S)
    probe = {int(row): at for at, row in enumerate(run.probe_P)}
    lines = []
    for row in range(steps):
        line: dict[str, Any] = {"step": row + 1, "loss": float(run.loss_S[row]), "grad_norm": float(run.norm_S[row])}
        if row in probe:
            line["param_norm"] = float(run.weight_P[probe[row]])
            tables = torch.stack([run.scale_PT, run.amax_PT, 100 * run.over_PT, 100 * run.under_PT])[:, probe[row]]
            names = ("scale", "amax", "overflow", "underflow")
            line["scales"] = {
                f"tensors.{at}.{('input', 'weight', 'grad')[at % 3]}": dict(zip(names, column))
                for at, column in enumerate(tables.T.tolist())
            }
        lines.append(line)
    about = {"kind": "train", "status": "finished", "config": {"steps": steps}, "results": {}}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "events.jsonl").write_text("")
    return folder
