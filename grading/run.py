"""`grade run`: all submissions of a folder, a few at a time, each in a process of its own; marks in files.

    marks/week13/STUDENT/ATTEMPT.json   one mark each (grading.marks)
    marks/week13/.seed.json             the class's seed; readable by its owner only
    marks/week13/.reference.json        how long the reference needs here, and that it earns every point
    marks/week13/.lock, .work/          of the run that is going on

A mark whose key (submission, tests, seed, environment) is still right is not made again. So a rerun does what changed,
and after a kill the next run goes on where it was.
"""
from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path

from grading import judge, marks
from grading.intake.arrange import arrange
from grading.intake.find import Entry, find_submissions
from grading.intake.load import Submission, load
from grading.judge import Settings
from grading.marks import SANDBOXED, UNSANDBOXED, Mark
from grading.sandbox.box import Limits
from labkit.checks.tasks import Week
from labkit.errors import LabError

PATIENCE = 900.0        # seconds for one submission's judge: far above the budget of what it judges
RETRIES = 2             # times that a submission is tried again alone when the grader, not it, has failed


@dataclass
class Todo:
    entry: Entry
    digest: str
    tries: int = 0


@dataclass
class Progress:
    """Told to whoever shows it. `mark` is None when one begins."""
    done: int
    total: int
    entry: Entry
    mark: Mark | None = None


@dataclass
class Report:
    """made      marks of this run; `kept`: marks that were still right
    unreadable   (student, why) of entries that could not be read at all
    """
    seed: int
    made: list[Mark] = field(default_factory=list)
    kept: list[Mark] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    @property
    def all(self) -> list[Mark]:
        return sorted([*self.made, *self.kept], key=lambda mark: (mark.student, mark.attempt))


def run(week: Week, submissions: Path, folder: Path, *, jobs: int = 1, seed: int | None = None,
        isolation: str = SANDBOXED, students: Sequence[str] = (), limits: Limits = Limits(), dask: str | None = None,
        told: Callable[[Progress], None] = lambda progress: None) -> Report:
    """Grade what is in `submissions`; marks go below `folder`.

    seed      None: the class's, made on the first run and kept
    students  only these; () is all
    dask      a Dask scheduler's address, or "local": grade on its workers (grading.many)
    LabError  nothing to grade, another run is going on, the sandbox does not work, or the reference itself does not
              earn every point here
    """
    found = find_submissions(submissions, week)
    entries = [entry for entry in found if not students or entry.student in students]
    if unknown := set(students) - {entry.student for entry in entries}:
        raise LabError(f"there is no submission of {sorted(unknown)[0]!r} in {submissions}")
    if not entries:
        raise LabError(f"there is no submission of {week.name} in {submissions}")
    _prepare()
    with _locked(folder / week.name) as own:
        seed = class_seed(own) if seed is None else seed
        settings = Settings(seed, isolation, work=own / ".work", limits=limits)
        settings = _timed(week, settings, own)
        report = Report(seed)
        todo = list(_changed(entries, week, folder, settings, report))
        if dask is None:
            _all(todo, week, folder, settings, jobs, report, told)
        else:
            _on_workers(dask, todo, week, folder, settings, jobs, report, told)
        return report


def again(week: Week, submissions: Path, folder: Path, student: str, seed: int, *, isolation: str = SANDBOXED,
          limits: Limits = Limits()) -> list[Mark]:
    """The marks of one student, made anew with a given seed and written nowhere: for an appeal."""
    entries = [entry for entry in find_submissions(submissions, week) if entry.student == student]
    if not entries:
        raise LabError(f"there is no submission of {student!r} in {submissions}")
    _prepare()
    with _locked(folder / week.name) as own:
        settings = _timed(week, Settings(seed, isolation, work=own / ".work", limits=limits), own)
        return [judge.grade(entry, week, settings) for entry in entries]


def class_seed(own: Path) -> int:
    """The class's seed: made once, secret until it is published."""
    path = own / ".seed.json"
    try:
        return int(json.loads(path.read_text())["seed"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError):
        raise LabError(f"{path} holds no seed: restore it, or delete it and grade everything anew") from None
    seed = secrets.randbits(62)     # too many to try for a submission that sees its own inputs
    _write(path, {"seed": seed})
    return seed


def _timed(week: Week, settings: Settings, own: Path) -> Settings:
    """The settings with the reference's times. It is graded once a machine: if it does not earn all, nobody's marks
    would be right."""
    path = own / ".reference.json"
    key = judge.key("the reference", week, settings)
    try:
        known = json.loads(path.read_text())
        if known["key"] == key:
            return replace(settings, seconds=known["seconds"], total=known["total"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    process = multiprocessing.get_context("fork").Process(target=_time, args=(week, settings, key, path, os.getpid()))
    process.start()
    process.join()
    known = json.loads(path.read_text()) if process.exitcode == 0 else {
        "error": f"its judge ended with status {process.exitcode}"}
    if "error" in known:
        path.unlink(missing_ok=True)
        raise LabError(f"the reference itself does not earn every point of {week.name} on this machine, so no mark "
                       f"would be right. {known['error']}")
    return replace(settings, seconds=known["seconds"], total=known["total"])


def _time(week: Week, settings: Settings, key: str, path: Path, parent: int) -> None:
    """In a process of its own: the grader itself must never compute."""
    _dies_with(parent)
    try:
        outcome, seconds = judge.reference(arrange(reference_submission(week), week), week, settings)
        worst = [f"{case.task} {case.behaviour}: {case.verdict}: {case.text}" for case in outcome.cases
                 if case.verdict != "passed"]
        _write(path, {"key": key, "seconds": seconds, "total": outcome.seconds} if outcome.full else
               {"error": worst[0] if worst else "a task has no cases"})
    except Exception as error:
        _write(path, {"error": f"{type(error).__name__}: {error}"})
    os._exit(0)


def reference_submission(week: Week) -> Submission:
    """The course's own solutions as a submission."""
    names = {module for task in week.tasks for module in task.modules}
    files = {f"{week.package}/{name.replace('.', '/')}.py": (week.folder / f"{name.replace('.', '/')}.py").read_bytes()
             for name in sorted(names)}
    if week.notebook.exists():
        files[f"{week.package}/{week.notebook.name}"] = week.notebook.read_bytes()
    return Submission("the reference", 1, None, files)


def _changed(entries: Sequence[Entry], week: Week, folder: Path, settings: Settings, report: Report) -> Iterator[Todo]:
    """Entries whose mark is missing or no longer right; the others go into the report."""
    for entry in entries:
        try:
            digest = load(entry, week).digest
        except LabError as error:
            report.unreadable.append((entry.student, str(error)))
            continue
        path = marks.path_of(folder, week.name, entry.student, entry.attempt)
        if path.exists():
            try:
                mark = marks.read(path)
            except LabError:
                mark = None
            if mark is not None and mark.complete and mark.key == judge.key(digest, week, settings):
                report.kept.append(mark)
                continue
        yield Todo(entry, digest)


# -- processes --------------------------------------------------------------------------------------------------------
def _all(todo: list[Todo], week: Week, folder: Path, settings: Settings, jobs: int, report: Report,
         told: Callable[[Progress], None]) -> None:
    """Judge them, `jobs` at a time; those where the grader failed again, alone, at the end."""
    total, waiting, alone, running = len(todo), list(reversed(todo)), [], {}
    context = multiprocessing.get_context("fork")
    try:
        while waiting or alone or running:
            while (waiting and len(running) < jobs) or (not waiting and alone and not running):
                item = waiting.pop() if waiting else alone.pop(0)
                process = context.Process(target=_child, args=(item, week, folder, settings, os.getpid()))
                process.start()
                running[process.sentinel] = (process, item, time.monotonic())
                told(Progress(len(report.made), total, item.entry))
            wait(list(running), timeout=1.0)
            for sentinel, (process, item, since) in list(running.items()):
                if process.is_alive():
                    if time.monotonic() - since <= PATIENCE:
                        continue
                    process.kill()
                process.join()
                del running[sentinel]
                mark = _result(item, process.exitcode, week, folder, settings)
                if not mark.complete and item.tries < RETRIES:
                    item.tries += 1
                    alone.append(item)
                    continue
                report.made.append(mark)
                told(Progress(len(report.made), total, item.entry, mark))
    finally:
        for process, _, _ in running.values():
            process.kill()
            process.join()


def _on_workers(address: str, todo: list[Todo], week: Week, folder: Path, settings: Settings, jobs: int,
                report: Report, told: Callable[[Progress], None]) -> None:
    """The same on Dask's workers. Where the grader failed, again at the end, here and alone."""
    from grading import many
    total, again_ = len(todo), []

    def ends(item: Todo, mark: Mark) -> None:
        if not mark.complete:
            item.tries += 1
            again_.append(item)
            return
        report.made.append(mark)
        told(Progress(len(report.made), total, item.entry, mark))

    if todo:
        with many.connected(address, jobs) as client:
            many.grade_all(client, todo, week, folder, settings,
                           lambda item: told(Progress(len(report.made), total, item.entry)), ends)
    _all(again_, week, folder, settings, 1, report, told)


def _result(item: Todo, exitcode: int | None, week: Week, folder: Path, settings: Settings) -> Mark:
    """The mark that a judge has written; a fault, if it ended without."""
    path = marks.path_of(folder, week.name, item.entry.student, item.entry.attempt)
    if exitcode == 0:
        try:
            return marks.read(path)
        except LabError as error:
            why = str(error)
    else:
        why = f"the judge ended with status {exitcode}"
    mark = judge.failed(item.entry, item.digest, week, settings, why)
    marks.write(folder, mark)
    return mark


def _child(item: Todo, week: Week, folder: Path, settings: Settings, parent: int) -> None:
    """In the forked judge."""
    _dies_with(parent)
    try:
        mark = judge.grade(item.entry, week, settings)
    except Exception as error:
        mark = judge.failed(item.entry, item.digest, week, settings, f"{type(error).__name__}: {error}")
    marks.write(folder, mark)
    sys.stdout.flush()
    os._exit(0)         # without the interpreter's cleaning up: nothing of it is ours


def _dies_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)      # PR_SET_PDEATHSIG: no judge outlives the grader
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C is the grader's: it ends its judges


def _prepare() -> None:
    """Import what judges need before they are forked, and compute nothing: forked after computing, torch hangs."""
    import pytest       # noqa: F401
    import torch        # noqa: F401

    import labkit.checks.plugin     # noqa: F401
    import labkit.comm.ranks        # noqa: F401
    import labkit.comm.wire         # noqa: F401
    gc.collect()
    gc.freeze()


@contextmanager
def _locked(own: Path) -> Iterator[Path]:
    """The week's folder of marks, for one run at a time; what a killed run left in it is cleared away."""
    own.mkdir(parents=True, exist_ok=True)
    with open(own / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another `grade run` is writing to {own}: wait for its end") from None
        shutil.rmtree(own / ".work", ignore_errors=True)
        for left in own.glob("*/.mark-*"):
            left.unlink(missing_ok=True)
        try:
            yield own
        finally:
            shutil.rmtree(own / ".work", ignore_errors=True)


def _write(path: Path, data: dict) -> None:
    beside = path.with_name(path.name + ".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


__all__ = ["Progress", "Report", "SANDBOXED", "UNSANDBOXED", "again", "class_seed", "run"]
