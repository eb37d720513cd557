"""The capstone's checks are themselves checked: every mutant fails a check that it names. On thread ranks by `tests.kills`,
which without `--named` also sees what else fails, and the causes; crashes and one mutant through the real machinery
too."""

import pytest

from labkit.checks.verdict import PASSED
from tests import mutated
from tests.judged import ROOT
from tests.kills import PLANS
from tests.mutants_capstone import MUTANTS

PLAN = PLANS["capstone"]
WEEK = ROOT / PLAN.folder
DEADLINE = 60.0  # seconds for a call, on a machine that may be busy with other things
REAL = [MUTANTS[0], next(m for m in MUTANTS if "crashed" in m.verdicts)]
week, student = mutated.fixtures(WEEK)


@pytest.mark.thorough
@pytest.mark.timeout(2600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_mutant_on_one_seed():
    mutated.kills("capstone", "--seeds", "1", "--jobs", "1", "--named", timeout=2500)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", REAL, ids=lambda m: f"{m.task} {m.name}")
def test_mutant_through_the_real_machinery(mutant, week, student):
    outcome = mutated.checked([mutant.task], week, student, 22, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, outcome, PLAN)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [22, pytest.param(2**31 - 1, marks=pytest.mark.thorough)])
def test_reference_has_full_marks(seed, week, student):
    """Of C.1 and C.2; C.3 starts torchrun, and has tests/test_mutants_survive.py."""
    tasks = ["C.1", "C.2"]
    outcome = mutated.checked(tasks, week, student, seed, DEADLINE)
    points = sum(week.task(name).points for name in tasks)
    assert outcome.full and outcome.earned == points, [c for c in outcome.cases if c.verdict != PASSED]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_released_capstone_scores_nothing_and_says_so(week, tmp_path):
    mutated.scores_nothing(week, tmp_path, DEADLINE)
