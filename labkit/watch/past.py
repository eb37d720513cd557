"""What every rule stands on: what an alarm is, and what was usual before each row of a column.

All functions compute the rows from `first` on, from a bounded number of rows before; NaN (not recorded) is left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from labkit.watch.folder import Record
from labkit.watch.tables import Floats

REARM = 16  # rows without the condition, before it may ring again
WINDOW = 64  # steps that tell what is usual
WARMUP = 48  # of them, at least so many must be known
KNOWN = 8  # probes, or norms of the weights, that must be known at least
SIGMA = 1.4826  # a normal distribution's standard deviation, over its median absolute deviation


@dataclass(frozen=True)
class Alarm:
    """What rang: which rule, at which step (None: now, whatever the step), and why."""

    kind: str
    step: int | None
    reason: str


Rule = Callable[[Record, int], Iterator[Alarm]]  # (record, first row that was not judged yet) -> alarms


def log2(x: np.ndarray) -> np.ndarray:
    """Return log2 of what is positive and finite, in FP64; NaN elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log2(x.astype(np.float64))
    out[~np.isfinite(out)] = np.nan
    return out


def windows(x: np.ndarray, first: int, width: int) -> np.ndarray:
    """Return [len(x) - first, ..., width]: for each row from `first` on the `width` rows before it, NaN before row 0."""
    begin = max(0, first - width)
    padded = np.concatenate([np.full((width - (first - begin), *x.shape[1:]), np.nan), x[begin:]])
    return sliding_window_view(padded, width, axis=0)[: max(0, len(x) - first)]


def usual(x: np.ndarray, first: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the `width` rows before each row from `first` on: median, standard deviation (by the median's), count."""
    seen = windows(x, first, width)
    middle = medians(seen)
    return middle, SIGMA * medians(np.abs(seen - middle[..., None])), (~np.isnan(seen)).sum(-1)


def medians(x: np.ndarray) -> Floats:
    """Return the medians over the last axis, NaN left out; NaN where nothing is left."""
    # As numpy's nanmedian, and several times as fast.
    known = (~np.isnan(x)).sum(-1, keepdims=True)
    ordered = np.sort(x, axis=-1)  # NaN last
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    high = np.minimum(high, x.shape[-1] - 1)
    pair = np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)
    return np.where(known > 0, pair / 2, np.nan)[..., 0]


def median(x: np.ndarray) -> float:
    fine = x[np.isfinite(x)]
    return float(np.median(fine)) if len(fine) else float("nan")


def trailing(x: Floats, first: int, width: int, of: Callable | None = None) -> Floats:
    """For each row from `first` on the median (or `of`) of the `width` values up to it; NaN until there are so many."""
    seen = windows(np.append(x, np.nan), first + 1, width)
    full = ~np.isnan(seen).any(1)
    return np.where(full, medians(seen) if of is None else of(seen, axis=1), np.nan)


def onsets(rings: Any, first: int, begin: int) -> list[int]:
    """The rows from `begin` on where a condition begins that did not hold in the REARM rows before."""
    rows = np.flatnonzero(rings) + first
    gaps = np.diff(rows, prepend=-REARM - 1)
    return [int(row) for row, gap in zip(rows, gaps) if gap > REARM and row >= begin]
