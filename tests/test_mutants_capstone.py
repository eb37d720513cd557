"""Every mutant of the capstone fails a check that it names: on thread ranks, and two through the real machinery."""

import pytest

from tests import mutated
from tests.judged import ROOT
from tests.kills import PLANS
from tests.mutants_capstone import MUTANTS

PLAN = PLANS["capstone"]
DEADLINE = 60.0  # seconds for a call, on a machine that may be busy with other things
REAL = [MUTANTS[0], next(m for m in MUTANTS if "crashed" in m.verdicts)]
week, student = mutated.fixtures(ROOT / PLAN.folder)


@pytest.mark.thorough
@pytest.mark.timeout(2600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_mutant_on_one_seed():
    mutated.kills("capstone", "--seeds", "1", "--jobs", "1", "--named", timeout=2500)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", REAL, ids=lambda m: f"{m.task} {m.name}")
def test_mutant_through_the_real_machinery(mutant, week, student):
    outcome = mutated.checked([mutant.task], week, student, 22, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, mutated.results(outcome), PLAN)
