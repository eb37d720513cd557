"""Every mutant of week 16 fails a check that it names: on thread ranks, and some through the real machinery."""

import pytest

from tests import mutated
from tests.judged import ROOT
from tests.kills import PLANS
from tests.mutants16 import MUTANTS
from tests.mutants16_stretch import MUTANTS as STRETCH

PLAN = PLANS["16"]
DEADLINE = 60.0  # seconds for a call, on a machine that may be busy with other things
week, student = mutated.fixtures(ROOT / PLAN.folder)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", mutated.sample([*MUTANTS, *STRETCH], PLAN), ids=lambda m: f"{m.task} {m.name}")
def test_mutant_through_the_real_machinery(mutant, week, student):
    outcome = mutated.checked([mutant.task], week, student, 16, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, mutated.results(outcome), PLAN)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_mutant_on_one_seed():
    mutated.kills("16", "--seeds", "1", "--named", timeout=1500)
