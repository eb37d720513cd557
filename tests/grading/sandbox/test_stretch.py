"""Week 15's stretch tasks through the sandbox, as `grade run week15 --task 15.8` judges them: their verdicts, and the
student's line is the place that is told."""

import pytest

from labkit.checks.verdict import NOT_ATTEMPTED
from tests.grading.sandbox.verdicts import boxed
from tests.mutant import Mutant

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


week15 = boxed("week15_tp_attention")


def stretch(week15):
    return [task.id for task in week15.week.tasks if task.kind == "stretch"]


@pytest.mark.thorough
def test_the_reference_passes_and_the_released_week_is_not_attempted(week15):
    outcome = week15.reference(*stretch(week15))
    assert outcome.full, [(case.behaviour, case.text) for case in outcome.cases if case.verdict != "passed"]
    outcome = week15.released(*stretch(week15))
    assert {case.verdict for case in outcome.cases} == {NOT_ATTEMPTED}
    assert {case.task for case in outcome.cases} == set(stretch(week15))


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
