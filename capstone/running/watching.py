"""Your alarms on the health page: `lab watch RUN --mine` asks 16.8's `Alarm` and C.4's `alarms` about its run.

Both are called as they were checked: 16.8's sees one probe after the other, C.4's a record that ends at the newest step.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from capstone.given.records import Run

BACK = 512  # rows before the new ones that C.4's alarms are shown: they may look back over so many
AT_A_TIME = 1024  # new rows that they are shown at once
AGAIN = 16  # rows without an alarm, before the next of its kind is reported


class Tracker:
    """16.8's, on every tensor that was probed from the beginning."""

    def __init__(self) -> None:
        own = importlib.import_module("week16_fp8.scale_tracker")  # by name: the capstone is released without the week
        self.alarm, self.seen, self.last = own.Alarm(), 0, -AGAIN - 1
        self.columns: list[int] | None = None

    def __call__(self, record: Any) -> Iterator[tuple[int, str]]:
        """(step, reason) of what is new in the record."""
        tables = probes_of(record)
        names, steps = record.scales["scale"].names, record.scales["scale"].steps
        if self.columns is None and len(steps):
            self.columns = kept(names)
        for row in range(self.seen, len(steps)):
            if self.alarm.see(*(torch.from_numpy(table[row, self.columns].copy()) for table in tables)):
                if row - self.last > AGAIN:
                    yield int(steps[row]), "its scales and amaxes say so"
                self.last = row
        self.seen = len(steps)


class Alarms:
    """C.4's, on the whole record."""

    def __init__(self) -> None:
        self.judged = 0
        self.last: dict[Any, int] = {}

    def __call__(self, record: Any) -> Iterator[tuple[int, str]]:
        """(step, reason) of what is new in the record."""
        from capstone.health import alarms

        while self.judged < len(record):
            end = min(len(record), self.judged + AT_A_TIME)
            first = max(0, self.judged - BACK)
            for row, why, rank in alarms(run_of(record, first, end)):
                kind, at = why if rank is None else rank, row + first
                if at >= self.judged and at - self.last.get(kind, -AGAIN - 1) > AGAIN:
                    yield int(record["step"][at]), why if rank is None else f"rank {rank}: {why}"
                if at >= self.judged:
                    self.last[kind] = at
            self.judged = end


def kept(names: list[str]) -> list[int]:
    """The tensors of which FP8 rounds the values."""
    return [at for at, name in enumerate(names) if not name.endswith(".output")]


def probes_of(record: Any) -> list[np.ndarray]:
    """Scale, amax, and the shares that saturate and become 0, each [P, T]; the record has them in per cent."""
    tables = [record.scales[name].values for name in ("scale", "amax", "overflow", "underflow")]
    return [*tables[:2], tables[2] / 100, tables[3] / 100]


def run_of(record: Any, first: int, end: int) -> Run:
    """Rows `first` to `end` of the page's record as C.4 has them."""
    step = record["step"][first:end]
    probes, ranks = record.scales["scale"].steps, record.ranks.steps
    some = (probes >= step[0]) & (probes <= step[-1])
    columns, rows = kept(record.scales["scale"].names), np.searchsorted(step, probes[some])
    work = record.ranks.values[(ranks >= step[0]) & (ranks <= step[-1])]
    if len(work) != len(step) or np.isnan(work).any():
        work = np.zeros((len(step), 0), np.float32)  # not recorded at every step
    tables = [torch.from_numpy(table[some][:, columns]).float() for table in probes_of(record)]
    curves = [torch.from_numpy(record[name][first:end].copy()).float() for name in ("loss", "grad_norm")]
    weights = torch.from_numpy(record["param_norm"][first:end][rows].copy()).float()
    return Run(*(x for x in (*curves, torch.from_numpy(rows), weights, *tables, torch.from_numpy(work.copy()))))
