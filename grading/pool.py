"""Judges, a few at a time: each submission's in a process of its own, forked from a grader that never computes.

Each slot keeps a sandbox that has imported torch, and lends it to one judge after another: nothing of a submission
stays in it, since its files go, its ranks die with all they have started, and the process that forks them runs no code
of a student's. What a submission destroys is replaced for the next one; so is what a failed judge leaves behind.

A submission that sleeps until its deadline leaves its processor to nobody. So where several are judged at a time, one
more is begun while one of them only waits, in a spare slot.
"""

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading import judge
from grading.files import put
from grading.judge import Entry, Settings
from grading.mark import SANDBOXED, Mark
from grading.sandbox import watch
from grading.sandbox.box import Box, BoxFailed
from grading.sandbox.runner import compiled, parts_of
from labkit.checks.tasks import Week
from labkit.comm.forkserver import fork
from labkit.comm.processor import times
from labkit.errors import LabError

PATIENCE = 900.0  # seconds for one submission's judge
BEYOND = 120.0  # seconds for it beyond what it counts as the submission's: reading, writing, a busy machine
RESTS = 0.1  # processors that a judge and its sandbox use at most while it only waits, for a rank that sleeps, say
LOOK = 1.0  # seconds between two looks at what they use
RETRIES = 2  # times that a submission is tried again alone when the grader, not it, has failed


@dataclass
class Todo:
    """A submission that waits for its mark. `tries`: how often the grader has failed at it; `spent`: seconds of the
    clock that this took."""

    entry: Entry
    tries: int = 0
    spent: float = 0.0


class Judge:
    """A process forked from this one that runs a function; no judge outlives the grader. `life` can be waited for."""

    def __init__(self, function: Callable[..., None], *args: Any, patience: float = PATIENCE) -> None:
        self.patience = patience
        sys.stdout.flush()  # or it would come out of the judge as well
        self.pid = fork(function, *args)
        self.life, self.since = os.pidfd_open(self.pid), time.monotonic()

    def late(self) -> bool:
        """That it had to wait for a processor is not its doing; but nobody waits for it for longer than PATIENCE."""
        spent = time.monotonic() - self.since
        return spent > PATIENCE or spent - times(self.pid)[1] > self.patience

    def running(self) -> bool:
        return not select.select([self.life], [], [], 0.0)[0]

    def kill(self) -> None:
        signal.pidfd_send_signal(self.life, signal.SIGKILL)

    def end(self) -> int:
        """Wait for its end. Returns the exit status."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.life)
        return os.waitstatus_to_exitcode(status)


class _Slot:
    """One judge at a time, and the sandbox that it is lent."""

    def __init__(self, number: int, folder: Path, settings: Settings) -> None:
        self.box = Box(folder, settings.limits, number=number) if settings.isolation == SANDBOXED else None
        self.starting, self.why = False, ""  # why it did not start
        self.process: Judge | None = None
        self.item: Todo | None = None
        self.looked, self.used, self.rests = 0.0, 0.0, False
        if self.box is not None:
            folder.mkdir(parents=True)
            folder.chmod(0o755)

    def start(self) -> None:
        """Begin to start its sandbox, unless it lives."""
        if self.box is not None and not self.box.alive:
            self.box.close()
            try:
                self.box.launch()
                self.starting = True
            except (OSError, LabError) as error:
                self.why = str(error)  # its judges start their own, or tell why they can't

    def started(self) -> None:
        """Wait until it has started, or has failed to."""
        assert self.box is not None
        self.starting = False
        try:
            self.box.wait()
        except BoxFailed as error:
            self.why = str(error)

    def renew(self, well: bool) -> None:
        """After a judge: the sandbox stays if the judge ended `well` and left nothing in it, else a new one starts."""
        if self.box is not None and not (well and self.box.alive and self.box.idle):
            self.box.close()
        self.start()

    def take(self, item: Todo, process: Judge) -> None:
        """Its next submission, and who judges it."""
        self.item, self.process = item, process
        self.looked, self.rests = 0.0, False

    def look(self) -> None:
        """Find out whether its judge rests: how much of a processor it has used since the last look."""
        now = time.monotonic()
        if now - self.looked >= LOOK:
            used = self._processor()
            self.rests = self.looked > 0 and used - self.used < RESTS * (now - self.looked)
            self.looked, self.used = now, used

    def _processor(self) -> float:
        """Seconds of processor that its judge and all in its sandbox have used so far."""
        assert self.process is not None
        inside = watch.tree(self.box.pid) if self.box is not None and self.box.alive else []
        return sum(map(watch.total, [self.process.pid, *inside]))

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.end()
        if self.box is not None:
            self.box.close()


class Pool(AbstractContextManager):
    """`jobs` slots, and a spare one if they are several. Use it in a `with`: afterwards no process of theirs is left.

    settings    may be exchanged until the first submission is judged, but for `work` and the isolation
    """

    def __init__(self, week: Week, settings: Settings, jobs: int) -> None:
        self.week, self.settings = week, settings
        count = jobs + 1 if jobs > 1 else 1
        self.slots = [_Slot(number, settings.work / f"slot{number}", settings) for number in range(1, count + 1)]
        self.jobs = jobs
        for sources in parts_of(week).values():  # once, for all judges
            for path, text in sources.items():
                compiled(path, text)

    def __exit__(self, *exc) -> None:
        for slot in self.slots:
            slot.close()

    def start(self) -> None:
        """Begin to start the sandboxes, and wait for the first one. LabError where it does not start. The spare slot's
        waits until it is needed: it is an import of torch."""
        for slot in self.slots[: self.jobs]:
            slot.start()
        first = self.slots[0]
        if first.starting:
            first.started()
        if first.why:
            raise LabError(
                f"submissions cannot be shut in on this machine ({first.why}). `grade doctor` shows the "
                "fix; --unsandboxed runs them with your own rights, for people whom you trust"
            )

    def alone(self, function: Callable[..., None], *args: Any) -> int:
        """Run function(box, *args) in a process forked from here, in the first slot. Returns its exit status."""
        first = self.slots[0]
        status = Judge(_called, function, first.box, *args).end()
        first.renew(status == 0)
        return status

    def grade_all(self, todo: Sequence[Todo], ends: Callable[[Todo, Mark], None]) -> None:
        """Judge all of them; those where the grader failed again at the end, alone."""
        waiting = list(reversed(todo))
        alone: list[Todo] = []
        while waiting or alone or any(slot.process for slot in self.slots):
            for slot in self.slots:
                if slot.process or slot.starting:
                    continue
                if waiting:
                    if self._computing() >= self.jobs:
                        break
                    if slot.box is not None and not slot.box.alive and not slot.why:
                        slot.start()
                    if not slot.starting:
                        self._begin(slot, waiting.pop())
                elif alone and not any(other.process for other in self.slots):
                    self._begin(slot, alone.pop(0))
            self._wait()
            for slot in self.slots:
                if slot.process and slot.item and (mark := self._ended(slot)):
                    item, slot.item = slot.item, None
                    item.spent += mark.seconds
                    if not mark.complete and item.tries < RETRIES and item.spent < judge.budget(self.settings):
                        item.tries += 1
                        alone.append(item)
                    else:
                        ends(item, mark)

    def _computing(self) -> int:
        """How many judges are at work, without those that only wait."""
        busy = [slot for slot in self.slots if slot.process]
        for slot in busy:
            slot.look()
        return len(busy) - sum(slot.rests for slot in busy)

    def _wait(self) -> None:
        """Until a judge has ended or a sandbox has started, or it is time to look again."""
        starting = {slot.box.link.fileno(): slot for slot in self.slots if slot.starting and slot.box}
        judges = [slot.process.life for slot in self.slots if slot.process]
        for ready in select.select([*starting, *judges], [], [], LOOK)[0]:
            if ready in starting:
                starting[ready].started()

    def _begin(self, slot: _Slot, item: Todo) -> None:
        box = slot.box if slot.box is not None and slot.box.alive else None
        patience = min(PATIENCE, judge.budget(self.settings) + BEYOND)
        slot.take(item, Judge(_judge, item, self.week, self.settings, box, patience=patience))

    def _ended(self, slot: _Slot) -> Mark | None:
        """The mark, if its judge has ended. Then the slot is free."""
        process, item = slot.process, slot.item
        assert process is not None and item is not None
        if process.running():
            if not process.late():
                return None
            process.kill()
            item.tries = RETRIES  # once more would cost the class as long again
        slot.process = None
        mark = self._result(item, process.end())
        slot.renew(mark.complete)
        return mark

    def _result(self, item: Todo, status: int) -> Mark:
        """The mark that a judge has left; a fault, if it ended without."""
        path = _left(item, self.settings)
        if status == 0:
            try:
                return Mark.from_json(path.read_text(encoding="utf-8"))
            except (OSError, LabError) as error:
                why = str(error)
            finally:
                path.unlink(missing_ok=True)
        else:
            why = f"the judge ended with status {status}"
        return judge.failed(item.entry, self.week, self.settings, why)


def _judge(item: Todo, week: Week, settings: Settings, box: Box | None) -> None:
    """In the judge's process."""
    _settle()
    try:
        mark = judge.grade(item.entry, week, settings, box=box)
    except Exception as error:
        mark = judge.failed(item.entry, week, settings, f"{type(error).__name__}: {error}")
    put(_left(item, settings), mark.to_json().encode(), 0o600)


def _left(item: Todo, settings: Settings) -> Path:
    """Where a judge leaves its mark for the grader, who keeps it."""
    return settings.work / f"{item.entry.number}.json"


def _called(function: Callable[..., None], *args: Any) -> None:
    _settle()
    function(*args)


def _settle() -> None:
    gc.set_threshold(10_000, 20, 50)  # it lives for seconds: cycles may wait
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's, who then ends this one
