"""The numbers of a record as arrays that grow, and as few points as a picture has pixels.

`outline` keeps the smallest and the largest value of each of 2,000 bins, so that a single spike stays visible at any
zoom (Panel 1.9, Bokeh 3.9: a frame of raw points takes 216 ms, of the outline 31 ms).
"""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 2000
Floats = NDArray[np.float64]


class Sparse:
    """Rows that stand in some of the step lines only, each {name: float}; a new name is NaN in the rows before."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {}  # by name
        self._steps, self._room = array("d"), np.full((64, 0), np.nan, np.float32)

    def append(self, step: float, row: dict[str, float]) -> None:
        """Add the row of a step line; one that holds nothing is none."""
        if not row:
            return
        for name in row:
            self.columns.setdefault(name, len(self.columns))
        size, (rows, columns) = len(self._steps), self._room.shape
        grow = (rows if size == rows else 0, len(self.columns) - columns)
        if any(grow):
            self._room = np.pad(self._room, [(0, more) for more in grow], constant_values=np.nan)
        with np.errstate(over="ignore"):  # a number beyond FP32 is infinite here
            self._room[size, [self.columns[name] for name in row]] = list(row.values())
        self._steps.append(step)

    @property
    def steps(self) -> Floats:
        return np.array(self._steps)

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def values(self) -> NDArray[np.float32]:
        """[steps, names]."""
        return self._room[: len(self._steps)]


def number(value: Any) -> float:
    """Return `value` as a float; NaN if it is none."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")


def numbers(value: Any) -> dict[str, float]:
    """Return the numbers of a table ({name: number}) or a list, whose names are 0, 1, 2; {} if it is neither."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {str(name): number(each) for name, each in pairs}


def outline(x: Floats, y: Floats, first: float = -np.inf, last: float = np.inf, bins: int = BINS) -> tuple[Any, Any]:
    """At most 2 * bins + 2 points of the line (x, y) from `first` to `last`: each bin's least and most, x ascending."""
    # One point beyond either end stays, so that the line leaves the picture where it should.
    begin = max(0, int(np.searchsorted(x, first, "left")) - 1)
    end = min(len(x), int(np.searchsorted(x, last, "right")) + 1)
    x, y = x[begin:end], y[begin:end]
    fine = np.isfinite(y)
    x, y = x[fine], y[fine]
    if len(x) <= 2 * bins:
        return x, y
    width = -(-len(x) // bins)
    rows = np.pad(y, (0, -len(y) % width), mode="edge").reshape(-1, width)  # a bin each
    begins = width * np.arange(len(rows))
    kept = np.unique([*(begins + rows.argmin(1)), *(begins + rows.argmax(1)), 0, len(x) - 1])
    return x[kept], y[kept]


def cells(steps: Floats, values: NDArray, most: int, how: str) -> tuple[Floats, NDArray]:
    """A heat map of `values` [rows, names]: (edges [columns + 1], image [names, columns]), at most `most` columns."""
    count = max(1, min(most, len(steps)))
    width = (steps[-1] - steps[0]) / max(1, count - 1) or 1.0
    edges = steps[0] - width / 2 + width * np.arange(count + 1)
    place = np.clip(((steps - edges[0]) / width).astype(int), 0, count - 1)
    image = np.full((count, values.shape[1]), np.nan, np.float64)
    fold = np.fmax if how == "max" else np.fmin
    fold.at(image, place, values)
    return edges, image.T
