"""Every mutant of week 13 fails a check that it names: on thread ranks, and some through the real machinery."""

import pytest

from labkit.checks.verdict import PASSED
from labkit.comm import processes
from tests import mutants13, mutants13_blind, mutants13_stretch, mutated
from tests.judged import ROOT
from tests.kills import PLANS

PLAN = PLANS["13"]
DEADLINE = 20.0  # seconds for a call, on a machine that may be busy with other things
week, student = mutated.fixtures(ROOT / PLAN.folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mutant", mutated.sample([*mutants13.MUTANTS, *mutants13_stretch.MUTANTS], PLAN), ids=lambda m: f"{m.task} {m.name}"
)
def test_mutant_through_the_real_machinery(mutant, week, student, monkeypatch):
    # A deadlock is believed once it is certain, and certain it is at once: a dozen of them need not wait a second each.
    monkeypatch.setattr(processes, "STILL", 0.4)
    monkeypatch.setattr(processes, "LOOK", 0.1)
    tasks = [mutant.task, *(t.id for t in week.tasks if mutant.cascade and mutant.task in t.stands_on)]
    outcome = mutated.checked(tasks, week, student, 13, DEADLINE, mutant)
    mutated.fails_what_it_must(mutant, mutated.results(outcome), PLAN)


def test_the_value_without_hops_costs_its_own_point_only(week, student):
    """A search that begins without hops goes by that value, and is judged with the right one."""
    (mutant,) = (m for m in mutants13_blind.MUTANTS if m.name == "no hops are no bandwidth")
    outcome = mutated.checked(["13.6"], week, student, 13, DEADLINE, mutant)
    assert [case.test.rpartition("::")[2] for case in outcome.cases if case.verdict != PASSED] == ["test_no_hops"]
    assert outcome.possible - outcome.earned == 1


def test_traffic_is_at_most_a_third(week, student):
    outcome = mutated.checked(["13.2", "13.3", "13.4"], week, student, 1, DEADLINE)
    for task in outcome.tasks:
        assert sum(c.possible for c in outcome.of(task.id) if "traffic" in c.test) * 3 <= task.points


def test_a_broken_file_costs_its_own_tasks_only(week, student):
    with mutated.edited(student, "timing", lambda text: "def broken(:\n"):
        outcome = mutated.checked(["13.1", "13.5", "13.6"], week, student, 1, DEADLINE)
    for case in outcome.cases:
        assert (case.verdict == PASSED) == (case.task != "13.5"), f"{case.test}: {case.text}"
        assert case.task != "13.5" or ("timing.py" in case.text and "SyntaxError" in case.text)


@pytest.mark.thorough
@pytest.mark.timeout(1600)  # of a hang, on a machine that may give it a tenth of a core
def test_every_wrong_answer_fails_and_reports_no_wrong_cause():
    """All of them on thread ranks, on one seed; 200 are on record."""
    mutated.kills("13", "--seeds", "1", "--named", timeout=1500)
