"""Measured runs from a CSV into cases.

A field that is blank, `?`, or a choice like `0/1?` becomes the values that it may have: each combination is a case.
"""

import csv
import itertools
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.plan.cases import FLASH, FORMATS, FULL, NONE, OPERATIONS, SDPA, SELECTIVE, UNFUSED, Array, Cases, cases
from labkit.plan.machine import G, columns_of, described, find_chip

Row = dict[str, str]
NEEDED = ("layers", "hidden", "gpus", "gbs")
UNKNOWN = ("", "?", "n/a", "na", "none?", "unknown", "-", "nan")


class Runs(NamedTuple):
    """Cases, for each the row that it belongs to, and why some rows have none."""

    cases: Cases
    owner: np.ndarray
    rows: list[Row]
    left_out: list[str]

    def spread(self, seconds: Array) -> tuple[Array, Array, Array]:
        """Return (geometric mean, least, most) of each row's cases."""
        logs = np.log(seconds)
        starts = np.unique(self.owner, return_index=True)[1]
        mean = np.bincount(self.owner, logs) / np.bincount(self.owner)
        return np.exp(mean), np.exp(np.minimum.reduceat(logs, starts)), np.exp(np.maximum.reduceat(logs, starts))


def read(path: Path | str) -> list[Row]:
    """Read the rows of a CSV, as text. LabError: no such file, no line, no header that says what it must."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, restkey="", restval="")
            rows = [{key.strip(): str(value).strip() for key, value in line.items()} for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabError(f"{path} cannot be read as a CSV file: {error}") from None
    if not rows:
        raise LabError(f"{path} holds no runs: a header, then one run a line, as in labkit/plan/data")
    if missing := [name for name in NEEDED if name not in rows[0]]:
        raise LabError(f"{path} has no column {', '.join(missing)}: its first line must name the columns")
    return rows


def runs(rows: list[Row]) -> Runs:
    """Make every row's cases, in the rows' order. A row of an unknown model or machine is left out, with the reason."""
    made: dict[str, list[float]] = defaultdict(list)
    owner: list[int] = []
    kept: list[Row] = []
    left_out = []
    for row in rows:
        try:
            options = choices(row)
        except LabError as error:
            left_out.append(str(error))
            continue
        for combination in itertools.product(*options.values()):
            for name, value in zip(options, combination):
                made[name].append(value)
            owner.append(len(kept))
        kept.append(row)
    if not kept:
        raise LabError("no row can be read: " + "; ".join(left_out[:3]))
    return Runs(cases(dict(made)), np.array(owner), kept, left_out)


def number(row: Row, name: str) -> float | None:
    """Return the number in this column; None if it holds none, or an infinite one."""
    try:
        value = float(row.get(name, "").replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def size(row: Row, name: str, default: float) -> float:
    """Return the number in this column if it is above 0, else the default."""
    value = number(row, name) or 0.0
    return value if value > 0 else default


def several(row: Row, name: str, default: list[float]) -> list[float]:
    """Return the values that a field may have: one number, or the numbers in a text like `0/1?`, or the default."""
    if (value := number(row, name)) is not None:
        return [value]
    text = row.get(name, "")
    found = [] if text.lower() in UNKNOWN else re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)
    return sorted(set(map(float, found))) or default


def flag(row: Row, name: str, absent: list[float]) -> list[float]:
    """Return yes / no / n/a as 1 / 0 / 0, anything else as `absent`."""
    text = row.get(name, "").lower().rstrip("?")
    if text in ("yes", "true", "1", "1.0"):
        return [1.0]
    return [0.0] if text in ("no", "false", "0", "0.0", "n/a", "na") else absent


def choices(row: Row) -> dict[str, list[float]]:
    """Return {column: the values that it may have} of one row. LabError: its model or its machine is unknown."""
    who = row.get("id", "a row")
    if missing := [name for name in NEEDED if not size(row, name, 0)]:
        raise LabError(f"{who}: {', '.join(missing)} must be numbers above 0")
    layers, hidden, gpus, gbs = (size(row, name, 0) for name in NEEDED)
    heads, ffn = size(row, "heads", max(1, round(hidden / 128))), size(row, "ffn", 4 * hidden)
    degrees = {name: size(row, name, 1.0) for name in ("tp", "pp", "cp")}
    dp = size(row, "dp", max(1.0, gpus // math.prod(degrees.values())))
    mbs = [one for one in several(row, "mbs", []) if one > 0]
    attention = row.get("attn", "").lower()
    plain_torch = "sdpa" in attention or (number(row, "zero") == 3 and "cudnn" not in attention)
    fused = [float(SDPA)] if plain_torch else [float(FLASH)]
    if not plain_torch and dp > 1 and row.get("dp_overlap", "").lower() in UNKNOWN[:2]:
        fused = [float(SDPA), float(FLASH)]  # software that nobody described
    known = attention not in UNKNOWN
    kinds = [float(UNFUSED)] if known and ("unfused" in attention or attention == "no") else fused
    spread, split = ([0.0, 1.0] if many > 1 else [0.0] for many in (dp, degrees["tp"]))
    return {
        "layers": [layers],
        "hidden": [hidden],
        "heads": [heads],
        "kv_heads": [size(row, "kv_heads", heads)],
        "ffn": [ffn],
        "gated": flag(row, "mlp_gated", [float(ffn < 3.9 * hidden)]),
        "vocab": [size(row, "vocab", 50304.0)],
        "tied": flag(row, "tied_emb", [0.0]),
        "experts": [number(row, "experts") or 0.0],
        "topk": [number(row, "topk") or 0.0],
        "head_dim": [0.0],
        "seq": [one for one in several(row, "seq", []) if one > 0] or [2048.0, 4096.0],
        "gbs": [gbs],
        "mbs": mbs or [float(one) for one in (1, 2, 4) if gbs >= dp * one] or [1.0],
        **{name: [value] for name, value in degrees.items()},
        "vp": [max(1.0, one) for one in several(row, "vp", [1.0])],
        "ep": [size(row, "ep", 1.0)],
        "dp": [dp],
        "sp": flag(row, "sp", split),
        "zero": several(row, "zero", [0.0, 1.0]),
        "recompute": recomputed(row.get("recompute", "").lower()),
        "attention": kinds if known else [float(UNFUSED), float(FLASH)],
        "tp_overlap": flag(row, "tp_overlap", split),
        "dp_overlap": flag(row, "dp_overlap", spread),
        "format": [float(FORMATS.index("fp8")) if "8" in row.get("precision", "") else 0.0],
        "half": [float(row.get("precision", "").lower() == "fp16")],
        **machine_columns(row, gpus),
    }


def recomputed(text: str) -> list[float]:
    if text in UNKNOWN:
        return [float(NONE), float(FULL)]
    if "op" in text:
        return [float(OPERATIONS)]
    return [float(SELECTIVE if text.startswith("sel") else NONE if text in ("none", "no", "0") else FULL)]


def machine_columns(row: Row, gpus: float) -> dict[str, list[float]]:
    """Return the machine's columns. Peak and memory are the row's own where it says them."""
    chip = find_chip(row.get("gpu", ""))
    peak = size(row, "peak_tflops_bf16", chip.tflops if chip else 0.0)
    if not peak:
        who = row.get("id", "a row")
        raise LabError(f"{who}: the GPU '{row.get('gpu', '')}' is unknown, and peak_tflops_bf16 is no number")
    memory = size(row, "gpu_mem_gb", chip.memory_gb if chip else 80.0)
    if chip and abs(memory / chip.memory_gb - 1) < 0.1:  # 192 GB of HBM on a B200, of which the datasheet sells 180
        memory = chip.memory_gb
    chip = chip or described(peak, 0.0, memory, None)
    chip = chip._replace(tflops=peak, fp8_tflops=size(row, "peak_tflops_fp8", chip.fp8_tflops), memory_gb=memory)
    columns = {name: [float(value)] for name, value in columns_of(chip).items()}
    inter = size(row, "inter_bw_GBps_per_gpu", 0.0)
    return {
        **columns,
        "per_node": [size(row, "gpus_per_node", min(gpus, 8.0))],
        "recent": columns["recent"] if chip.known else [0.0, 1.0],
        "intra": [size(row, "intra_bw_GBps_per_gpu_unidir", chip.nvlink) * G],
        "inter": [inter * G] if inter else [12.5 * G, 50 * G],
    }
