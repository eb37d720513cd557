"""Every mutant of week 14 fails a check that it names: on thread ranks, and some through the real machinery."""

import pytest

from labkit.comm import processes
from tests import mutated
from tests.judged import ROOT
from tests.kills import PLANS
from tests.mutants14 import MUTANTS
from tests.mutants14_stretch import MUTANTS as STRETCH

PLAN = PLANS["14"]
DEADLINE = 30.0  # seconds for a call, on a machine that may be busy with other things
week, student = mutated.fixtures(ROOT / PLAN.folder)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", mutated.sample([*MUTANTS, *STRETCH], PLAN), ids=lambda m: f"{m.task} {m.name}")
def test_mutant_through_the_real_machinery(mutant, week, student, monkeypatch):
    # A deadlock is believed once it is certain, and certain it is at once: a dozen of them need not wait a second each.
    monkeypatch.setattr(processes, "STILL", 0.4)
    monkeypatch.setattr(processes, "LOOK", 0.1)
    outcome = mutated.checked([mutant.task], week, student, 14, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, mutated.results(outcome), PLAN)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_mutant_on_one_seed():
    mutated.kills("14", "--seeds", "1", "--named", timeout=1500)
