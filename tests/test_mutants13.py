"""Week 13's checks are themselves checked: every mutant fails what it must and nothing else, and is told its true
cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labkit.checks import load_week, run_checks
from labkit.checks.runner import LocalRunner
from labkit.checks.verdict import NOT_ATTEMPTED, PASSED
from labkit.comm import processes
from tests.mutants13 import MUTANTS
from tests.stripped import strip_folder

ROOT = Path(__file__).resolve().parents[1]
WEEK = ROOT / "week13_allreduce"
DEADLINE = 20.0  # seconds for a call, on a machine that may be busy with other things


@pytest.fixture(scope="module")
def week():
    return load_week(WEEK)


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A copy of the week to edit, and a runner whose ranks import from it; earlier tasks are the reference's."""
    root = tmp_path_factory.mktemp("student")
    shutil.copytree(WEEK, root / WEEK.name, ignore=shutil.ignore_patterns("__pycache__"))
    with LocalRunner(root, reference=ROOT) as runner:
        yield root / WEEK.name, runner


def name_of(case):
    return case.test.rpartition("::")[2]


def named(case, names):
    """Whether one of the names means this case: "test", or "test[the beginning of a case's name"."""
    return any(name_of(case) == name or name_of(case).startswith(name if "[" in name else name + "[") for name in names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.task} {m.name}")
def test_mutant(mutant, week, student, monkeypatch):
    folder, runner = student
    # A deadlock is believed once it is certain, and certain it is at once: a dozen of them need not wait a second each.
    monkeypatch.setattr(processes, "STILL", 0.4)
    monkeypatch.setattr(processes, "LOOK", 0.1)
    path = folder / f"{mutant.module}.py"
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        tasks = [mutant.task, *(t.id for t in week.tasks if mutant.cascade and mutant.task in t.stands_on)]
        outcome = run_checks(tasks, weeks=[week], runner=runner, seed=13, deadline=mutant.deadline)
    finally:
        path.write_text(original)
    failed = [case for case in outcome.cases if case.verdict != PASSED]
    told = "\n".join(f"{name_of(c)}: {c.verdict}: {c.text}" for c in failed)
    for case in outcome.cases:
        if case.verdict == PASSED:
            assert not named(case, mutant.fails), f"{name_of(case)} must fail\n{told}"
        else:
            assert named(case, (*mutant.fails, *mutant.may)), f"{name_of(case)} must pass: {case.text}"
            assert case.verdict in mutant.verdicts, f"{name_of(case)}: {case.verdict}: {case.text}"
    for name in mutant.fails:
        assert any(named(case, [name]) for case in outcome.cases), f"{name} means no check"
    # A printed cause is the right one; several ("cannot tell them apart") are honest if the right one is among them.
    for case in failed:
        if case.cause:
            right = any(sentence.startswith(mutant.causes) for sentence in case.cause)
            assert right, f"{name_of(case)} tells {case.cause}"
            assert case.cause[0] in case.text
        elif case.verdict == "wrong":
            assert case.text.endswith("cause unknown")
    for cause in mutant.causes:
        assert any(sentence.startswith(cause) for case in failed for sentence in case.cause), (
            f"nobody was told {cause!r}\n{told}"
        )


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31 - 1, 20261121])
def test_reference_has_full_marks(seed, week, student):
    _, runner = student
    outcome = run_checks(["week13"], weeks=[week], runner=runner, seed=seed, deadline=DEADLINE)
    assert outcome.full and outcome.earned == outcome.possible == 80, [c for c in outcome.cases if c.verdict != PASSED]
    assert sum(task.points for task in week.tasks) == 100


def test_released_week_scores_nothing_and_says_so(week, tmp_path):
    strip_folder(WEEK, tmp_path / WEEK.name)
    with LocalRunner(tmp_path) as runner:
        outcome = run_checks(["week13"], weeks=[week], runner=runner, seed=1, deadline=DEADLINE)
    assert outcome.earned == 0 and not outcome.full
    for case in outcome.cases:
        assert case.verdict == NOT_ATTEMPTED, f"{name_of(case)}: {case.verdict}: {case.text}"
        assert case.text.startswith(f"not attempted yet: Task {case.task}: ")


def test_traffic_is_at_most_a_third(week, student):
    _, runner = student
    outcome = run_checks(["13.2", "13.3", "13.4"], weeks=[week], runner=runner, seed=1, deadline=DEADLINE)
    for task in outcome.tasks:
        assert sum(c.possible for c in outcome.of(task.id) if "traffic" in c.test) * 3 <= task.points


def test_a_broken_file_costs_its_own_tasks_only(week, student):
    folder, runner = student
    path = folder / "timing.py"
    original = path.read_text()
    path.write_text("def broken(:\n")
    try:
        outcome = run_checks(["13.1", "13.5", "13.6"], weeks=[week], runner=runner, seed=1, deadline=DEADLINE)
    finally:
        path.write_text(original)
    for case in outcome.cases:
        assert (case.verdict == PASSED) == (case.task != "13.5"), f"{name_of(case)}: {case.text}"
        assert case.task != "13.5" or ("timing.py" in case.text and "SyntaxError" in case.text)
