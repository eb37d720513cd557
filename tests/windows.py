"""Recorded timing windows, for the tests of what the pages say of them."""
from __future__ import annotations

from pathlib import Path
from statistics import median

from labkit.record.arms import load_preset
from labkit.record.read import read_run


def seconds(run: Path, arm: str) -> list[float]:
    """What the steps of an arm took, from the window's first on; those of the profile come last."""
    return [step["seconds"] for step in read_run(run / "speed" / arm).steps][load_preset("h100").speed.warmup:]


def equal_windows(one: Path, many: Path, arm: str) -> float:
    """What per cent of one GPU's tokens/s each of many trains, over the same first steps: a GPU slows as it warms."""
    window = read_run(many).run["results"]["speed"]["arms"][arm]["steps"]
    return 100 * median(seconds(one, arm)[:window]) / median(seconds(many, arm)[:window])
