"""Week 14's checks are themselves checked: every mutant fails a check that it names. On thread ranks by `tests.kills`,
whose record holds 200 seeds, what else fails, and the causes; hangs, crashes and one mutant of each task through the
real machinery too."""

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
    mutated.fails_what_it_must(mutant, outcome, PLAN)


@pytest.mark.parametrize("seed", [0, pytest.param(2**31 - 1, marks=pytest.mark.thorough)])
def test_reference_has_full_marks(seed, week, student):
    mutated.has_full_marks(week, student, seed, DEADLINE, points=85)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_mutant_on_one_seed():
    mutated.kills("14", "--seeds", "1", "--named", timeout=1500)


def test_the_record_of_kills_is_of_these_mutants():
    mutated.is_recorded("14")


@pytest.mark.thorough
def test_released_week_scores_nothing_and_says_so(week, tmp_path):
    mutated.scores_nothing(week, tmp_path, DEADLINE)
