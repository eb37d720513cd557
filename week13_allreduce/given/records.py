"""Benchmark records: JSON files, and the fit that explains them. results/ holds those that came from real machines.

A record is one file:

    kind "collectives", started, command, hardware, versions, environment (NCCL's variables)
    ranks, nodes, device ("cuda" or "cpu"), transport ("nccl" or "gloo"), dtype, redop, wire (bytes/s one way, or null)
    series   [{collective, contender, rows, note, fit}]
             rows  [{size, count, seconds, algbw, busbw, wrong, iterations}], sizes in bytes, bandwidths in bytes/s.
                   On GPUs also queue and gpu, seconds: what the CPU needs to queue one call, and what the GPU needs
                   when it never waits for the CPU; and mallocs (given/contenders.py)
             fit   {alpha, beta, messages, share, from_bytes, worst, worst_at}: seconds a message, seconds a byte, the
                   cost they were fitted under; the largest relative residual from `from_bytes` on, and at which size
             fit_gpu  the same of `gpu` in place of `seconds`; only on GPUs
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record import benchmark
from labkit.record.benchmark import save as save

RESULTS = Path(__file__).parents[1] / "results"
FIT_FROM = 1 << 20  # below, NCCL changes its protocol from size to size, and no single line can follow


def which_ranks(device: str, ranks: int | None) -> dict[str, Any]:
    """Which ranks on which device, and whether this process is the one that speaks."""
    import torch

    from labkit.comm.ranks import is_first, launched, of_this_machine

    if device not in ("auto", "cpu", "cuda"):
        raise LabError(f"--device is auto, cpu or cuda, not {device!r}.")
    world = launched(ranks)
    if device == "auto":
        gpus = torch.cuda.device_count()
        device = "cuda" if gpus > 0 and (world or (ranks or gpus) <= gpus) else "cpu"
    ranks = world or ranks or (torch.cuda.device_count() if device == "cuda" else 4)
    return {
        "device": device,
        "ranks": ranks,
        "torchrun": world is not None,
        "leader": is_first(),
        "nodes": ranks // of_this_machine(ranks),
    }


def describe(where: dict[str, Any], dtype: str, op: str, wire: float | None) -> dict[str, Any]:
    """What a record begins with, its `series` still empty. wire: GB/s one way; by default NVLink's of a known GPU."""
    from labkit.record.chips import find_gpu

    about = benchmark.about("collectives", where["device"], where["leader"])
    known = find_gpu(about["hardware_name"]) if where["device"] == "cuda" else None
    return {
        **about,
        "ranks": where["ranks"],
        "nodes": where["nodes"],
        "device": where["device"],
        "transport": "nccl" if where["device"] == "cuda" else "gloo",
        "dtype": dtype,
        "redop": op,
        "wire": (wire or (known.nvlink if known else 0)) * 1e9 or None,
        "series": [],
    }


def load(path: str | Path) -> dict[str, Any]:
    """Read a record. LabError if the file is missing or is none."""
    return benchmark.load(path, "collectives")


def recorded(folder: Path = RESULTS, device: str = "cuda") -> dict[int, dict[str, Any]]:
    """The records of real GPUs in results/, by number of ranks; {} where none is there yet."""
    found = [load(path) for path in sorted(folder.glob("*.json"))]
    return {record["ranks"]: record for record in found if record["device"] == device and record["nodes"] == 1}


def series(record: dict[str, Any], contender: str, collective: str = "all_reduce") -> list[dict[str, Any]]:
    """The rows of one contender, [] if it is not in the record."""
    return next(
        (
            entry["rows"]
            for entry in record["series"]
            if entry["contender"] == contender and entry["collective"] == collective
        ),
        [],
    )


def fit(
    rows: list[dict[str, Any]], cost: Any, from_bytes: int = FIT_FROM, of: str = "seconds"
) -> dict[str, Any] | None:
    """Fit the rows from `from_bytes` on (all, if fewer than three are) by task 13.1's `fit_alpha_beta`.

    of: the rows' key that holds the time. None if there are fewer than two sizes. NotImplementedError while task 13.1
    is open.
    """
    from week13_allreduce.cost_model import fit_alpha_beta

    used = [row for row in rows if row["size"] >= from_bytes]
    if len({row["size"] for row in used}) < 3:
        used = rows
    if len({row["size"] for row in used}) < 2 or not cost.messages:
        return None
    result = fit_alpha_beta([row["size"] for row in used], [row[of] for row in used], cost)
    worst, at = max((abs(residual), row["size"]) for residual, row in zip(result.residuals, used))
    return {
        "alpha": result.alpha,
        "beta": result.beta,
        "messages": cost.messages,
        "share": cost.share,
        "from_bytes": used[0]["size"],
        "worst": worst,
        "worst_at": at,
    }


def parse_size(text: str) -> int:
    """ "4G" -> 4294967296; K, M and G count in powers of 1024, as in nccl-tests."""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", str(text).strip(), re.I)
    if not found:
        raise LabError(f"{text!r} is no size: write 512, 1K, 64M or 4G.")
    return int(found[1]) * 1024 ** " KMG".index(found[2].upper() or " ")


def human(nbytes: float, digits: int = 6) -> str:
    """4294967296 -> "4 GiB"."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{nbytes / 1024**power:.{digits}g} {unit}"
    return f"{nbytes:.0f} B"
