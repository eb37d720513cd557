"""A race: tracks on which a student's function runs for time, on the virtual wire. A week with one has `race.py`:

    TITLE                    of the race
    TASK                     the entry's task: while it is not attempted there is no entry; another one's blank is a failure
    TRACKS                   {track: what it is, in a few words}
    lap(track, seed)         run the entry there by `call`, check its answer, and replay its ledgers:
                             (seconds, par). par is what an entry is compared with. CheckFailed if it is wrong

A score is the geometric mean of par / seconds over all tracks; an entry that fails on one has none.
"""

import hashlib
import importlib.util
import json
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.checks.runner import Case, LocalRunner, Runner, use
from labkit.checks.tasks import Week
from labkit.checks.verdict import NOT_ATTEMPTED, CheckFailed
from labkit.errors import LabError
from labkit.record.files import writable

SECONDS = 20.0  # for one lap on this machine: eight ranks may have to share two cores


@dataclass(frozen=True)
class Lap:
    """One track: seconds on the virtual wire, or None with the verdict and the text."""

    track: str
    seconds: float | None
    par: float | None = None
    verdict: str = ""
    why: str = ""


@dataclass(frozen=True)
class Result:
    """One entry's race."""

    laps: tuple[Lap, ...]

    @property
    def score(self) -> float | None:
        ratios = [lap.par / lap.seconds for lap in self.laps if lap.seconds and lap.par]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if len(ratios) == len(self.laps) else None

    @property
    def entered(self) -> bool:
        """Whether there was an entry at all: an unwritten one does not come last, it does not come."""
        return any(lap.verdict != NOT_ATTEMPTED for lap in self.laps)


def race_of(week: Week) -> Any:
    """The week's race.py. LabError if it has none."""
    if not (week.folder / "race.py").is_file():
        raise LabError(f"{week.name} has no race")
    root = str(week.folder.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    spec = importlib.util.spec_from_file_location(f"race_of_{week.package}", week.folder / "race.py")
    assert spec is not None and spec.loader is not None
    race = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(race)
    return race


def run(week: Week, runner: Runner, seed: int, starts: Callable[[str], None] = lambda track: None) -> Result:
    """Run the week's race once. Deterministic in what the entry sends; the seed draws the numbers that it adds."""
    race, laps = race_of(week), []
    for track in race.TRACKS:
        starts(track)
        case = Case(week.folder.parent, week.package, timeout=SECONDS, task="the race", uses=week.uses)
        with use(runner, case):
            try:
                seconds, par = race.lap(track, seed)
                laps.append(Lap(track, seconds, par))
            except CheckFailed as failed:
                laps.append(Lap(track, None, None, failed.verdict, str(failed)))
                if failed.verdict == NOT_ATTEMPTED:
                    break
    return Result(tuple(laps))


# ---- at home: one's own table


def kept(folder: Path, week: Week) -> list[dict[str, Any]]:
    """One's own attempts so far, the best first."""
    path = folder / f"{week.name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sorted(map(json.loads, lines), key=lambda line: -line["score"])


def keep(folder: Path, week: Week, result: Result, name: str) -> None:
    """Add an attempt, unless the same name did the same before."""
    times = {lap.track: lap.seconds for lap in result.laps}
    if any(line["name"] == name and line["laps"] == times for line in kept(folder, week)):
        return
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    line = {"time": now, "name": name, "score": result.score, "laps": times}
    with (folder / f"{week.name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def command(week: Week, name: str | None, folder: Path) -> int:
    """`lab race`: run it, keep it, show the table. Status 0, or 1 if the entry did not finish every track."""
    console, race = Console(), race_of(week)
    writable(folder)
    with console.status("racing ...") as status, LocalRunner() as runner:
        result = run(week, runner, secrets.randbits(62), lambda track: status.update(f"racing: {track} ..."))
    for lap in result.laps:
        if lap.seconds is None:
            console.print(Text(f"{lap.track}: did not finish. {lap.why}" if result.entered else lap.why))
    if result.score is None:
        return 1
    if name is None:
        own = b"".join(path.read_bytes() for path in sorted(week.folder.rglob("*.py"), key=str))
        name = "code " + hashlib.sha256(own).hexdigest()[:6]
    keep(folder, week, result, name)
    par = {lap.track: lap.par for lap in result.laps}
    rows = [("par", 1.0, par), *((line["name"], line["score"], line["laps"]) for line in kept(folder, week)[:10])]
    console.print(table(race, rows, own=name))
    return 0


def table(race: Any, rows: Sequence[tuple[str, float, Any]], own: str = "") -> Table:
    """rows: (name, score, {track: seconds}), the best first; `own` is marked."""
    title = f"{race.TITLE}: microseconds on the virtual wire"
    shown = Table("", title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("x par", *race.TRACKS):
        shown.add_column(name, justify="right")
    for name, score, laps in rows:
        mark = ">" if name == own else " "
        times = [f"{laps[track] * 1e6:,.1f}" if laps.get(track) else "-" for track in race.TRACKS]
        shown.add_row(Text(f"{mark} {name}"), f"{score:.3f}", *times)
    return shown
