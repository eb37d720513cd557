"""`grade run`: all submissions of a folder, by a pool of judges (grading.pool); marks in files.

    marks/week13/STUDENT/ATTEMPT.json   one mark each (grading.marks)
    marks/week13/.seed.json             the class's seed; readable by its owner only
    marks/week13/.reference.json        how long the reference needs here, that it earns every point, and what of the
                                        expected values is worth keeping (labkit.checks.expected)
    marks/week13/.lock, .work/          of the run that is going on

A mark whose key (submission, tests, seed, environment) is still right is not made again. So a rerun does what changed,
and after a kill the next run goes on where it was.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grading import history, judge, marks
from grading.files import locked, put
from grading.intake.arrange import arrange
from grading.intake.find import Entry, find_submissions
from grading.intake.load import Submission, load
from grading.intake.names import shown, some
from grading.intake.receipts import NO_TIME
from grading.intake.released import released_week
from grading.judge import Settings
from grading.marks import LOCK, SANDBOXED, UNSANDBOXED, Mark
from grading.pool import Pool, Todo
from grading.sandbox.box import Box, Limits
from labkit.checks import expected
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest


@dataclass
class Progress:
    """Told to whoever shows it. `mark` is None when one begins.

    entry     whose turn it is; None while the reference is measured: then `done` and `total` count its cases
    expected  seconds that all of it takes if each takes as long as the reference; told once, before the first
    """

    done: int
    total: int
    entry: Entry | None
    mark: Mark | None = None
    expected: float | None = None


@dataclass
class Report:
    """made      marks of this run; `kept`: marks that were still right
    unreadable   (student, why) of entries that could not be read at all
    told         sentences on the class as a whole
    changes      what became of marks that were there already
    """

    seed: int
    made: list[Mark] = field(default_factory=list)
    kept: list[Mark] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    changes: list[history.Change] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[Mark]:
        return sorted([*self.made, *self.kept], key=lambda mark: (mark.student, mark.attempt))


def run(
    week: Week,
    submissions: Path,
    folder: Path,
    *,
    jobs: int = 1,
    seed: int | None = None,
    isolation: str = SANDBOXED,
    students: Sequence[str] = (),
    tasks: Sequence[str] = (),
    because: str = "",
    limits: Limits | None = None,
    dask: str | None = None,
    told: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Grade what is in `submissions`; marks go below `folder`.

    seed      None: the class's, made on the first run and kept
    students  only these; () is all
    tasks     judge only these, of every attempt that has a complete mark, also if nothing has changed. Stretch tasks
              are judged so, and only so; () is all that give points
    because   the reason, kept with what changes (grading.history)
    dask      a Dask scheduler's address, or "local": grade on its workers (grading.many)
    LabError  nothing to grade, another run is going on, the sandbox does not work, or the reference itself does not
              earn every point here
    """
    found = find_submissions(submissions, week)
    entries = [entry for entry in found if not students or entry.student in students]
    if unknown := set(students) - {entry.student for entry in entries}:
        here = sorted({entry.student for entry in found})
        raise LabError(
            f"there is no submission of {(one := min(unknown))!r} in {submissions}{nearest(one, here[:200])}"
        )
    if not entries:
        raise LabError(f"there is no submission of {week.name} in {submissions}")
    _prepare(week)
    with _locked(folder / week.name) as own:
        seed = class_seed(own) if seed is None else seed
        settings = Settings(seed, isolation, work=own / ".work", limits=_limits(week, limits))
        report = Report(seed, changes=history.settle(folder, week.name), told=_untimed(entries))
        known: dict[tuple[str, int], Mark] = {}
        if tasks:
            todo = list(_marked(entries, week, folder, report, known))
        else:
            todo = list(_changed(entries, week, folder, settings, report, known))
        total = len(todo)

        def begins(item: Todo) -> None:
            if (old := known.get((item.entry.student, item.entry.attempt))) is not None:
                history.begin(folder, old, because, tasks)
            told(Progress(len(report.made), total, item.entry))

        def ends(item: Todo, mark: Mark) -> None:
            report.made.append(mark)
            told(Progress(len(report.made), total, item.entry, mark))

        if not todo:
            return report
        with Pool(week, folder, settings, 1 if dask else min(jobs, total)) as pool:
            pool.start()
            stretch = [id for id in tasks if week.task(id).kind == "stretch"]
            settings = _timed(week, settings, own, pool, told, stretch)
            pool.settings = settings = replace(settings, tasks=tuple(tasks), marks=folder)
            if not tasks and dask is None:
                told(Progress(0, total, None, expected=settings.total * math.ceil(total / jobs)))
            if dask is not None:
                from grading import many

                with many.connected(dask, jobs) as client:
                    todo = many.grade_all(client, todo, week, folder, settings, begins, ends)
            pool.grade_all(todo, begins, ends)  # after Dask: those where the grader failed, alone
        report.changes += history.settle(folder, week.name)
        return report


def _untimed(entries: Sequence[Entry]) -> list[str]:
    late = list(dict.fromkeys(entry.student for entry in entries if entry.late and entry.received is None))
    return [f"Marked late by the platform without a time, so they count as in time here: {some(late)}. Kept by `grade "
            "collect`, they count as late"] if late else []  # fmt: skip


def again(
    week: Week,
    submissions: Path,
    folder: Path,
    student: str,
    seed: int,
    *,
    isolation: str = SANDBOXED,
    limits: Limits | None = None,
    told: Callable[[Progress], None] = lambda progress: None,
) -> list[Mark]:
    """The marks of one student, made anew with a given seed and written nowhere: for an appeal."""
    entries = [entry for entry in find_submissions(submissions, week) if entry.student == student]
    if not entries:
        raise LabError(f"there is no submission of {student!r} in {submissions}")
    _prepare(week)
    with _locked(folder / week.name) as own:
        settings = Settings(seed, isolation, work=own / ".work", limits=_limits(week, limits))
        with Pool(week, folder, settings, 1) as pool:
            pool.start()
            settings = _timed(week, settings, own, pool, told)
            return [judge.grade(entry, week, settings, box=pool.slots[0].box) for entry in entries]


def _limits(week: Week, limits: Limits | None) -> Limits:
    """What a submission of this week may use."""
    return replace(limits or Limits(), uses=week.uses, weeks=tuple(map(str, week.below)))


def class_seed(own: Path) -> int:
    """The class's seed: made once, secret until it is published."""
    path = own / ".seed.json"
    try:
        return int(json.loads(path.read_text())["seed"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError):
        raise LabError(f"{path} holds no seed: restore it, or delete it and grade everything anew") from None
    seed = secrets.randbits(62)  # too many to try for a submission that sees its own inputs
    _write(path, {"seed": seed})
    return seed


_FROM_REFERENCE = ("seconds", "total", "expected")


def _timed(
    week: Week, settings: Settings, own: Path, pool: Pool, told: Callable[[Progress], None], stretch: Sequence[str] = ()
) -> Settings:
    """The settings with the reference's times. It is graded once a machine, and once more when a stretch task is asked
    for of which nothing is known: if it does not earn all, nobody's marks would be right."""
    path = own / ".reference.json"
    key = judge.key("the reference", week, settings)
    asked = set(stretch)
    try:
        known = json.loads(path.read_text())
        if known["key"] == key:
            if asked <= set(known["stretch"]):
                return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})
            asked |= set(known["stretch"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    told(Progress(0, 0, None))
    # In a process of its own: the grader itself must never compute.
    status = pool.alone(
        _time, week, settings, key, path, sorted(asked), told=lambda done, total: told(Progress(done, total, None))
    )
    known = json.loads(path.read_text()) if status == 0 else {"error": f"its judge ended with status {status}"}
    if "error" in known:
        path.unlink(missing_ok=True)
        raise LabError(
            f"the reference itself does not earn every point of {week.name} on this machine, so no mark "
            f"would be right. {known['error']}"
        )
    return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})


def _time(
    box: Box | None,
    tell: Callable[[int, int], None],
    week: Week,
    settings: Settings,
    key: str,
    path: Path,
    stretch: Sequence[str],
) -> None:
    """Grade the reference; how long it took, or why not, into the file."""
    try:
        package = arrange(reference_submission(week), week)
        outcome, seconds = judge.reference(
            package, week, settings, box, lambda done, total, what: tell(done, total), stretch
        )
        worst = [
            f"{case.task} {case.behaviour}: {case.verdict}: {case.text}"
            for case in outcome.cases
            if case.verdict != "passed"
        ]
        _write(
            path,
            {"key": key, "stretch": stretch, "seconds": seconds, "total": outcome.seconds, "expected": expected.known()}
            if outcome.full
            else {"error": worst[0] if worst else "a task has no cases"},
        )
    except Exception as error:
        _write(path, {"error": f"{type(error).__name__}: {error}"})


def reference_submission(week: Week) -> Submission:
    """The course's own solutions as a submission."""
    names = {module for task in week.tasks for module in task.modules}
    files = {
        f"{week.package}/{name.replace('.', '/')}.py": (week.folder / f"{name.replace('.', '/')}.py").read_bytes()
        for name in sorted(names)
    }
    if week.notebook.exists():
        files[f"{week.package}/{week.notebook.name}"] = week.notebook.read_bytes()
    return Submission("the reference", 1, None, files)


def _marked(
    entries: Sequence[Entry], week: Week, folder: Path, report: Report, known: dict[tuple[str, int], Mark]
) -> Iterator[Todo]:
    """Entries that have a complete mark of what they hold now: single tasks of these can be judged anew."""
    for entry in entries:
        path = marks.path_of(folder, week.name, entry.student, entry.attempt)
        why = "it has no whole mark of what was handed in: `grade run` without --task makes one"
        if not path.exists():
            report.unreadable.append((entry.student, f"no task of it can be judged alone: {why}"))
            continue
        try:
            digest, mark = load(entry, week).digest, marks.read(path)
        except LabError as error:
            report.unreadable.append((entry.student, f"no task of it can be judged alone: {error}"))
            continue
        if mark.submission != digest or not mark.cases:
            report.unreadable.append((entry.student, why))
            continue
        known[entry.student, entry.attempt] = mark
        yield Todo(entry, digest)


def _changed(
    entries: Sequence[Entry],
    week: Week,
    folder: Path,
    settings: Settings,
    report: Report,
    known: dict[tuple[str, int], Mark],
) -> Iterator[Todo]:
    """Entries whose mark is missing or no longer right; the others go into the report. `known` gets the old marks."""
    for entry in entries:
        try:
            marks.checked(entry.student)
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
                report.kept.append(_timed_as(entry, mark, folder, report))
                continue
            if mark is not None:
                known[entry.student, entry.attempt] = mark
        yield Todo(entry, digest)


def _timed_as(entry: Entry, mark: Mark, folder: Path, report: Report) -> Mark:
    """The mark with the entry's time, which `grade collect --received` may have told since; no verdict depends on
    it."""
    received = judge.received(entry)
    if mark.received != received:
        report.told.append(
            f"{shown(entry.student)}, attempt {entry.attempt}: handed in {received or 'nobody knows when'}, "
            f"not {mark.received or 'unknown'}"
        )
        notes = [note for note in mark.notes if note != NO_TIME or note in entry.notes]
        mark = replace(mark, received=received, notes=notes)
        marks.write(folder, mark)
    return mark


def _prepare(week: Week) -> None:
    """Import and read what judges need before they are forked, and compute nothing: forked after computing, torch
    hangs."""
    for name in ("pytest", "torch", "labkit.checks.plugin", "labkit.comm.ranks", "labkit.comm.wire"):
        importlib.import_module(name)
    with suppress(LabError):  # each judge meets it again, and tells
        released_week(week)
    gc.collect()
    gc.freeze()


@contextmanager
def _locked(own: Path) -> Iterator[Path]:
    """The week's folder of marks, for one run at a time; what a killed run left in it is cleared away."""
    own.mkdir(parents=True, exist_ok=True)
    with locked(own / LOCK, f"another `grade run` is writing to {own}: wait for its end"):
        shutil.rmtree(own / ".work", ignore_errors=True)
        for left in own.glob("*/.*.part"):
            left.unlink(missing_ok=True)
        try:
            yield own
        finally:
            shutil.rmtree(own / ".work", ignore_errors=True)


def _write(path: Path, data: dict[str, Any]) -> None:
    put(path, json.dumps(data).encode(), 0o600)


__all__ = ["SANDBOXED", "UNSANDBOXED", "Progress", "Report", "again", "class_seed", "run"]
