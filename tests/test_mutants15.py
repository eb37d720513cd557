"""Every mutant of week 15 fails a check that it names: on thread ranks, and some through the real machinery."""

import pytest

from labkit.checks.verdict import PASSED
from tests import mutated
from tests.judged import ROOT
from tests.kills import PLANS
from tests.mutants15 import MUTANTS
from tests.mutants15_stretch import MUTANTS as STRETCH

PLAN = PLANS["15"]
WEEK = ROOT / PLAN.folder
DEADLINE = 30.0  # seconds for a call, on a machine that may be busy with other things
week, student = mutated.fixtures(WEEK)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
@pytest.mark.parametrize("task", sorted({mutant.task for mutant in PLAN.mutants}))
def test_every_mutant_on_one_seed(task):
    mutated.kills("15", "--seeds", "1", "--named", "--jobs", "1", "--task", task, timeout=1500)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", mutated.sample([*MUTANTS, *STRETCH], PLAN), ids=lambda m: f"{m.task} {m.name}")
def test_mutant_through_the_real_machinery(mutant, week, student):
    outcome = mutated.checked([mutant.task], week, student, 15, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, mutated.results(outcome), PLAN)


def test_no_mistake_counts_twice(week, student):
    """With linears.py broken, only 15.1 loses points."""
    mutant = next(m for m in MUTANTS if m.name == "reduce forgets to sum")
    outcome = mutated.checked(["15.2", "15.4"], week, student, 1, DEADLINE, mutant)
    assert outcome.full, [c for c in outcome.cases if c.verdict != PASSED]
