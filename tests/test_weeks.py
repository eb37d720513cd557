"""What the checks of every week make of the reference and of a released week; and the records of their mutants."""

import json

import pytest

from labkit.checks import run_checks
from labkit.checks.runner import LocalRunner
from labkit.checks.verdict import NOT_ATTEMPTED, PASSED
from tests.judged import ROOT
from tests.kills import PLANS
from tests.stripped import strip_folder

DEADLINE = 60.0  # seconds for a call, on a machine that may be busy with other things
# What the checks give points for. C.3 starts torchrun, and has tests/test_mutants_survive.py.
GRADED = [("13", ["week13"], 80), ("14", ["week14"], 85), ("15", ["week15"], 90), ("16", ["week16"], 90)]
GRADED += [("capstone", ["C.1", "C.2"], 45)]
WEEKS = ["13", "14", "15", "16"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, pytest.param(2**31 - 1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("number, tasks, points", GRADED, ids=PLANS)
def test_the_reference_has_full_marks(number, tasks, points, seed):
    week = PLANS[number].week
    with LocalRunner(ROOT) as runner:
        outcome = run_checks(tasks, weeks=[week], runner=runner, seed=seed, deadline=DEADLINE)
    wrong = [case for case in outcome.cases if case.verdict != PASSED]
    assert outcome.full and outcome.earned == outcome.possible == points, wrong
    assert sum(task.points for task in week.tasks) == 100


@pytest.mark.parametrize("number", ["13", *(pytest.param(n, marks=pytest.mark.thorough) for n in WEEKS[1:])])
def test_a_released_week_scores_nothing_and_says_so(number, tmp_path):
    """The capstone too: tests/grading/test_student_tree.py, which is thorough."""
    week = PLANS[number].week
    strip_folder(week.folder, tmp_path / week.package)
    with LocalRunner(tmp_path) as runner:
        outcome = run_checks([week.name], weeks=[week], runner=runner, seed=1, deadline=DEADLINE)
    assert outcome.earned == 0 and not outcome.full
    for case in outcome.cases:
        assert case.verdict == NOT_ATTEMPTED, f"{case.test}: {case.verdict}: {case.text}"
        assert case.text.startswith(f"not attempted yet: Task {case.task}: ")


@pytest.mark.parametrize("number", WEEKS)
def test_the_record_of_kills_is_of_these_mutants(number):
    """Each failed on every one of its seeds, the reference on none."""
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
