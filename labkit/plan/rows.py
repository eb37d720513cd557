"""Measured runs from a CSV into cases.

A field that is blank, `?`, or a choice like `0/1?` becomes the values that it may have: each combination is a case.
"""

import csv
import itertools
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.plan.cases import (
    COLUMNS,
    FLASH,
    FORMATS,
    FULL,
    NONE,
    OPERATIONS,
    SDPA,
    SELECTIVE,
    UNFUSED,
    Array,
    Cases,
    cases,
)
from labkit.plan.machine import columns_of, described, find_chip

Row = dict[str, str]
MOST = 64  # combinations of a row; beyond it the last fields take their first value
G = 1e9
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
        mean = np.bincount(self.owner, logs) / np.bincount(self.owner)
        least, most = np.full(len(self.rows), np.inf), np.full(len(self.rows), -np.inf)
        np.minimum.at(least, self.owner, logs)
        np.maximum.at(most, self.owner, logs)
        return np.exp(mean), np.exp(least), np.exp(most)


def read(path: Path | str) -> list[Row]:
    """Read the rows of a CSV, as text. LabError: no such file, no line, no header that says what it must."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            found = [[each for each in row.items() if isinstance(each[1], str | None)] for row in csv.DictReader(file)]
            rows = [{(key or "").strip(): (value or "").strip() for key, value in row} for row in found]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabError(f"{path} cannot be read as a CSV file: {error}") from None
    if not rows:
        raise LabError(f"{path} holds no runs: a header, then one run a line, as in labkit/plan/data")
    if missing := [name for name in ("gpus", "hidden", "layers", "gbs") if name not in rows[0]]:
        raise LabError(f"{path} has no column {', '.join(missing)}: its first line must name the columns")
    return rows


def runs(rows: list[Row]) -> Runs:
    """Make every row's cases, in the rows' order. A row of an unknown model or machine is left out, with the reason."""
    made: dict[str, list[float]] = {name: [] for name in COLUMNS}
    owner: list[int] = []
    kept: list[Row] = []
    left_out = []
    for row in rows:
        try:
            options = choices(row)
        except LabError as error:
            left_out.append(str(error))
            continue
        many = 1
        for name, values in options.items():
            many *= len(values)
            if many > MOST:
                options[name] = values[:1]
        for combination in itertools.product(*options.values()):
            for name, value in zip(options, combination):
                made[name].append(value)
            owner.append(len(kept))
        kept.append(row)
    if not kept:
        raise LabError("no row can be read: " + "; ".join(left_out[:3]))
    return Runs(cases(dict(made)), np.array(owner), kept, left_out)


def number(row: Row, *names: str) -> float | None:
    """Return the number of the first of these columns that holds one."""
    for name in names:
        text = row.get(name, "").replace("_", "")
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return None


def size(row: Row, *names: str) -> float | None:
    """Return the same for what is no size unless it is above 0."""
    return next((value for name in names if (value := number(row, name) or 0.0) > 0), None)


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
    """Return {column: the values that it may have} of one row."""
    who = row.get("id", "a row")
    hidden, layers = size(row, "hidden"), size(row, "layers")
    billions = size(row, "params_b", "active_params_b")
    if hidden is None or layers is None:
        if billions is None:
            raise LabError(f"{who}: neither hidden and layers nor params_b are numbers: its model is unknown")
        weights = billions * 1e9 / 12  # a layer has about 12 h^2; a model is about h / 128 layers deep
        wide = math.sqrt(weights / layers) if layers else (128 * weights) ** (1 / 3)
        hidden = hidden or 128 * max(1, round(wide / 128))
        layers = layers or max(1, round(weights / hidden**2))
    heads = size(row, "heads") or max(1, round(hidden / 128))
    degrees = {name: size(row, name) or 1.0 for name in ("tp", "pp", "cp")}
    product = math.prod(degrees.values())
    gpus, dp = size(row, "gpus"), size(row, "dp")
    if gpus is None and dp is None:
        raise LabError(f"{who}: neither gpus nor dp is a number")
    dp = dp or max(1.0, (gpus or product) // product)
    gbs = size(row, "gbs")
    mbs = [one for one in several(row, "mbs", []) if one > 0]
    if gbs is None:
        gbs = dp * (mbs[0] if mbs else 1.0)
    mbs = mbs or [float(size) for size in (1, 2, 4) if gbs >= dp * size] or [1.0]
    ffn = size(row, "ffn")
    attention = row.get("attn", "").lower()
    plain_torch = "sdpa" in attention or (number(row, "zero") == 3 and "cudnn" not in attention)
    fused = [float(SDPA)] if plain_torch else [float(FLASH)]
    if not plain_torch and dp > 1 and row.get("dp_overlap", "").lower() in UNKNOWN[:2]:
        fused = [float(SDPA), float(FLASH)]  # software that nobody described
    known = attention not in UNKNOWN
    kinds = [float(UNFUSED)] if known and ("unfused" in attention or attention == "no") else fused
    options: dict[str, list[float]] = {
        "layers": [layers],
        "hidden": [hidden],
        "heads": [heads],
        "kv_heads": [size(row, "kv_heads") or heads],
        "ffn": [ffn or 4 * hidden],
        "gated": flag(row, "mlp_gated", [1.0 if ffn and ffn < 3.9 * hidden else 0.0]),
        "vocab": [size(row, "vocab") or 50304.0],
        "tied": flag(row, "tied_emb", [0.0]),
        "experts": [number(row, "experts") or 0.0],
        "topk": [number(row, "topk") or 0.0],
        "head_dim": [0.0],
        "seq": [one for one in several(row, "seq", []) if one > 0] or [2048.0, 4096.0],
        "gbs": [gbs],
        "mbs": mbs,
        **{name: [value] for name, value in degrees.items()},
        "vp": [max(1.0, one) for one in several(row, "vp", [1.0])],
        "ep": [size(row, "ep") or 1.0],
        "dp": [dp],
        "sp": flag(row, "sp", [0.0, 1.0] if degrees["tp"] > 1 else [0.0]),
        "zero": several(row, "zero", [0.0, 1.0]),
        "recompute": recomputed(row.get("recompute", "").lower()),
        "attention": kinds if known else [float(UNFUSED), float(FLASH)],
        "tp_overlap": flag(row, "tp_overlap", [0.0, 1.0] if degrees["tp"] > 1 else [0.0]),
        "dp_overlap": flag(row, "dp_overlap", [0.0, 1.0] if dp > 1 else [0.0]),
        "format": [float(FORMATS.index("fp8")) if "8" in row.get("precision", "") else 0.0],
        "half": [1.0 if row.get("precision", "").lower() == "fp16" else 0.0],
        **machine_columns(row, gpus or dp * product),
    }
    active = size(row, "active_params_b")
    if active and options["experts"][0] > 1:
        options["topk"] = [count_mlps(active * 1e9, {name: values[0] for name, values in options.items()})]
    return options


def count_mlps(active: float, shape: dict[str, float]) -> float:
    """Count the MLPs that a token goes through; the active parameters may say more than `topk`: shared experts."""
    h = shape["hidden"]
    attention = h * (2 * h + 2 * h * shape["kv_heads"] / shape["heads"])
    roots = shape["vocab"] * h * (1 if shape["tied"] else 2)
    mlp = h * shape["ffn"] * (2 + shape["gated"])
    count = (active - roots - shape["layers"] * attention) / (shape["layers"] * mlp)
    return count if shape["topk"] / 2 < count < 4 * shape["topk"] else shape["topk"]


def recomputed(text: str) -> list[float]:
    """Return what a row's word says that the backward computes again."""
    if text in UNKNOWN:
        return [float(NONE), float(FULL)]
    if "op" in text:
        return [float(OPERATIONS)]
    return [float(SELECTIVE if text.startswith("sel") else NONE if text in ("none", "no", "0") else FULL)]


def machine_columns(row: Row, gpus: float) -> dict[str, list[float]]:
    """Return the machine's columns. Peak and memory are the row's own where it says them."""
    chip = find_chip(row.get("gpu", ""))
    peak = size(row, "peak_tflops_bf16") or (chip.tflops if chip else None)
    if peak is None:
        who = row.get("id", "a row")
        raise LabError(f"{who}: the GPU '{row.get('gpu', '')}' is unknown, and peak_tflops_bf16 is no number")
    memory = size(row, "gpu_mem_gb") or (chip.memory_gb if chip else 80.0)
    if chip and abs(memory / chip.memory_gb - 1) < 0.1:  # 192 GB of HBM on a B200, of which the datasheet sells 180
        memory = chip.memory_gb
    chip = chip or described(peak, size(row, "peak_tflops_fp8") or 0.0, memory, None)
    fp8 = size(row, "peak_tflops_fp8") or chip.fp8_tflops
    chip = chip._replace(tflops=peak, fp8_tflops=fp8, memory_gb=memory)
    columns = {name: [float(value)] for name, value in columns_of(chip).items()}
    inter = size(row, "inter_bw_GBps_per_gpu")
    return {
        **columns,
        "per_node": [size(row, "gpus_per_node") or min(gpus, 8.0)],
        "recent": columns["recent"] if chip.known else [0.0, 1.0],
        "intra": [(size(row, "intra_bw_GBps_per_gpu_unidir") or chip.nvlink) * G],
        "inter": [inter * G] if inter is not None else [12.5 * G, 50 * G],
    }
