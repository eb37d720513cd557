"""Grade one submission: its files into a sandbox, the week's own tests here, a Mark out.

It runs in a process of its own (grading.pool), forked from a grader that has imported torch and computed nothing; so a
thousand submissions leave nothing behind in the grader, and a judge that dies takes one submission's turn with it, no
more.
"""

import hashlib
import json
import os
import platform
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from grading.answers import documents, runs, unanswered
from grading.intake.arrange import NOWHERE, Package, arrange
from grading.intake.names import some
from grading.intake.submission import Submission, read_submission
from grading.mark import SANDBOXED, UNSANDBOXED, Mark
from grading.marking.cells import read_notebook
from grading.publish.page import here
from grading.sandbox.box import Box, Limits
from grading.sandbox.frames import clean
from grading.sandbox.runner import BUDGET, DEADLINE, MAX_TEXT, SandboxRunner, parts_of
from labkit.checks import boundary, expected
from labkit.checks.outcome import Outcome, number
from labkit.checks.pytest_run import run_checks
from labkit.checks.runner import LocalRunner
from labkit.checks.tasks import Week
from labkit.checks.verdict import FAULT, NO_RESULT, NOT_ATTEMPTED

GENEROUS = 60.0  # seconds for a call of the reference, whose time is what is to be found out


@dataclass(frozen=True)
class Settings:
    """What every submission of a run shares.

    seed        of the random data, the class's
    isolation   SANDBOXED or UNSANDBOXED
    seconds     the reference's time by function; total: of all its calls
    expected    what was found while it was graded: see labkit.checks.expected
    work        a folder for files that are needed while it runs
    tasks       only these are judged; () is all with points
    """

    seed: int
    isolation: str = SANDBOXED
    seconds: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    expected: dict[str, str] = field(default_factory=dict)
    work: Path = Path(".")
    tasks: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Entry:
    """A submission that is to be judged: its number, where its archive lies, the names that an instructor gave to
    misnamed files (old, new), and what is known of it from before: sentences for the student, for the instructor."""

    number: int
    path: Path
    renamed: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()


def grade(
    entry: Entry, week: Week, settings: Settings, submission: Submission | None = None, box: Box | None = None
) -> Mark:
    """The mark of one attempt. Never raises because of what is in a submission.

    submission   if it is read
    box          a sandbox that has started, to be used for it
    """
    begin, used = time.monotonic(), _used()
    submission = read_submission(entry.path, entry.renamed) if submission is None else submission
    package = arrange(submission, week)
    outcome, _, processor = run(package, week, settings, settings.tasks or [week.name], box)
    explained(outcome, week, package.missing)
    graded = {module for task in week.tasks if task.kind != "stretch" for module in task.modules}
    missing = list(dict.fromkeys(why for module, why in package.missing.items() if module in graded))
    if not submission.files and not submission.left_out:
        missing = []  # its own note says that there is nothing: once is enough
    notes = [*entry.notes, *submission.notes, *package.notes, *([" ".join(missing)] if missing else [])]
    if beside := documents(week, submission.files):
        notes.append(f"Handed in beside the notebook: {some(beside)}. It is read with the written task.")
    if folders := runs(week, submission.files):
        notes.append(f"Handed in with the record of a run: {some(folders)}. It is read with the written task.")
    data = outcome.to_json()
    for case in (case for task in data["tasks"] for case in task["cases"]):  # a student's page is made of these
        case["text"], case["cause"] = here(case["text"]), [here(cause) for cause in case["cause"]]
    attention = [*entry.attention, *submission.attention]
    attention += [f"{case.task} {case.behaviour}: {case.text}" for case in outcome.faults]
    if settings.isolation == UNSANDBOXED:
        attention.append("graded UNSANDBOXED: the submission's code could do anything, also to this mark")
    absent = [module for module in package.missing if module in graded]
    return Mark(
        **_about(entry, submission.digest, week, settings),
        points=data["points"],
        possible=data["possible"],
        complete=not outcome.faults,
        attention=attention,
        notes=notes,
        missing={f"{module.replace('.', '/')}.py": package.lookalikes[module] for module in absent},
        unanswered=unanswered(week, submission.files),
        tasks=data["tasks"],
        seconds=round(time.monotonic() - begin, 3),
        core_seconds=round(_used() - used + processor, 3),
    )


def run(
    package: Package,
    week: Week,
    settings: Settings,
    asked: Sequence[str],
    box: Box | None = None,
    deadline: float | None = None,
) -> tuple[Outcome, dict[str, float], float]:
    """Checks on a package: the outcome, the longest call of each function in the sandbox, and seconds of processor there.

    asked      the week's name, tasks' ids
    deadline   seconds for a call; of the reference `GENEROUS`"""
    expected.remember(settings.expected)
    with laid_out(package, box.folder if box else settings.work / f"{os.getpid()}") as folder:
        if settings.isolation == UNSANDBOXED:
            with LocalRunner(folder, reference=week.folder.parent) as runner:
                outcome = run_checks(asked, weeks=[week], runner=runner, seed=settings.seed, deadline=deadline)
            return outcome, {}, 0.0
        with SandboxRunner(
            folder,
            parts=parts_of(week),
            reference=settings.seconds,
            limits=settings.limits,
            budget=budget(settings),
            deadline=deadline or DEADLINE,
            box=box,
            precompile=True,
        ) as sandboxed:
            outcome = run_checks(asked, weeks=[week], runner=sandboxed, seed=settings.seed)
        # A verdict's text may quote what came back: it is a student's, of any length, and terminals obey some of it.
        outcome.cases = [
            replace(case, text=clean(case.text, MAX_TEXT), cause=tuple(clean(cause, MAX_TEXT) for cause in case.cause))
            for case in outcome.cases
        ]
        return outcome, sandboxed.seconds, sandboxed.processor


def budget(settings: Settings) -> float:
    """Seconds that a submission may take."""
    return max(BUDGET, 10 * settings.total)


@contextmanager
def laid_out(package: Package, folder: Path) -> Iterator[Path]:
    """The package as files in `folder`, which is empty afterwards. Anyone may read them: the sandbox's user is another
    one. The folder itself stays what it was: a sandbox sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    _empty(folder)
    try:
        for path, data in (package.files | package.course).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        for place in (folder, *folder.rglob("*")):
            place.chmod(0o755 if place.is_dir() else 0o644)
        yield folder
    finally:
        _empty(folder)


def _empty(folder: Path) -> None:
    """OSError if something stays: one submission must not see another's files."""
    for path in list(folder.iterdir()):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def explained(outcome: Outcome, week: Week, missing: dict[str, str]) -> None:
    """Where a task's module is missing, its cases say so: a blank in the course's own text is not what was handed in.
    Nobody asks for a stretch task: one whose module is not there, nor any that looks like it, was not attempted."""
    for place, case in enumerate(outcome.cases):
        task = week.task(case.task)
        why = [missing[module] for module in task.modules if module in missing]
        nowhere = task.kind == "stretch" and all(sentence.endswith(NOWHERE) for sentence in why)
        if why and (case.verdict == NO_RESULT or (case.verdict == NOT_ATTEMPTED and not nowhere)):
            outcome.cases[place] = replace(case, verdict=NO_RESULT, text=" ".join(why), cause=())


def _about(entry: Entry, digest: str, week: Week, settings: Settings) -> dict[str, Any]:
    """What a mark says of the attempt and of how it is judged, whatever comes of it."""
    return {
        "submission": entry.number,
        "assignment": week.name,
        "seed": settings.seed,
        "content": digest,
        "renamed": dict(entry.renamed),
        "tests": tests_hash(week),
        "environment": environment_hash(settings.isolation),
        "key": key(digest, week, settings),
        "isolation": settings.isolation,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def failed(entry: Entry, week: Week, settings: Settings, why: str) -> Mark:
    """The mark of a submission that the grader could not judge: no zero, a human must look."""
    tasks: list[dict[str, Any]] = [
        {name: getattr(t, name) for name in ("id", "title", "kind", "cell")}
        | {"points": None if t.kind == "written" else 0, "possible": number(t.points), "cases": []}
        for t in week.tasks
        if t.kind != "stretch"
    ]
    return Mark(
        **_about(entry, "", week, settings),
        possible=number(week.points("auto")),
        complete=False,
        attention=[f"{FAULT}: {why}"],
        tasks=tasks,
    )


# -- what a mark depends on -------------------------------------------------------------------------------------------
def key(digest: str, week: Week, settings: Settings) -> str:
    return _hash([digest, tests_hash(week), settings.seed, environment_hash(settings.isolation)])


@cache
def tests_hash(week: Week) -> str:
    """A hash of what of the course can change a verdict: the week's code and data, what of labkit its tasks may use,
    the earlier weeks that it builds on, and the cells of its notebook as handed out, since a written answer is what
    differs from them. Its texts, results, and solutions of written tasks change nothing."""
    files = sorted(
        path
        for path in week.folder.rglob("*")
        if path.is_file()
        and "results" not in path.parts
        and "__pycache__" not in path.parts
        and path.suffix not in (".md", ".ipynb", ".png", ".svg")
    )
    hashed = [[str(path.relative_to(week.folder)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]
    for place in [*week.below, *(sorted(boundary.files(week.uses)) if week.uses else ())]:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            hashed.append([path.name, hashlib.sha256(path.read_bytes()).hexdigest()])
    if week.notebook.exists() and any(task.kind == "written" for task in week.tasks):
        for cell in read_notebook(week.notebook)["cells"]:
            hashed.append([cell.get("id"), cell["cell_type"], cell["metadata"].get("labkit"), cell["source"]])
    return _hash(hashed)


# What decides a verdict, from the root of the course: how an attempt becomes the folder that is judged, what a written
# task's answer is, and what runs the tests. A file that only shows or stores marks is not among them: a change of it
# would judge every class again. tests/grading/test_hash.py compares this with what a judge imports.
DECIDING = (
    "grading/judge.py",
    "grading/answers.py",
    "grading/tree.py",
    *(f"grading/marking/{name}.py" for name in ("cells", "inert", "view")),
    *(
        f"grading/intake/{name}.py"
        for name in ("archives", "arrange", "extras", "names", "notebook", "released", "submission")
    ),
    "grading/sandbox",
    "labkit/checks",
    "labkit/comm",
    "labkit/strict.py",
)


@cache
def environment_hash(isolation: str) -> str:
    """A hash of what runs the tests: this grader, labkit, Python, torch, numpy, the processor's kind, the isolation."""
    import numpy
    import torch

    return _hash(
        [
            code_hash(Path(__file__).parents[1]),
            platform.python_version(),
            torch.__version__,
            numpy.__version__,
            platform.machine(),
            isolation,
        ]
    )


def code_hash(root: Path) -> str:
    """A hash of the course's own code that decides a verdict, in the copy of the course at `root`."""
    places = [root / name for name in DECIDING]
    files = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    return _hash([[path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
