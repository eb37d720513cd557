"""A comparison seen from outside: what is done, what runs now, how it ended. It reads the folder alone."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from labkit.compare import background
from labkit.compare.arms import find_run, heldout_of
from labkit.compare.budget import REPORT_SECONDS, Forecast, Pace, in_words
from labkit.compare.preset import UNENDING
from labkit.compare.repeats import gaps_of
from labkit.compare.summary import show
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.record.files import explained
from labkit.record.read import RunData, is_alive, parse, read_run
from labkit.record.schema import Began

LOOK = 0.3  # seconds between two looks
LEFT = 130  # exit status when the one who follows leaves: Ctrl-C
LINE_EVERY = 15.0  # seconds between plain lines of progress
TAIL = 1 << 16  # bytes read from the end of steps.jsonl; a line with scales has some kilobytes


# ---- one training


@dataclass
class TrainingProgress:
    """Shows how far the run in `folder` has come towards `steps` (None: a clock ends it): a bar, or now and then a
    line. ago: seconds since the run began."""

    console: Console
    label: str
    folder: Path
    steps: int | None
    forecast: Forecast | None = None
    ago: float = 0.0

    def __post_init__(self) -> None:
        self.pace, self.begin = Pace(self.steps or 0), time.monotonic() - self.ago
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> "TrainingProgress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _show(self) -> None:
        if not self.console.is_terminal:
            while not self._end.wait(LINE_EVERY):
                last = last_step(self.folder / "steps.jsonl")
                of = f"/{self.steps}" if self.steps else ""
                text = f"step {last['step']}{of}, {step_words(last)}; {self._left(last)}" if last else "starting ranks"
                say(self.console, f"{self.label}: {text}")
            return
        texts = [TextColumn(f"{{task.{text}}}") for text in ("description:<30", "fields[now]", "fields[left]")]
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), *texts[1:])
        with Progress(*columns, console=self.console, refresh_per_second=4) as bar:
            task = bar.add_task(self.label, total=self.steps, now="starting ranks", left="")
            while True:
                ended = self._end.wait(LOOK)
                if last := last_step(self.folder / "steps.jsonl"):
                    bar.update(task, completed=last["step"], now=step_words(last), left=self._left(last))
                if ended:
                    return

    def _left(self, last: dict) -> str:
        """How long it has taken and, as far as that is known, how long the call still takes."""
        elapsed = time.monotonic() - self.begin
        here = self.pace.left(elapsed, last["step"])
        if not self.steps and self.forecast:  # a window: it ends by the clock, as predicted
            here = max(0.0, self.forecast.now.predicted_s - elapsed)
        left = in_words(self.forecast.left(elapsed, here)) if self.forecast and here is not None else ""
        return f"{elapsed:.0f} s" + (f", {left}" if left else "")


def last_step(file: Path) -> dict | None:
    """The last whole line of a steps.jsonl that is being written; None if there is none yet."""
    lines = background.tail(file, TAIL).split(b"\n")[:-1]
    return next((step for line in reversed(lines) if (step := parse(line)) and "step" in step), None)


def step_words(step: dict) -> str:
    """Loss and rate of one step line."""
    loss, speed = step.get("loss"), step.get("tokens_per_s")
    known = isinstance(loss, (int, float))  # it may be "NaN"
    return (f"loss {loss:.3f} " if known else "") + (f"{speed:,.0f} tok/s" if speed else "")


# ---- a comparison


def arms(out: Path) -> Iterator[tuple[str, str, Path]]:
    """(part, label, folder) of every arm that the comparison is made of, in the order in which they run."""
    config = read_run(out).comparison.config
    labels = {name: arm.label or name for name, arm in config.arms.items()}
    for name in config.speed.arms if "speed" in config.parts else ():
        yield "speed", labels.get(name, name), out / "speed" / name
    for name, label in labels.items() if "safety" in config.parts else ():
        yield "safety", label, out / "arms" / name


def line(part: str, label: str, folder: Path) -> str:
    """One arm in words: finished, at work, paused; "" if it has not begun, or only a batch of it was tried."""
    data = find_run(folder)
    if data is None or (part == "speed" and data.status == "finished" and not data.training.results.speed):
        return ""
    results, head = data.training.results, f"{label} ({part}): "
    if data.status == "finished":
        rate = results.speed.tokens_per_s if results.speed else results.tokens_per_s
        return head + "finished" + (f", {rate:,.0f} tokens/s" if rate else "") + _outcome(data)
    last, steps = last_step(data.path / "steps.jsonl"), data.training.config.steps
    of = f" of {steps}" if steps and steps < UNENDING else ""  # a window ends by the clock
    text = f"step {last['step']}{of}, {step_words(last)}" if last else "no step yet"
    return head + (text if data.status == "running" else f"{'paused' if results.paused else data.status} at {text}")


def _outcome(data: RunData) -> str:
    """The last held-out loss and, if the baseline has its own beside it, the gap to it; "" if nothing was evaluated."""
    if not (own := heldout_of(data)):
        return ""
    beside = (find_run(folder) for folder in sorted(data.path.parent.iterdir()) if folder != data.path)
    baselines = [heldout_of(run) for run in beside if run and run.training.role == "baseline"]
    pairs = gaps_of(own, baselines)
    late = [gap for step, gap in pairs if step > pairs[-1][0] // 2]
    gap = f", {sum(late) / len(late):+.3f} % from the baseline's so far" if late else ""
    return f", held-out loss {own[max(own)]:.4f}{gap}"


def overview(out: Path, console: Console) -> int:
    """Print where the comparison in `out` stands. Returns 0: goes on or finished; 3: resumable; 1: died or failed."""
    run = read_run(out)
    if not run.is_comparison:
        raise LabError(f"{out} holds no comparison: `lab report {out}` draws the page of any run")
    going = background.going(out)
    if not going and report_death(out, console):
        return 1
    if not going and (run.status == "finished" or run.comparison.results.verdict):
        show(out, console)
    else:
        unfinished = f"{out} has not come to an end ({run.status}); the same command goes on:"
        say(console, f"{out} is running{_since(out, run.comparison.call)}." if going else unfinished, fold=False)
        for text in filter(None, (line(*arm) for arm in arms(out))):
            say(console, f"  {text}")
    return 0 if going else {"finished": 0, "failed": 1}.get(run.status, 3)


def _since(out: Path, call: Began) -> str:
    if not call.began:
        return ""
    text = f", {(time.time() - call.began) / 60:.1f} minutes by now"
    text += f", {call.predicted_s / 60:.1f} predicted" if call.predicted_s else ""
    text += f", at most {call.minutes:g}" if call.minutes else ""
    process = background.process_of(out)
    return text + (f" (detached, process {process.pid})" if process and process.alive else "")


def follow(out: Path, console: Console) -> int:
    """Follow the run that goes on in `out` to its end, then show what came of it. Returns its exit status; 130 if left."""
    try:
        overview(out, console)
        say(console, "Ctrl-C leaves it running; --stop pauses it.")
        while background.going(out):
            now = next((arm for arm in arms(out) if is_alive(arm[2])), None)
            if now is None:
                time.sleep(LOOK)
                continue
            part, label, folder = now
            steps = read_run(folder).training.config.steps
            named, steps = (label, steps) if part == "safety" else (f"{label}, speed", None)
            with TrainingProgress(console, named, folder, steps, *forecast_of(out, part, folder)):
                while background.going(out) and is_alive(folder):
                    time.sleep(LOOK)
            if said := line(*now):
                say(console, said)
    except KeyboardInterrupt:
        say(console, f"Left. The run goes on: `lab status {out}` shows it.", fold=False)
        return LEFT
    status = overview(out, console)
    process = background.process_of(out)
    return process.exit if process and process.exit is not None else status


def forecast_of(out: Path, part: str, folder: Path) -> tuple[Forecast | None, float]:
    """(what the call that is at work forecasts, seconds since it began with the arm in `folder`), from its record."""
    run = read_run(out).comparison
    call, items, started = run.call, run.call.items, read_run(folder).training.started
    began = max(call.began or 0.0, datetime.fromisoformat(started).timestamp() if started else 0.0)
    ago = max(0.0, time.time() - began) if began else 0.0
    at = next((i for i, item in enumerate(items) if (item.part, item.arm) == (part, folder.name)), None)
    if at is None:
        return None, ago
    done = [item for one in run.results.calls if one.began == call.began for item in one.done]
    until = call.began + 60 * call.minutes - REPORT_SECONDS if call.began and call.minutes else None
    return Forecast(done, items[at], items[at + 1 :], until), ago


def stop(out: Path, console: Console) -> int:
    """Ask the run in `out` to pause, and wait until it has. LabError if nothing runs there."""
    if not background.going(out):
        raise LabError(f"nothing is running in {out}")
    with explained(f"in {out}"):
        (out / background.STOP).touch()
    say(console, "Asked to pause. It does so between two steps, which may take a minute while it compiles.")
    while background.going(out):
        time.sleep(LOOK)
    overview(out, console)
    return 0


def report_death(out: Path, console: Console) -> bool:
    """If the last detached run of this folder ended without a word of its own, tell its last ones. Was it so?"""
    process = background.died(out)
    if process is None:
        return False
    how = "was killed, or the machine went down" if process.exit is None else "ended with an error"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(process.began))
    head = f"The detached run of {when} {how}. The last lines of {out / background.LOG}:"
    say(console, head, style="bold", fold=False)
    for said in (background.last_words(out) or "(nothing)").splitlines():
        say(console, f"    {said}", fold=False)
    say(console, "What it finished is kept; the same command goes on.")
    return True
