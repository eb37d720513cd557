"""Judging mutants. All of them on thread ranks, by `tests.kills`: the record of a week holds 200 seeds, what else fails,
and the causes. Hangs, crashes and one mutant of each task through the real machinery too."""

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
from labkit.checks.verdict import PASSED, WRONG, CheckFailed
from tests.judged import ROOT, named
from tests.kills import Plan
from tests.mutant import Mutant

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


def results(outcome: Outcome) -> list[tuple[str, CaseResult | None]]:
    """Each case's name, and the case if it failed."""
    return [(case.test.rpartition("::")[2], None if case.verdict == PASSED else case) for case in outcome.cases]


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


def fails_what_it_must(
    mutant: Mutant, judged: Sequence[tuple[str, CaseResult | CheckFailed | None]], plan: Plan
) -> None:
    """It fails the checks that it names and no other, and reports its own causes and no other.

    judged: each case's name, and why it failed if it did.
    """
    failed = {name: why for name, why in judged if why is not None}
    failures = "\n".join(f"{name}: {why.verdict}: {why.text}" for name, why in failed.items())
    for name, why in judged:
        if why is None:
            assert not named(name, mutant.fails), f"{name} must fail\n{failures}"
            continue
        assert named(name, (*mutant.fails, *mutant.may, *plan.may)), f"{name} must pass: {why.text}"
        assert why.verdict in mutant.verdicts, f"{name}: {why.verdict}: {why.text}"
        assert plan.honest(mutant, why, name), f"{name} reports {why.cause}"
        if why.cause:
            assert why.cause[0] in why.text
        elif why.verdict == WRONG:
            assert "cause:" not in why.text
    for name in mutant.fails:
        assert any(named(case, [name]) for case, _ in judged), f"{name} means no check"
    for cause in () if mutant.seldom else mutant.causes:
        assert any(sentence.startswith(cause) for why in failed.values() for sentence in why.cause), (
            f"{cause!r} was never reported\n{failures}"
        )


def kills(*words: str, timeout: float) -> None:
    """`python -m tests.kills` with these words finds nothing to fix."""
    command = [sys.executable, "-m", "tests.kills", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0 and ": 0 to fix" in done.stdout, done.stdout + done.stderr
