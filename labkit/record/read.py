"""Reading a run folder in whatever state it is: finished, being written, or cut off in the middle of a line."""

import fcntl
import gzip
import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record.clean import restore
from labkit.record.schema import CompareRun, Event, Step, TrainRun

PACKED = ".jsonl.gz"  # a finished run as one file, in place of its folder: labkit.record.packed


@dataclass
class RunData:
    """A record as read. truncated: lines that could not be read; arms: the records under arms/; alive: it has a writer."""

    path: Path
    run: dict
    steps: list[dict]
    events: list[dict]
    truncated: int = 0
    arms: "dict[str, RunData]" = field(default_factory=dict)
    alive: bool | None = None

    @property
    def results(self) -> dict:
        """What came of it, as it stands in run.json; {} if nothing yet."""
        return as_dict(self.run.get("results"))

    @property
    def config(self) -> dict:
        """The settings that it was started with, as they stand in run.json; {} if it does not say."""
        return as_dict(self.run.get("config"))

    @cached_property
    def training(self) -> TrainRun:
        return TrainRun.model_validate(self.run)

    @cached_property
    def comparison(self) -> CompareRun:
        return CompareRun.model_validate(self.run)

    @cached_property
    def lines(self) -> list[Step]:
        return [Step.model_validate(line) for line in self.steps]

    @cached_property
    def happened(self) -> list[Event]:
        return [Event.model_validate(line) for line in self.events]

    @property
    def is_comparison(self) -> bool:
        """Is it `lab compare`'s, with arms? Else it is a single run."""
        return self.run.get("kind") == "compare"

    @property
    def status(self) -> str:
        return status_of(self.run, self.alive)

    def series(self, name: str) -> list[tuple[int, float]]:
        """[(step, value)] of one numeric field of the step lines, where present."""
        return [(s["step"], s[name]) for s in self.steps if isinstance(s.get(name), (int, float)) and "step" in s]


def read_run(path: str | os.PathLike) -> RunData:
    """Read a run folder in whatever state it is, or its packed file. LabError: there is no run.json, or it is not one."""
    path = Path(path)
    if (file := path.with_name(path.name + PACKED)).is_file() and not path.is_dir():
        return _read_packed(path, file)
    run = load_run(path)
    steps, torn_steps = _read_lines(path / "steps.jsonl")
    events, torn_events = _read_lines(path / "events.jsonl")
    arms = {}
    for name in sorted(runs_below(path / "arms")):
        with suppress(LabError):
            arms[name] = read_run(path / "arms" / name)
    order = as_dict(run["results"].get("arms"))  # the order in which they were run, where it is known
    arms = {name: arms[name] for name in dict.fromkeys([*order, *arms]) if name in arms}
    return RunData(path, run, steps, events, torn_steps + torn_events, arms, is_alive(path))


def runs_below(folder: Path) -> set[str]:
    """Names of the runs in this folder, packed ones too."""
    whole = {file.parent.name for file in folder.glob("*/run.json")}
    return whole | {file.name.removesuffix(PACKED) for file in folder.glob(f"*{PACKED}")}


def status_of(run: dict[str, Any], alive: bool | None) -> str:
    """run.json's status, except that a run that says "running" and has no writer was "interrupted"."""
    said = str(run.get("status", "unknown"))
    return "interrupted" if said == "running" and alive is False else said


def is_alive(path: str | os.PathLike) -> bool | None:
    """Does some process have this record open for writing? None when the file system cannot tell."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)


def load_run(path: Path) -> dict:
    """run.json of the folder `path`, or a LabError that says what is wrong with it."""
    file = path / "run.json"
    try:
        run = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise LabError(f"there is no run in {path}: it has no run.json.") from None
    except OSError as error:
        raise LabError(f"could not read {file}: {error.strerror}.") from None
    except ValueError:
        raise LabError(f"{file} is not a run record: it is not valid JSON.") from None
    if not isinstance(run, dict):
        raise LabError(f"{file} is not a run record: it holds no JSON object.")
    return {**run, "results": restore(run.get("results") or {})}


def as_dict(value: Any) -> dict:
    """`value` if it is a table, else {}: a record may hold anything."""
    return value if isinstance(value, dict) else {}


def as_number(value: Any) -> float | None:
    """`value` if it is a number (NaN and infinite too), else None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def parse(line: bytes) -> dict | None:
    """One line as a dict, or None if it is not a whole one."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _read_packed(path: Path, file: Path) -> RunData:
    try:
        first, _, rest = gzip.decompress(file.read_bytes()).partition(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(f"could not read {file}: {error}.") from None
    head = parse(first) or {}
    run, events = head.get("run"), head.get("events")
    if not isinstance(run, dict) or not isinstance(events, list):
        raise LabError(f"{file} is not a packed run: its first line does not hold one.")
    steps, torn = _lines(rest)
    return RunData(path, {**run, "results": restore(run.get("results") or {})}, steps, restore(events), torn, {}, False)


def _read_lines(file: Path) -> tuple[list[dict], int]:
    try:
        return _lines(file.read_bytes())
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise LabError(f"could not read {file}: {error.strerror}.") from None


def _lines(content: bytes) -> tuple[list[dict], int]:
    """The lines, and how many of them could not be read."""
    lines = [parse(line) for line in content.split(b"\n") if line.strip()]
    return [restore(line) for line in lines if line is not None], lines.count(None)
