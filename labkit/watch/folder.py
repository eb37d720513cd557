"""A run folder that somebody else is writing, read on at each poll; and which runs a folder holds."""

import os
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.record.clean import restore
from labkit.record.read import PACKED, as_dict, is_alive, load_run, parse, read_run, runs_below, status_of
from labkit.watch.tables import Sparse, number, numbers

# A step line's numbers, one column each. `memory` is its peak_bytes.
FIELDS = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_s", "memory", "heldout", "param_norm")
QUANTITIES = ("scale", "amax", "overflow", "underflow")  # of each probed tensor: labkit.precision.probe.ScaleStat
AGAIN = 0.4  # seconds: polls that come sooner see what the last one saw
MOST = 8 << 20  # bytes read at a poll: a long record comes in parts, and the page answers between them


class Tail:
    """A JSON-lines file; `read` gives what came since the last time."""

    def __init__(self, file: Path, most: int = MOST) -> None:
        self.file, self.most = file, most
        self.behind, self.torn = 0, 0  # bytes of whole lines left for the next poll; lines that are no JSON objects
        self._at, self._last, self._inode = 0, b"", 0
        self.written: float | None = None  # when the file was last written, by its file system's clock

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return (new lines, whether they replace all that were given before). A missing file is an empty one."""
        try:
            with open(self.file, "rb") as stream:
                about = os.fstat(stream.fileno())
                anew = self._at > 0 and not self._is_same(stream, about)
                if anew:
                    self._at, self._last, self.torn = 0, b"", 0
                self._inode, self.written = about.st_ino, about.st_mtime
                stream.seek(self._at)
                content = stream.read(self.most)
                if len(content) == self.most and b"\n" not in content:  # one line longer than a poll
                    content += stream.readline()
        except OSError:
            anew = self._at > 0
            self._at, self._last, self.behind, self.written = 0, b"", 0, None
            return [], anew
        whole = content.rfind(b"\n") + 1
        self.behind = max(0, about.st_size - self._at - len(content))
        if whole:
            self._at += whole
            self._last = content[content.rfind(b"\n", 0, whole - 1) + 1 : whole]
        lines = [parse(line) for line in content[:whole].split(b"\n")[:-1]]
        found = [restore(line) for line in lines if line is not None]
        self.torn += len(lines) - len(found)
        return found, anew

    def _is_same(self, stream: Any, about: os.stat_result) -> bool:
        """Say whether the line that was read last still stands where it stood."""
        if about.st_ino != self._inode or about.st_size < self._at:
            return False
        stream.seek(self._at - len(self._last))
        return stream.read(len(self._last)) == self._last


@dataclass
class Record:
    """A run as read so far."""

    run: dict[str, Any] = field(default_factory=dict)
    alive: bool | None = None
    silence: float | None = None  # seconds since anything was written; None: not known
    behind: int = 0  # bytes that were not read yet
    torn: int = 0  # lines that could not be read
    columns: dict[str, array] = field(default_factory=lambda: {name: array("d") for name in FIELDS})
    scales: dict[str, Sparse] = field(default_factory=lambda: {name: Sparse() for name in QUANTITIES})
    grad_norms: Sparse = field(default_factory=Sparse)  # of each block
    ranks: Sparse = field(default_factory=Sparse)  # seconds of own work, of each rank
    aside: dict[str, float] = field(default_factory=dict)  # seconds beside training, by purpose
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
            for purpose, seconds in numbers(line.get("aside")).items():
                self.aside[purpose] = self.aside.get(purpose, 0.0) + seconds

    def __getitem__(self, name: str) -> Any:
        """A column of the step lines, [steps]."""
        return np.array(self.columns[name])

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def status(self) -> str:
        return status_of(self.run, self.alive)


class Folder:
    """One run folder. `poll` reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path, self._polled = path, float("-inf")
        self._steps, self._events = Tail(path / "steps.jsonl"), Tail(path / "events.jsonl")
        self._grew: tuple[float, float] | None = None  # (written, by its clock; seen, by ours)
        if path.is_dir():
            self.record = Record(run=load_run(path))
        else:
            data = read_run(path)  # packed
            self.record = Record(run=data.run, alive=data.alive, torn=data.truncated, events=data.events)
            self.record.add(data.steps)

    def poll(self) -> Record:
        """Return what stands there now: the same record as before, with more in it; a new one if the old is void."""
        if time.monotonic() - self._polled >= AGAIN and self.path.is_dir():
            self._read()
            self._polled = time.monotonic()
        return self.record

    def _read(self) -> None:
        lines, anew = self._steps.read()
        events, other = self._events.read()
        if anew or other:
            # Both are read again: an alarm must not stand on half of an old record.
            self._steps, self._events = Tail(self._steps.file), Tail(self._events.file)
            lines, events = self._steps.read()[0], self._events.read()[0]
            self.record = Record(run=self.record.run)
        with suppress(LabError):  # it is being replaced, or its disk is away for a moment: what we have stays
            self.record.run = load_run(self.path)
        self.record.add(lines)
        self.record.events += events
        self.record.alive = is_alive(self.path)
        self.record.behind, self.record.torn = self._steps.behind, self._steps.torn + self._events.torn
        # The files' times are another machine's, perhaps, and its clock may be off: they serve for the first poll
        # alone; from then on our own clock counts from when something changed.
        now = time.monotonic()
        written = max((tail.written for tail in (self._steps, self._events) if tail.written is not None), default=None)
        if written is not None and (self._grew is None or written != self._grew[0]):
            before = max(0.0, time.time() - written) if self._grew is None else 0.0
            self._grew = written, now - before
        self.record.silence = now - self._grew[1] if self._grew else None


def runs_in(path: Path) -> dict[str, Path]:
    """{name: folder} of the trainings here: the folder itself, or a comparison's parts in order. LabError: no run."""
    if path.with_name(path.name + PACKED).is_file() and not path.is_dir():
        return {path.name: path}
    run = load_run(path)
    if run.get("kind") != "compare":
        return {path.name: path}
    arms = as_dict(as_dict(run.get("config")).get("arms"))
    labels = {name: str(as_dict(arm).get("label", name)) for name, arm in arms.items()}
    found = {}
    for part, suffix in (("speed", " (speed)"), ("arms", "")):
        here = runs_below(path / part)
        for name in sorted(here, key=lambda name: (list(labels).index(name) if name in labels else len(labels), name)):
            found[labels.get(name, name) + suffix] = path / part / name
    return found


def at_work(folders: dict[str, Path]) -> str | None:
    """Name the training that is written now; else the one that was written last; None if there is none."""

    def last(path: Path) -> tuple[bool, float]:
        file = path / "steps.jsonl"
        return bool(is_alive(path)), file.stat().st_mtime if file.exists() else 0.0

    return max(folders, key=lambda name: last(folders[name]), default=None)
