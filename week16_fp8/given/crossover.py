"""The numbers that the page on the crossover quotes, taken from its record. Units stand in the names' docstrings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median

from labkit.compare.terminal import markdown_table
from labkit.crossover import record as records
from labkit.crossover.grid import BASE, FP8, TIE, Cell, Shape, reason, speedup, without_waiting
from labkit.crossover.pictures import heat_map, split  # noqa: F401  (the page draws them)

FOLDER = Path(__file__).parents[1] / "results" / "crossover"
NAMES = {
    "te-delayed": "TE delayed",
    "te-current": "TE current",
    "te-block": "TE block",
    "torchao-tensorwise": "torchao tensorwise",
    "torchao-rowwise": "torchao rowwise",
}
SMALL, MIDDLE, LARGE = Shape(1024, 1024, 1024), Shape(4096, 4096, 4096), Shape(16384, 16384, 16384)


@cache
def have() -> records.Cells:
    return records.cells(records.load(FOLDER))


def of(arm: str) -> dict[Shape, Cell]:
    return {shape: cell for (shape, name), cell in have().items() if name == arm}


def _large(arm: str) -> list[Cell]:
    return [cell for shape, cell in of(arm).items() if shape.M * shape.K * shape.N >= 2**36]


def rate(arm: str = BASE) -> float:
    """TFLOP/s of the products."""
    return median(cell.shape.flops / cell.parts["product"] for cell in _large(arm)) / 1e12


def price(arm: str) -> float:
    """What quantising costs, ps a number."""
    return median(c.parts["quantise"] / (c.M * c.K + c.K * c.N + c.M * c.N) for c in _large(arm)) * 1e12


def queue(arm: str = BASE) -> float:
    """CPU time of a step where the CPU sets the pace, us."""
    return median(cell.queue or 0.0 for cell in of(arm).values() if cell.parts["launch"]) * 1e6


def gains(arm: str) -> dict[Shape, float]:
    return {shape: gain for shape, cell in of(arm).items() if (gain := speedup(have()[shape, BASE], cell)) is not None}


def alone(shape: Shape, arm: str) -> float:
    """The speed-up of the kernels alone, without waiting for the CPU."""
    return without_waiting(have()[shape, BASE], have()[shape, arm]) or 0.0


def won(arm: str) -> int:
    return sum(gain > 1 + TIE for gain in gains(arm).values())


def best(arm: str) -> float:
    return max(gains(arm).values())


def lost(arm: str) -> list[Shape]:
    return [shape for shape, gain in gains(arm).items() if gain < 1 - TIE]


def launched(arm: str) -> list[Shape]:
    """Where it loses because the GPU waits for the CPU, and its kernels alone would win."""
    return [s for s in lost(arm) if reason(have()[s, BASE], have()[s, arm]) == "launch" and alone(s, arm) > 1 + TIE]


def break_even(arm: str) -> float:
    """n at which 6 n^3 saved operations pay for 3 n^2 numbers."""
    return 3 * price(arm) * 1e-12 / (6 * (1 / rate() - 1 / rate(arm)) * 1e-12)


def delayed_over_current() -> list[float]:
    """By how many per cent delayed is faster than current, where the GPU sets its pace; the largest shape left out."""
    a, b = gains("te-delayed"), gains("te-current")
    return [100 * a[s] / b[s] - 100 for s, c in of("te-delayed").items() if not c.parts["launch"] and s != LARGE]


def errors(arms: list[str]) -> list[float]:
    return [error for arm in arms for cell in of(arm).values() if (error := cell.error) is not None]


def spreads(launch: bool) -> list[float]:
    """Per cent by which the fastest and slowest loop of a cell differ."""
    return [100 * (cell.spread or 0.0) for cell in have().values() if bool(cell.parts["launch"]) == launch]


def table() -> str:
    """A line an arm."""
    heads = ["", "faster at, of 27", "best", "quantising, ps a number", "products, TFLOP/s", "CPU, us a step"]
    return markdown_table(
        heads,
        (
            [name, str(won(arm)), f"{best(arm):.2f}", f"{price(arm):.1f}", f"{rate(arm):.0f}", f"{queue(arm):.0f}"]
            for arm, name in NAMES.items()
        ),
    )


def maps() -> str:
    """Every arm's speed-ups."""
    record = records.load(FOLDER)
    return "\n\n".join(records.table(record, arm) for arm in record["arms"] if arm != BASE)


RECIPES = list(FP8)


def fp8_everywhere() -> bool:
    """Did kernels' names show FP8 in every FP8 cell, and in no other?"""
    return all(cell.fp8_kernels == (cell.arm in FP8) for cell in have().values())
