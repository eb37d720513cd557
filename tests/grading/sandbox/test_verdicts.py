"""Week 13 through the sandbox: the reference has full marks, the released week none, and mutants the verdicts and the
score that tests/mutants13.py intends for them. Week 15's stretch tasks, as `grade run week15 --task 15.8` judges them."""

from fractions import Fraction
from types import SimpleNamespace

import pytest

from grading.sandbox import runner
from grading.sandbox.call import End
from grading.sandbox.runner import SandboxRunner, theirs
from labkit.checks.runner import Reply
from labkit.checks.verdict import CRASHED, NOT_ATTEMPTED, PASSED
from tests.grading.sandbox.boxed import boxed
from tests.judged import named
from tests.kills import PLANS
from tests.mutant import Mutant
from tests.mutants13 import MUTANTS

# A rank in a sandbox has no torch.distributed to fall into: what is a forbidden call at home crashes here, alone too.
DISGUISE = "built-in collective in disguise"
SAMPLE = [  # one of every kind of ending, spread over the tasks
    "plain least squares", "off-by-one chunk", "deadlock order", "one rank crashes", "a rank ends its process",
    "nothing comes back", "endless loop", DISGUISE,
]  # fmt: skip
# Seconds for a call: the mutants that hang would take long at 8.
week13, week15 = boxed("week13_allreduce", 3.0), boxed("week15_tp_attention", 3.0)

MEETS = "return reduce_over_ranks({}, self.group)"
PLACES = {  # a mistake, whose line must be told
    "in a product that the check counts": ("15.5", "overlap", "backward", "dx = dy @ weight\n", "dx = dy @ weight.T\n"),
    "in what labkit refuses": (
        "15.6", "pipeline", "run_schedule", "group.isend(x.grad, p - 1)", "group.isend(None, p - 1)",
    ),
    "in the reference's part": (
        "15.2", "attention", "ParallelAttention.forward", MEETS.format("addend_BTD"), MEETS.format("None"),
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLE)
def test_mutant(week13, name):
    mutant = next(one for one in MUTANTS if one.name == name)
    outcome, intended = week13.mutant(mutant), Fraction(0)
    verdicts = {*mutant.verdicts, *([CRASHED] if name == DISGUISE else [])}
    for case in outcome.cases:
        test = case.test.rpartition("::")[2]
        must = named(test, mutant.fails)
        may = named(test, mutant.may) or (named(test, PLANS["13"].may) and not must)  # values are judged there too
        passed = case.verdict == PASSED
        right = (not passed if may else case.verdict in verdicts) if must else passed or may
        assert right, f"{case.behaviour}: {case.verdict}: {case.text}"
        intended += case.possible if passed else 0
    assert outcome.earned == intended


@pytest.mark.thorough
def test_the_reference_and_the_released_week(week13):
    assert week13.reference().earned == 80
    outcome = week13.released()
    assert outcome.earned == 0
    assert {case.verdict for case in outcome.cases} == {NOT_ATTEMPTED}


@pytest.mark.thorough
def test_the_reference_and_the_released_week_in_stretch_tasks(week15):
    stretch = [task.id for task in week15.week.tasks if task.kind == "stretch"]
    outcome = week15.reference(*stretch)
    assert outcome.full, [(case.behaviour, case.text) for case in outcome.cases if case.verdict != PASSED]
    outcome = week15.released(*stretch)
    assert {case.verdict for case in outcome.cases} == {NOT_ATTEMPTED}
    assert {case.task for case in outcome.cases} == set(stretch)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLACES)
def test_the_place_is_the_students_line(name, week15):
    task, module, where, right, wrong = PLACES[name]
    mutant, file = Mutant("", task, module, where, right, wrong), f"week15_tp_attention/{module}.py"
    text = mutant.apply(week15.source(module))
    number = next(number for number, line in enumerate(text.splitlines(), 1) if wrong.strip() in line)
    crashed = [case for case in week15.mutant(mutant).cases if case.verdict == "crashed" and case.cause]
    assert crashed, "a run of several ranks tells a cause"
    for case in crashed:
        assert f"({file}:{number})" in case.cause[0], case.text
        assert "/course/" not in case.text and "/reference/" not in case.text


def test_the_courses_files_are_named_as_such_and_a_path_of_the_students_own_stays(monkeypatch):
    assert theirs("at /course/week13_allreduce/simple.py:7") == "at the course's own week13_allreduce/simple.py:7"
    assert theirs("'/course/week13_allreduce/a.py'") == "'the course's own week13_allreduce/a.py'"
    for own in ("/home/me/course/week13_allreduce/a.py", "../course/a.py", "~/course/a.py", "my-/course/a.py"):
        assert theirs(f"no file '{own}'") == f"no file '{own}'"
    place = "/course/week13_allreduce/a.py:7"
    said = Reply(CRASHED, text=f"at {place}", cause=(f"rank 0 at {place}",))
    monkeypatch.setattr(runner, "failed_reply", lambda *args: said)
    job = SimpleNamespace(without=(), function="f")
    reply = object.__new__(SandboxRunner)._reply(End(CRASHED, autopsy=object()), job)
    assert all("the course's own week13_allreduce/a.py:7" in each for each in (reply.text, *reply.cause))
