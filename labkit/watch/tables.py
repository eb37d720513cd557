"""The numbers of a record as arrays that grow, and as few points as a picture has pixels.

`outline` keeps the smallest and the largest value of each of 2,000 bins, so that a single spike stays visible at any
zoom (Panel 1.9, Bokeh 3.9: a frame of raw points takes 216 ms, of the outline 31 ms).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 2000
Floats = NDArray[np.float64]


class Grid:
    """Rows that come one by one, each {name: float}; a name that appears later is NaN in the rows before."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._room, self.size = np.full((64, 0), np.nan, np.float32), 0

    def append(self, row: dict[str, float]) -> None:
        for name in row:
            self.names.setdefault(name, len(self.names))
        rows, columns = self._room.shape
        if self.size == rows or len(self.names) > columns:
            more = np.full((rows * 2 if self.size == rows else rows, len(self.names)), np.nan, np.float32)
            more[:rows, :columns] = self._room
            self._room = more
        if row:
            with np.errstate(over="ignore"):  # a number beyond FP32 is infinite here
                self._room[self.size, [self.names[name] for name in row]] = list(row.values())
        self.size += 1

    @property
    def values(self) -> NDArray[np.float32]:
        """[rows, names]."""
        return self._room[: self.size]


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
    edges = np.linspace(0, len(x), bins + 1).astype(int)[:-1]
    lengths = np.diff(np.append(edges, len(x)))
    owner = np.repeat(np.arange(bins), lengths)
    # The order of values within each bin: its first is the smallest of the bin, its last the largest.
    order = np.lexsort((y, owner))
    low, high = order[edges], order[edges + lengths - 1]
    kept = np.unique(np.concatenate([low, high, [0, len(x) - 1]]))
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
