"""The benchmark's records (`python -m week16_fp8.bench --out FILE`), and tables of them.

results/bench/ has those of real machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.record import benchmark

RESULTS = Path(__file__).parents[1] / "results" / "bench"
KIND = "fp8"


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a record. LabError if the file is missing or is none."""
    return benchmark.load(path, KIND, "benchmark record of week 16")


def recorded(device: str = "cuda", folder: Path = RESULTS) -> dict[str, Any] | None:
    """The record in results/bench/ with this device, the one with the most ranks; None where there is none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = read_record(path)
        if record["device"] == device:
            found.append(record)
    return max(found, key=lambda record: record["ranks"], default=None)


def on_tensor_cores(gpu: str) -> dict[str, Any]:
    """What an "H100" or "H200" measured of task 16.10."""
    path = RESULTS.parent / f"2026-11-28-{gpu.lower()}-tensor-cores.json"
    return json.loads(path.read_text(encoding="utf-8"))


def rows(record: dict[str, Any], shape: tuple[int, int, int] | None = None) -> list[dict[str, Any]]:
    """The measured rows of one shape of the part "linear"; by default of the largest one."""
    measured = [row for row in record["linear"] if "seconds" in row]
    if not measured:
        return []
    chosen = list(shape) if shape else max((row["shape"] for row in measured), key=lambda s: s[0] * s[1] * s[2])
    return [row for row in measured if row["shape"] == chosen]


def times_as_long(record: dict[str, Any], arm: str, shape: tuple[int, int, int] | None = None) -> float | None:
    """Seconds of an arm over the plain linear's; None if either was not measured."""
    found = {row["arm"]: row["seconds"] for row in rows(record, shape)}
    return found[arm] / found["plain"] if arm in found and "plain" in found else None


def linear_table(record: dict[str, Any]) -> str:
    """The part "linear": a line an arm and shape, on a GPU with the milliseconds of its kernels by class."""
    measured = [row for row in record["linear"] if "seconds" in row]
    spent = [row.get("kernels", {}).get("classes_ms", {}) for row in measured]
    kinds = [kind for kind in (spent[0] if spent else {}) if any(part.get(kind, 0) > 0.005 for part in spent)]
    lines = []
    for row, part in zip(measured, spent):
        times = times_as_long(record, row["arm"], tuple(row["shape"]))
        cells = ["x".join(map(str, row["shape"])), row["label"], f"{row['seconds'] * 1e3:.3f}", f"{times:.2f}"]
        lines.append([*cells, *(f"{part[kind]:.2f}" if part else "" for kind in kinds)])
    return markdown_table(["tokens x in x out", "", "ms", "x the plain one's time", *kinds], lines)


def train_table(record: dict[str, Any]) -> str:
    """The part "train": a line an arm."""
    judged, lines = record["verdict"]["arms"], []
    for arm, row in record["train"].items():
        if row.get("why_not"):
            continue
        gap = judged.get(arm)
        least = min((dB for kind, (_, dB) in row["lowest"].items() if kind != "output"), default=None)
        cells = [arm, f"{row['rate']:,.0f}", f"{list(row['heldout'].values())[-1]:.4f}"]
        cells += [f"{gap['value']:.3f}", gap["word"]] if gap else ["", "baseline"]
        lines.append([*cells, f"{least:.1f}" if least is not None else ""])
    return markdown_table(["", "tokens/s", "held-out loss", "gap, %", "", "lowest SQNR, dB"], lines)


def milliseconds_of(record: dict[str, Any], arm: str, *kinds: str) -> float:
    """Milliseconds of the largest linear in these classes of kernels."""
    row = next(row for row in rows(record) if row["arm"] == arm)
    return sum(row["kernels"]["classes_ms"].get(kind, 0.0) for kind in kinds)
