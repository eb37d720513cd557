"""One run folder, read on at each look; and which runs a folder holds.

`Record` is what rules and pictures read: the step lines as columns, the scales, norms and ranks as grids, the events,
and what run.json says. It can be made from any list of lines, so a rule is tested without a folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record.read import PACKED, as_dict, is_alive, load_run, read_run, runs_below, status_of
from labkit.watch.tables import Column, Grid, number, numbers
from labkit.watch.tail import Tail, newest

# A step line's numbers, one column each. `memory` is its peak_bytes.
FIELDS = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_s", "memory", "heldout", "param_norm")
QUANTITIES = ("scale", "amax", "overflow", "underflow")  # of each probed tensor: labkit.precision.probe.ScaleStat
AGAIN = 0.4  # seconds: looks that come sooner see what the last one saw


class Sparse:
    """Rows of a grid that stand in some of the step lines only: `steps` and `grid` have one row each."""

    def __init__(self) -> None:
        self.steps, self.grid = Column(), Grid()

    def append(self, step: float, row: dict[str, float]) -> None:
        if row:
            self.steps.append(step)
            self.grid.append(row)

    @property
    def names(self) -> list[str]:
        return list(self.grid.names)


@dataclass
class Record:
    """A run as read so far. `silence`: seconds since anything was written (None: not known); `behind`: bytes that were
    not read yet."""

    run: dict[str, Any] = field(default_factory=dict)
    alive: bool | None = None
    silence: float | None = None
    behind: int = 0
    torn: int = 0
    columns: dict[str, Column] = field(default_factory=lambda: {name: Column() for name in FIELDS})
    scales: dict[str, Sparse] = field(default_factory=lambda: {name: Sparse() for name in QUANTITIES})
    grad_norms: Sparse = field(default_factory=Sparse)  # of each block
    ranks: Sparse = field(default_factory=Sparse)  # seconds of own work, of each rank
    aside: dict[str, float] = field(default_factory=dict)  # seconds beside training, by what for
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take step lines in. Lines without a step are passed over."""
        for line in lines:
            step = number(line.get("step"))
            if step != step:
                continue
            memory = number(as_dict(line.get("memory")).get("peak_bytes"))
            for name, column in self.columns.items():
                column.append(memory if name == "memory" else number(line.get(name)))
            if isinstance(scales := line.get("scales"), dict):
                for name, sparse in self.scales.items():
                    sparse.append(step, {key: number(as_dict(stat).get(name)) for key, stat in scales.items()})
            self.grad_norms.append(step, numbers(line.get("grad_norms")))
            self.ranks.append(step, numbers(line.get("rank_seconds")))
            for what, seconds in numbers(line.get("aside")).items():
                self.aside[what] = self.aside.get(what, 0.0) + seconds

    def __getitem__(self, name: str) -> Any:
        """A column of the step lines, [steps]."""
        return self.columns[name].values

    def __len__(self) -> int:
        return self.columns["step"].size

    @property
    def status(self) -> str:
        """See `status_of`."""
        return status_of(self.run, self.alive)


class Folder:
    """One run folder. `look` reads what is new, and may be called from several pages at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.generation = path, 0  # generation: how often what was read became void
        self._lock, self._looked = threading.Lock(), float("-inf")
        self._steps, self._events = Tail(path / "steps.jsonl"), Tail(path / "events.jsonl")
        self._grew: tuple[float, float] | None = None  # (written, by its clock; seen, by ours)
        self.record = Record(run=load_run(path)) if path.is_dir() else _packed(path)

    def look(self) -> Record:
        """What stands there now. The same record as before, with more in it; a new one if the old became void."""
        with self._lock:
            if time.monotonic() - self._looked >= AGAIN and self.path.is_dir():
                self._read()
                self._looked = time.monotonic()
            return self.record

    def _read(self) -> None:
        lines, anew = self._steps.read()
        events, other = self._events.read()
        if anew or other:
            self.generation += 1
            # Both are read again: an alarm must not stand on half of an old record.
            if not anew:
                self._steps = Tail(self._steps.file)
                lines, _ = self._steps.read()
            if not other:
                self._events = Tail(self._events.file)
                events, _ = self._events.read()
            self.record = Record(run=self.record.run)
        with suppress(LabError):  # it is being replaced, or its disk is away for a moment: what we have stays
            self.record.run = load_run(self.path)
        self.record.add(lines)
        self.record.events += events
        self.record.alive = is_alive(self.path)
        self.record.behind, self.record.torn = self._steps.behind, self._steps.torn + self._events.torn
        self.record.silence = self._silence()

    def _silence(self) -> float | None:
        """Seconds since a line was written. The files' times are another machine's, perhaps, and its clock may be off:
        they serve for the first look alone; from then on our own clock counts from when something changed."""
        written = newest(self._steps, self._events)
        if written is None:
            return None
        if self._grew is None:
            self._grew = written, time.monotonic() - max(0.0, time.time() - written)
        elif written != self._grew[0]:
            self._grew = written, time.monotonic()
        return time.monotonic() - self._grew[1]


def _packed(path: Path) -> Record:
    data = read_run(path)
    record = Record(run=data.run, alive=data.alive, torn=data.truncated, events=data.events)
    record.add(data.steps)
    return record


def runs_in(path: Path) -> dict[str, Path]:
    """{name: folder} of the trainings in this folder, the order that of a comparison: the folder itself, or its parts.
    LabError if there is no run in it."""
    if path.with_name(path.name + PACKED).is_file() and not path.is_dir():
        return {path.name: path}
    run = load_run(path)
    if run.get("kind") != "compare":
        return {path.name: path}
    found = {}
    labels = {
        name: str(as_dict(arm).get("label", name))
        for name, arm in as_dict(as_dict(run.get("config")).get("arms")).items()
    }
    for part in ("speed", "arms"):
        here = runs_below(path / part)
        for name in sorted(here, key=lambda name: (list(labels).index(name) if name in labels else len(labels), name)):
            found[labels.get(name, name) + (" (speed)" if part == "speed" else "")] = path / part / name
    return found


def at_work(folders: dict[str, Path]) -> str | None:
    """The name of the training that is written now; else of the one that was written last; None if there is none."""

    def last(path: Path) -> tuple[bool, float]:
        file = path / "steps.jsonl"
        return bool(is_alive(path)), file.stat().st_mtime if file.exists() else 0.0

    return max(folders, key=lambda name: last(folders[name]), default=None)
