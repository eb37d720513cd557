"""crossover.json: the map as it grows, replaced whole after every shape, so that a killed run goes on.

kind "crossover", status, started, finished, command, hardware, versions, device
grid {M, K, N}, arms, missing {arm: why it cannot run here}, method {budget, loops, compiled}
cells  [{M, K, N, arm, seconds, spread, queue, parts, error, fp8_kernels} or {M, K, N, arm, why_not}]
"""

import itertools
from pathlib import Path
from typing import Any

from labkit.crossover.grid import ARMS, BASE, REASONS, Cell, Shape, reason, shapes, speedup, without_waiting
from labkit.errors import LabError
from labkit.record import benchmark
from labkit.record.clean import jsonable

FILE = "crossover.json"
SAME = ("grid", "arms", "method", "device", "device_name", "versions")  # what one map may not mix
Cells = dict[tuple[Shape, str], Cell]


def load(folder: Path) -> dict[str, Any]:
    """Load the map in this folder. LabError: there is none."""
    return benchmark.load(folder / FILE, "crossover", "map of crossovers")


def save(record: dict[str, Any], folder: Path) -> None:
    benchmark.save(record, folder / FILE)


def cells(record: dict[str, Any]) -> Cells:
    return {(cell.shape, cell.arm): cell for cell in (Cell(**row) for row in record["cells"])}


def pair(have: Cells, shape: Shape, arm: str) -> tuple[Cell | None, Cell | None]:
    return have.get((shape, BASE)), have.get((shape, arm))


def list_missing(record: dict[str, Any]) -> list[Shape]:
    """List the shapes that are not measured yet, small ones first."""
    have = cells(record)
    return [shape for shape in shapes(**record["grid"]) if any((shape, arm) not in have for arm in record["arms"])]


def resume(folder: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the map in `folder` to go on with, or `fresh` where there is none. LabError if it is of something else."""
    # A map of two machines, or of two versions, would compare what was never measured side by side.
    if not (folder / FILE).exists():
        return fresh
    there, new = load(folder), jsonable(fresh)
    for key in SAME:
        if there.get(key) != new[key]:
            other = key.replace("_", " ")
            raise LabError(f"{folder} holds a map with another {other}: choose another folder with --out")
    return there


def table(record: dict[str, Any], arm: str) -> str:
    """One arm's speed-ups as Markdown; where FP8 loses, the reason's letter, and in brackets the kernels' speed-up."""
    have, grid = cells(record), record["grid"]
    lines = [f"| M | K | {' | '.join(f'N = {n}' for n in grid['N'])} |", "| --: | --: |" + " --: |" * len(grid["N"])]
    for m, k in itertools.product(grid["M"], grid["K"]):
        words = [label(*pair(have, Shape(m, k, n), arm), " ") or "-" for n in grid["N"]]
        lines.append(f"| {m} | {k} | {' | '.join(words)} |")
    return f"{ARMS[arm][2]}\n\n" + "\n".join(lines)


def label(base: Cell | None, cell: Cell | None, gap: str) -> str:
    """Write the speed-up, the letter of its reason, and behind `gap` that of the kernels alone; "": not measured."""
    gain, why = speedup(base, cell), reason(base, cell)
    if not base or not cell or gain is None:
        return ""
    alone = f"{gap}({without_waiting(base, cell):.2f})" if gap and cell.parts.get("launch") else ""
    return f"{gain:.2f}{f' {REASONS[why]}' if why else ''}{alone}"
