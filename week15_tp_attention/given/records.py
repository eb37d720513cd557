"""The bench's record: one JSON file. results/ holds those that came from real machines.

kind "tensor-parallel", started, command, hardware, hardware_name, versions, environment, ranks, device, transport,
dtype, shape {B, T, D, F, n_heads, n_kv_heads}
launch_us  microseconds in which rank 0's host launches a small kernel; null on a CPU
wire       {collective: {N: {"bytes", "seconds"}}}: one all-reduce, all-gather and reduce-scatter of B T D numbers
rows       [{what ("attention" or "block"), contender, N, seconds, spread, kept_bytes, peak_bytes, error, parts}]
           seconds of a step, forward and backward; error: the largest of y's and dx's distance from the unsharded
           layer's, relative; parts: labkit.record.kernels' breakdown, on GPUs
pipeline   [given/stages.py], gap {given/fp8.py}
failures   [{what, contender, N, why}]: what could not run here, in the library's own words
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record import benchmark
from labkit.record.benchmark import save as save

RESULTS = Path(__file__).parents[1] / "results"


def describe(device: str, ranks: int, leader: bool) -> dict[str, Any]:
    """What a record begins with."""
    return {
        **benchmark.about("tensor-parallel", device, leader),
        "ranks": ranks,
        "device": device,
        "transport": "nccl" if device == "cuda" else "gloo",
        "wire": {},
        "rows": [],
        "pipeline": [],
        "gap": None,
        "failures": [],
    }


def load(path: str | Path) -> dict[str, Any]:
    """Read a record. LabError if the file is missing or is none."""
    return benchmark.load(path, "tensor-parallel")


def recorded(folder: Path = RESULTS) -> dict[str, Any] | None:
    """The record with the most GPUs in results/; None where none is there."""
    found = [load(path) for path in sorted(folder.glob("*.json"))]
    return max((r for r in found if r["device"] == "cuda"), key=lambda r: r["ranks"], default=None)


def seconds(record: dict[str, Any], what: str, contender: str, N: int) -> float | None:
    """A row's time, None if it is not in the record."""
    for row in record["rows"]:
        if (row["what"], row["contender"], row["N"]) == (what, contender, N):
            return row["seconds"]
    return None


def efficiency(record: dict[str, Any], what: str, contender: str, N: int) -> float | None:
    """t(1) / (N t(N)), with t(1) the plain layer's on one rank; None if a time is not in the record."""
    one, many = seconds(record, what, "plain", 1), seconds(record, what, contender, N)
    return one / (N * many) if one and many else None


def predicted(record: dict[str, Any], what: str, N: int) -> float | None:
    """Seconds at N with nothing hidden and products at one rank's rate: t(1) / N, and one measured all-reduce for each
    of the layer's."""
    one, wire = seconds(record, what, "plain", 1), record["wire"].get("all_reduce", {}).get(str(N))
    return one / N + (4 if what == "block" else 2) * wire["seconds"] if one and wire else None


def wire(record: dict[str, Any], N: int) -> float:
    """Bytes a second of one all-reduce of the layer's message on N ranks, in ring bytes."""
    wire_row = record["wire"]["all_reduce"][str(N)]
    return 2 * (N - 1) / N * wire_row["bytes"] / wire_row["seconds"]


def from_bytes(record: dict[str, Any], N: int, beta: float = 354e9, alpha: float = 5e-6) -> tuple[float, float]:
    """(milliseconds, percent efficiency) of a plain block on N ranks with nothing hidden: t(1) / N, and four rings of
    2 (N-1) messages, `alpha` seconds each and their bytes at `beta` a second. LabError without one rank's time."""
    one, shape = seconds(record, "block", "plain", 1), record["shape"]
    if not one:
        raise LabError("the record has no time of a plain block on one rank")
    message = shape["B"] * shape["T"] * shape["D"] * (2 if record["dtype"] == "bfloat16" else 4)
    many = one / N + 4 * 2 * (N - 1) * (alpha + message / N / beta)
    return 1e3 * many, 100 * one / (N * many)
