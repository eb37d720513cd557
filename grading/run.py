"""`grade run`: all submissions of a week, by a pool of judges (grading.pool); marks in the class's store.

    .work/week13/reference.json     the reference's times here, and expected values worth keeping
    .work/week13/                   else: of the run that is going on

Judges leave their marks here, and this process alone writes them into the store, each as it comes. A submission whose
newest mark's key (content, tests, seed, environment) is still right is not judged again.
"""

import gc
import hashlib
import importlib
import json
import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grading import history, judge
from grading.files import locked, put
from grading.intake.arrange import arrange
from grading.intake.names import count
from grading.intake.released import released_week
from grading.intake.submission import Submission
from grading.judge import Entry, Settings
from grading.mark import SANDBOXED, UNSANDBOXED, Mark
from grading.pool import Pool, Todo
from grading.register.marks import add_mark, newest_marks
from grading.register.people import person, resolve
from grading.register.schema import Class
from grading.register.submissions import Attempt, attempts
from grading.sandbox.box import Box, Limits
from labkit.checks import expected
from labkit.checks.tasks import Week
from labkit.checks.verdict import PASSED
from labkit.errors import LabError

WORK, LOCK = ".work", ".lock"


Tell = Callable[[str], None]  # shows a sentence on how far it is


@dataclass(frozen=True)
class Wishes:
    """How to run.

    numbers     only these submissions; () is all
    tasks       judge only these, of every submission that has a complete mark, also if nothing has changed. Stretch
                tasks are judged so, and only so; () is all that give points
    because     the reason, kept with the marks
    dask        a Dask scheduler's address, or "local": grade on its workers (grading.many)
    """

    jobs: int = 1
    isolation: str = SANDBOXED
    numbers: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    because: str = ""
    dask: str | None = None


@dataclass
class Report:
    """made      marks of this run; `kept`: marks that were still right
    names        submission -> whose it is, for people
    unreadable   (submission, why) of those that could not be graded at all
    changes      what became of marks that were there already
    """

    names: dict[int, str] = field(default_factory=dict)
    made: list[Mark] = field(default_factory=list)
    kept: list[Mark] = field(default_factory=list)
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    changes: list[history.Change] = field(default_factory=list)

    @property
    def all(self) -> list[Mark]:
        return sorted([*self.made, *self.kept], key=lambda mark: (self.names[mark.submission], mark.submission))


def run(cls: Class, week: Week, wishes: Wishes | None = None, tell: Tell = lambda sentence: None) -> Report:
    """Grade what was handed in for a week.

    LabError: nothing to grade, another run is going on, the sandbox does not work, or the reference itself does not
    earn every point here"""
    wishes = wishes or Wishes()
    chosen = [one for one in attempts(cls, week.name) if not wishes.numbers or one.id in wishes.numbers]
    if not chosen:
        raise LabError(f"there is no submission of {week.name}: `grade collect {week.name} DOWNLOAD` first")
    _prepare(week)
    with _locked(cls, week) as own:
        settings = Settings(class_seed(cls, week), wishes.isolation, work=own / "run", limits=_limits(week))
        report = Report({one.id: named(cls, one) for one in chosen})
        known = newest_marks(cls, week.name)
        whole = _whole(cls, week, chosen, report)
        todo = [item for item in whole if _is_due(item, known, week, settings, wishes, report)]
        total = len(todo)

        def ends(item: Todo, mark: Mark) -> None:
            old = known.get(item.entry.number)
            if wishes.tasks and old is not None:  # no cases: the judge failed, and nothing of the old was wrong
                mark = history.merged(old, mark) if mark.cases else old
            if mark is not old:
                add_mark(cls, mark, wishes.because, wishes.tasks)
                if old is not None:
                    report.changes.append(history.compare(old, mark, wishes.because, wishes.tasks))
            report.made.append(mark)
            done, points = len(report.made), f"{mark.points} of {mark.possible} in {mark.seconds:.0f} s"
            left = (time.monotonic() - began) / done * (total - done) / 60
            tell(f"{done} of {total}  submission {mark.submission}: {points}, about {math.ceil(left)} min left")

        if not todo:
            return report
        with Pool(week, settings, 1 if wishes.dask else min(wishes.jobs, total)) as pool:
            pool.start()
            stretch = [id for id in wishes.tasks if week.task(id).kind == "stretch"]
            settings = _timed(week, settings, own, pool, tell, stretch)
            pool.settings = settings = replace(settings, tasks=wishes.tasks)
            if not wishes.tasks and wishes.dask is None:
                tell(expectation(total, settings.total * math.ceil(total / wishes.jobs)))
            began = time.monotonic()
            if wishes.dask is not None:
                from grading import many

                with many.connected(wishes.dask, wishes.jobs) as client:
                    todo = many.grade_all(client, todo, week, settings, ends)
            pool.grade_all(todo, ends)  # after Dask: those where the grader failed, alone
        return report


def expectation(total: int, seconds: float) -> str:
    """How long it may take, before the first submission is judged: a capstone takes minutes."""
    about = f"{max(1.0, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    longer = "a hang or a busy machine takes longer"
    many = count(total, "submission")
    return f"{many} to grade: about {about} if each takes as long as the course's own solutions; {longer}"


def chosen_numbers(cls: Class, week: Week, texts: Sequence[str]) -> tuple[int, ...]:
    """The submissions of a week that are meant by numbers and by persons' keys. LabError for what names none."""
    found: list[int] = []
    here = attempts(cls, week.name)
    for text in texts:
        if text.isdecimal() and any(one.id == int(text) for one in here):
            found.append(int(text))
            continue
        who = resolve(cls, text)
        theirs = [one.id for one in here if who.id in one.members]
        if not theirs:
            raise LabError(f"{who.name} has handed in nothing of {week.name}")
        found += theirs
    return tuple(dict.fromkeys(found))


def named(cls: Class, one: Attempt) -> str:
    """Whose an attempt is, for people: its members, or what the platform calls it."""
    return " & ".join([*(person(cls, id).name for id in one.members), *(f"{label} (unknown)" for label in one.labels)])


def again(
    week: Week,
    entries: Sequence[Entry],
    seed: int,
    work: Path,
    *,
    isolation: str = SANDBOXED,
    tell: Tell = lambda sentence: None,
) -> list[Mark]:
    """Marks with a given seed, kept nowhere: for an appeal, and where there is no class. work: a folder for the run."""
    _prepare(week)
    settings = Settings(seed, isolation, work=work / "run", limits=_limits(week))
    with Pool(week, settings, 1) as pool:
        pool.start()
        settings = _timed(week, settings, work, pool, tell)
        return [judge.grade(entry, week, settings, box=pool.slots[0].box) for entry in entries]


def entry_of(cls: Class, week: Week, one: Attempt) -> Entry:
    """An attempt as a judge takes it."""
    return Entry(one.id, cls.archive(week, one.id).absolute(), one.renamed, one.notes, one.attention)


def _limits(week: Week) -> Limits:
    """What a submission of this week may use."""
    return Limits(uses=week.uses, weeks=tuple(map(str, week.below)))


def class_seed(cls: Class, week: Week) -> int:
    """The class's seed of a week: made once, secret until it is published."""
    with cls.writing():
        new = secrets.randbits(62)  # too many to try for a submission that sees its own inputs
        cls.db.execute("INSERT OR IGNORE INTO seed (assignment, value) VALUES (?, ?)", (week.name, new))
        return int(cls.db.execute("SELECT value FROM seed WHERE assignment = ?", (week.name,)).fetchone()["value"])


REFERENCE = "the reference"  # in place of what was handed in
_FROM_REFERENCE = ("seconds", "total", "expected")


def _timed(week: Week, settings: Settings, own: Path, pool: Pool, tell: Tell, stretch: Sequence[str] = ()) -> Settings:
    """The settings with the reference's times. It is graded once a machine, and once more when a stretch task is asked
    for of which nothing is known: if it does not earn all, no mark would be right."""
    path = own / "reference.json"
    requested = set(stretch)
    try:
        known = json.loads(path.read_text())
        if known["key"] == judge.key(REFERENCE, week, settings):
            if requested <= set(known["stretch"]):
                return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})
            requested |= set(known["stretch"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    tell("measuring how long the course's own solutions take here, once for a week and a machine")
    # In a process of its own: the grader itself must never compute.
    status = pool.alone(_time, week, settings, path, sorted(requested))
    known = json.loads(path.read_text()) if status == 0 else {"error": f"its judge ended with status {status}"}
    if "error" in known:
        path.unlink(missing_ok=True)
        raise LabError(
            f"the reference itself does not earn every point of {week.name} on this machine, so no mark "
            f"would be right. {known['error']}"
        )
    return replace(settings, **{name: known[name] for name in _FROM_REFERENCE})


def _time(box: Box | None, week: Week, settings: Settings, path: Path, stretch: Sequence[str]) -> None:
    """Grade the reference; how long it took, or why not, into the file."""
    try:
        package, asked = arrange(reference_submission(week), week), [week.name, *stretch]
        outcome, seconds, _ = judge.run(package, week, settings, asked, box, judge.GENEROUS)
        found: dict[str, Any] = {"key": judge.key(REFERENCE, week, settings), "stretch": stretch}
        found |= {"seconds": seconds, "total": outcome.seconds, "expected": expected.known()}
        if not outcome.full:
            failed = (case for case in outcome.cases if case.verdict != PASSED)
            worst = (f"{case.task} {case.behaviour}: {case.verdict}: {case.text}" for case in failed)
            found = {"error": next(worst, "a task has no cases")}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    put(path, json.dumps(found).encode(), 0o600)


def reference_submission(week: Week) -> Submission:
    """The course's own solutions as a submission."""
    names = {module for task in week.tasks for module in task.modules}
    files = {
        f"{week.package}/{name.replace('.', '/')}.py": (week.folder / f"{name.replace('.', '/')}.py").read_bytes()
        for name in sorted(names)
    }
    if week.notebook.exists():
        files[f"{week.package}/{week.notebook.name}"] = week.notebook.read_bytes()
    return Submission.of(REFERENCE, files)


def _whole(cls: Class, week: Week, chosen: Sequence[Attempt], report: Report) -> Iterator[Todo]:
    """Those whose archive is what was collected; the others go into the report."""
    for one in chosen:
        entry = entry_of(cls, week, one)
        try:
            with open(entry.path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            report.unreadable.append((one.id, f"{entry.path} cannot be read ({error.strerror}): collect it again"))
            continue
        if digest != one.digest:
            report.unreadable.append((one.id, f"{entry.path} is not what was collected: put the old file back"))
            continue
        yield Todo(entry)


def _is_due(item: Todo, known: dict[int, Mark], week: Week, settings: Settings, wishes: Wishes, report: Report) -> bool:
    """Whether a submission is to be judged. An archive never changes; so what its mark says of its content holds as
    long as the names do that an instructor gave to its files."""
    mark = known.get(item.entry.number)
    same = mark is not None and mark.renamed == dict(item.entry.renamed)
    if wishes.tasks:
        if mark is None or not same or not mark.cases:
            why = "no task of it can be judged alone: `grade run` without --task judges it first"
            report.unreadable.append((item.entry.number, why))
            return False
        return True
    if mark is not None and same and mark.complete and mark.key == judge.key(mark.content, week, settings):
        report.kept.append(mark)
        return False
    return True


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
def _locked(cls: Class, week: Week) -> Iterator[Path]:
    """The week's folder for work, for one run at a time; what a killed run left in it is cleared away."""
    own = cls.folder.absolute() / WORK / week.name
    own.mkdir(parents=True, exist_ok=True)
    with locked(own / LOCK, f"another `grade run {week.name}` is going on: wait for its end"):
        shutil.rmtree(own / "run", ignore_errors=True)
        (own / "run").mkdir()
        try:
            yield own
        finally:
            shutil.rmtree(own / "run", ignore_errors=True)


__all__ = ["SANDBOXED", "UNSANDBOXED", "Report", "Wishes", "again", "chosen_numbers", "class_seed", "run"]
