"""A progress bar for training that happens in other processes: it reads the record that they write.

On a terminal a moving bar, elsewhere (a log, CI, a detached run) a plain line now and then. Nothing is asked of the
ranks, so the same code shows a run that was started by somebody else.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from labkit.record.read import parse

LINE_EVERY = 15.0  # seconds between plain lines
TAIL = 1 << 16  # bytes read from the end of steps.jsonl; a line with scales has some kilobytes


class TrainingProgress:
    """Context manager: while it is open, shows how far the run in `folder` has come towards `steps`."""

    def __init__(self, console: Console, label: str, folder: Path, steps: int | None) -> None:
        self.console, self.label, self.file, self.steps = console, label, folder / "steps.jsonl", steps
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> TrainingProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        if not self.console.is_terminal:
            self._lines()
            return
        columns = (
            TextColumn("{task.description:<30}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, refresh_per_second=4) as bar:
            task = bar.add_task(self.label, total=self.steps, now="starting ranks")
            while True:
                ended = self._end.wait(0.3)
                if last := last_step(self.file):
                    bar.update(task, completed=last["step"], now=step_words(last))
                if ended:
                    return

    def _lines(self) -> None:
        begin = time.monotonic()
        while not self._end.wait(LINE_EVERY):
            last = last_step(self.file)
            of = f"/{self.steps}" if self.steps else ""  # a window ends by the clock
            told = f"step {last['step']}{of}, {step_words(last)}" if last else "starting ranks"
            self.console.print(f"{self.label}: {told}, {time.monotonic() - begin:.0f} s", highlight=False)


def last_step(file: Path) -> dict | None:
    """The last whole line of a steps.jsonl that is being written; None if there is none yet."""
    try:
        with open(file, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL))
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return None
    return next((step for line in reversed(lines) if (step := parse(line)) and "step" in step), None)


def step_words(step: dict) -> str:
    """Loss and rate of one step line."""
    loss, speed = step.get("loss"), step.get("tokens_per_s")
    return " ".join(
        [f"loss {loss:.3f}" if isinstance(loss, (int, float)) else "", f"{speed:,.0f} tok/s" if speed else ""]
    )
