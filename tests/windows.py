"""Recorded timing windows, for the tests of what the pages say of them."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median

from labkit.record.read import read_run


def seconds(run: Path, arm: str) -> list[float]:
    """What the steps of an arm took, from the window's first on; those of the profile come last."""
    return [step["seconds"] for step in read_run(run / "speed" / arm).steps][warmup(run) :]


def warmup(run: Path) -> int:
    """Steps before the window."""
    return read_run(run).run["config"]["speed"]["warmup"]


def equal_windows(one: Path, many: Path, arm: str) -> float:
    """What per cent of one GPU's tokens/s each of many trains, over the same first steps: a GPU slows as it warms."""
    window = window_steps(many, arm)
    return 100 * median(seconds(one, arm)[:window]) / median(seconds(many, arm)[:window])


def window_steps(run: Path, arm: str) -> int:
    """Steps that were timed; of an arm whose comparison was cut off, those that are there."""
    record, results = read_run(run).run, read_run(run).run.get("results") or {}
    arms = (results.get("speed") or {}).get("arms") or {}
    if arm in arms:
        return arms[arm]["steps"]
    profiled = record["config"]["speed"]["profile"] if read_run(run / "speed" / arm).status == "finished" else 0
    return len(seconds(run, arm)) - profiled


def rate(run: Path, arm: str, tokens: int, window: int) -> float:
    """Tokens/s of each GPU: the median step of the first `window` ones."""
    return tokens / median(seconds(run, arm)[:window])


def of_lone(many: Path, arm: str, window: int, middle=median) -> tuple[float, float]:
    """What per cent each of four GPUs together trains of the four lone trainings of the same host, over the same first
    steps: of their mean, and of the slowest."""
    rates = [1 / middle(seconds(many.parent / f"lone{i}", arm)[:window]) for i in range(4)]
    one = 1 / middle(seconds(many, arm)[:window])
    return 100 * one / mean(rates), 100 * one / min(rates)


def clocks(host: Path, run: str, arm: str) -> list[float]:
    """Mean MHz of each GPU while this arm of this run kept all of them busy (over 670 W)."""
    record = read_run(host / run / "speed" / arm).run
    began, ended = (record[key][11:19] for key in ("started", "finished"))
    rows = [
        {key: value if key == "utc" else int(value) for key, value in row.items()}
        for row in csv.DictReader((host / "clocks.csv").read_text().splitlines())
    ]
    busy = [row for row in rows if began <= row["utc"] <= ended and min(row[f"watt{i}"] for i in range(4)) > 670]
    return [mean(row[f"mhz{i}"] for row in busy) for i in range(4)]


def lever_row(many: Path, words: str, tokens: int, windows: dict[str, int]) -> str:
    """A line of the levers' table: four GPUs together, against the lone trainings of the same host."""
    cells = []
    for arm, window in windows.items():
        finished = read_run(many / "speed" / arm).run.get("finished")
        mhz = f"{mean(clocks(many.parent, many.name, arm)):,.0f}" if finished else ""
        shares = (f"{share:.1f}" for share in of_lone(many, arm, window))
        cells += [f"{rate(many, arm, tokens, window):,.0f}", *shares, mhz]
    return f"| {words} | " + " | ".join(cells) + " |"


def lone_row(host: Path, words: str, tokens: int, windows: dict[str, int]) -> str:
    """The line above it: the mean and the slowest of the four."""
    cells = []
    for arm, window in windows.items():
        rates = [rate(host / f"lone{i}", arm, tokens, window) for i in range(4)]
        cells += [f"{mean(rates):,.0f}", f"(slowest {min(rates):,.0f})", "", f"{mean(clocks(host, 'lone0', arm)):,.0f}"]
    return f"| {words} | " + " | ".join(cells) + " |"


def row_of_8b(run: Path, words: str) -> str:
    """A line of the 8B table: rates a GPU, their ratio, what nothing but communication takes, memory."""
    bf16, fp8 = (read_run(run).run["results"]["speed"]["arms"][arm] for arm in ("bf16", "te-delayed"))
    alone = (f"{arm['kernels']['classes_ms']['communication']:.1f}" for arm in (bf16, fp8))
    peaks = (f"{arm['memory']['peak'] / 2**30:.1f}" for arm in (bf16, fp8))
    cells = (
        f"{bf16['tokens_per_s'] / 4:,.0f}",
        f"{fp8['tokens_per_s'] / 4:,.0f}",
        f"{fp8['tokens_per_s'] / bf16['tokens_per_s']:.2f}",
        *alone,
        *peaks,
    )
    return f"| {words} | " + " | ".join(cells) + " |"
