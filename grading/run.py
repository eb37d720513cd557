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
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grading import judge, marks
from grading.files import locked, put
from grading.intake.arrange import arrange
from grading.intake.find import Entry, find_submissions
from grading.intake.load import Submission, load
from grading.judge import Settings
from grading.marks import SANDBOXED, UNSANDBOXED, Mark
from grading.pool import Pool, Todo
from grading.sandbox.box import Box, Limits
from labkit.checks import expected
from labkit.checks.tasks import Week
from labkit.errors import LabError


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


def run(
    week: Week,
    submissions: Path,
    folder: Path,
    *,
    jobs: int = 1,
    seed: int | None = None,
    isolation: str = SANDBOXED,
    students: Sequence[str] = (),
    limits: Limits | None = None,
    dask: str | None = None,
    told: Callable[[Progress], None] = lambda progress: None,
) -> Report:
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
        settings = Settings(seed, isolation, work=own / ".work", limits=replace(limits or Limits(), uses=week.uses))
        report = Report(seed)
        todo = list(_changed(entries, week, folder, settings, report))
        total = len(todo)

        def begins(item: Todo) -> None:
            told(Progress(len(report.made), total, item.entry))

        def ends(item: Todo, mark: Mark) -> None:
            report.made.append(mark)
            told(Progress(len(report.made), total, item.entry, mark))

        if not todo:
            return report
        with Pool(week, folder, settings, 1 if dask else min(jobs, total)) as pool:
            pool.start()
            pool.settings = settings = _timed(week, settings, own, pool)
            if dask is not None:
                from grading import many

                with many.connected(dask, jobs) as client:
                    todo = many.grade_all(client, todo, week, folder, settings, begins, ends)
            pool.grade_all(todo, begins, ends)  # after Dask: those where the grader failed, alone
        return report


def again(
    week: Week,
    submissions: Path,
    folder: Path,
    student: str,
    seed: int,
    *,
    isolation: str = SANDBOXED,
    limits: Limits | None = None,
) -> list[Mark]:
    """The marks of one student, made anew with a given seed and written nowhere: for an appeal."""
    entries = [entry for entry in find_submissions(submissions, week) if entry.student == student]
    if not entries:
        raise LabError(f"there is no submission of {student!r} in {submissions}")
    _prepare()
    with _locked(folder / week.name) as own:
        settings = Settings(seed, isolation, work=own / ".work", limits=replace(limits or Limits(), uses=week.uses))
        with Pool(week, folder, settings, 1) as pool:
            pool.start()
            settings = _timed(week, settings, own, pool)
            return [judge.grade(entry, week, settings, box=pool.slots[0].box) for entry in entries]


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


def _timed(week: Week, settings: Settings, own: Path, pool: Pool) -> Settings:
    """The settings with the reference's times. It is graded once a machine: if it does not earn all, nobody's marks
    would be right."""
    path = own / ".reference.json"
    key = judge.key("the reference", week, settings)
    try:
        known = json.loads(path.read_text())
        if known["key"] == key:
            return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    status = pool.alone(_time, week, settings, key, path)  # the grader itself must never compute
    known = json.loads(path.read_text()) if status == 0 else {"error": f"its judge ended with status {status}"}
    if "error" in known:
        path.unlink(missing_ok=True)
        raise LabError(
            f"the reference itself does not earn every point of {week.name} on this machine, so no mark "
            f"would be right. {known['error']}"
        )
    return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})


def _time(box: Box | None, week: Week, settings: Settings, key: str, path: Path) -> None:
    """Grade the reference; how long it took, or why not, into the file."""
    try:
        outcome, seconds = judge.reference(arrange(reference_submission(week), week), week, settings, box)
        worst = [
            f"{case.task} {case.behaviour}: {case.verdict}: {case.text}"
            for case in outcome.cases
            if case.verdict != "passed"
        ]
        _write(
            path,
            {"key": key, "seconds": seconds, "total": outcome.seconds, "expected": expected.known()}
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


def _prepare() -> None:
    """Import what judges need before they are forked, and compute nothing: forked after computing, torch hangs."""
    for name in ("pytest", "torch", "labkit.checks.plugin", "labkit.comm.ranks", "labkit.comm.wire"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@contextmanager
def _locked(own: Path) -> Iterator[Path]:
    """The week's folder of marks, for one run at a time; what a killed run left in it is cleared away."""
    own.mkdir(parents=True, exist_ok=True)
    with locked(own / ".lock", f"another `grade run` is writing to {own}: wait for its end"):
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
