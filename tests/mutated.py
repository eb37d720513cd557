"""Mutants through the real machinery, and what every week's checks must do besides."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labkit.checks import load_week, run_checks
from labkit.checks.outcome import CaseResult, Outcome
from labkit.checks.runner import LocalRunner
from labkit.checks.tasks import Week
from labkit.checks.verdict import NOT_ATTEMPTED, PASSED
from tests.judged import ROOT, named
from tests.kills import PLANS, Plan
from tests.mutant import Mutant
from tests.stripped import strip_folder

Student = tuple[Path, LocalRunner]


def fixtures(folder: Path) -> tuple[Any, Any]:
    """The fixtures `week`, and `student`: a copy of the week to edit, and a runner whose ranks import from it; earlier
    tasks are the reference's."""

    @pytest.fixture(scope="module")
    def week() -> Week:
        return load_week(folder)

    @pytest.fixture(scope="module")
    def student(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Student]:
        root = tmp_path_factory.mktemp("student")
        shutil.copytree(folder, root / folder.name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        with LocalRunner(root, reference=ROOT) as runner:
            yield root / folder.name, runner

    return week, student


def sample(mutants: Sequence[Mutant], plan: Plan) -> list[Mutant]:
    """Those that go through the real machinery, ranks in processes of their own: of each task the first that ends in each
    way, and what threads cannot judge. The others are judged on threads, for a tenth."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    for mutant in mutants:
        first.setdefault((mutant.task, mutant.verdicts), mutant.name)
    return [mutant for mutant in mutants if mutant.name in {*first.values(), *plan.left_out}]


def name_of(case: CaseResult) -> str:
    return case.test.rpartition("::")[2]


@contextmanager
def edited(student: Student, module: str, edit: Callable[[str], str]) -> Iterator[None]:
    """Inside the `with`, the student's module is this edit of itself."""
    path = student[0] / f"{module.replace('.', '/')}.py"
    original = path.read_text()
    path.write_text(edit(original))
    try:
        yield
    finally:
        path.write_text(original)


def checked(
    names: Sequence[str], week: Week, student: Student, seed: int, deadline: float, mutant: Mutant | None = None
) -> Outcome:
    """What these tasks' checks make of the student's copy, with the mutant's edit."""
    if mutant is None:
        return run_checks(names, weeks=[week], runner=student[1], seed=seed, deadline=deadline)
    with edited(student, mutant.module, mutant.apply):
        return checked(names, week, student, seed, mutant.deadline or deadline)


def fails_what_it_must(mutant: Mutant, outcome: Outcome, plan: Plan) -> None:
    """It fails the checks that it names and no other, and reports its own causes and no other."""
    failed = [case for case in outcome.cases if case.verdict != PASSED]
    failures = "\n".join(f"{name_of(c)}: {c.verdict}: {c.text}" for c in failed)
    for case in outcome.cases:
        name = name_of(case)
        if case.verdict == PASSED:
            assert not named(name, mutant.fails), f"{name} must fail\n{failures}"
        else:
            assert named(name, (*mutant.fails, *mutant.may, *plan.may)), f"{name} must pass: {case.text}"
            assert case.verdict in mutant.verdicts, f"{name}: {case.verdict}: {case.text}"
    for name in mutant.fails:
        assert any(named(name_of(case), [name]) for case in outcome.cases), f"{name} means no check"
    for case in failed:
        assert plan.honest(mutant, case, name_of(case)), f"{name_of(case)} reports {case.cause}"
        if case.cause:
            assert case.cause[0] in case.text
        elif case.verdict == "wrong":
            assert "cause:" not in case.text
    for cause in () if mutant.seldom else mutant.causes:
        assert any(sentence.startswith(cause) for case in failed for sentence in case.cause), (
            f"{cause!r} was never reported\n{failures}"
        )


def has_full_marks(week: Week, student: Student, seed: int, deadline: float, points: int) -> None:
    """The reference has all points that tests give; with the written tasks', a week has 100."""
    outcome = checked([week.name], week, student, seed, deadline)
    wrong = [case for case in outcome.cases if case.verdict != PASSED]
    assert outcome.full and outcome.earned == outcome.possible == points, wrong
    assert sum(task.points for task in week.tasks) == 100


def scores_nothing(week: Week, folder: Path, deadline: float) -> None:
    """Every case of the released week says that its task is not attempted yet."""
    strip_folder(week.folder, folder / week.package)
    with LocalRunner(folder) as runner:
        outcome = run_checks([week.name], weeks=[week], runner=runner, seed=1, deadline=deadline)
    assert outcome.earned == 0 and not outcome.full
    for case in outcome.cases:
        assert case.verdict == NOT_ATTEMPTED, f"{name_of(case)}: {case.verdict}: {case.text}"
        assert case.text.startswith(f"not attempted yet: Task {case.task}: ")


def is_recorded(number: str) -> None:
    """results/checks/kills.json is of these mutants: each failed on every one of its seeds, the reference on none."""
    plan = PLANS[number]
    kept = json.loads(plan.record.read_text())
    mutants = plan.mutants
    assert [(e["task"], e["name"]) for e in kept["mutants"]] == [(m.task, m.name) for m in mutants]
    for entry in (*kept["mutants"], *kept["reference"]):
        seeds = kept["runs"][entry["run"]]["seeds"]
        assert seeds >= (200 if plan.week.task(entry["task"]).points else plan.unpaid), entry
        assert entry.get("killed", seeds) == seeds, entry
    assert [e["task"] for e in kept["reference"]] == list(dict.fromkeys(m.task for m in mutants))
    assert all(entry["passes"] for entry in kept["reference"])


def kills(*words: str, timeout: float) -> None:
    """`python -m tests.kills` with these words finds nothing to fix."""
    command = [sys.executable, "-m", "tests.kills", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0 and ": 0 to fix" in done.stdout, done.stdout + done.stderr
