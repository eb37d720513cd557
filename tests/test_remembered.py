"""A table of answers, kept from an earlier run, earns nothing: what a case asks comes from the seed, and is not asked
again with another one."""

from pathlib import Path

import pytest

from labkit.checks import load_week, run_checks, values
from labkit.checks.runner import Job, Reply
from labkit.checks.verdict import NO_RESULT

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]
# What has no data to draw: a ring of one rank, defaults, and a virtual clock's steps.
FIXED = {
    "week13_allreduce": {"cost_model.naive_all_reduce_cost", "scenarios.timed", "scenarios.timed_by_default"},
    "week14_fsdp": set(),
    "week15_tp_attention": set(),
    "week16_fp8": set(),
}


class Recorder:
    """A runner that answers nothing, and keeps what each case asks first."""

    def __init__(self):
        self.questions: dict[bytes, str] = {}

    def run(self, job: Job) -> Reply:
        plain = {
            name: value if isinstance(value, (int, float, str)) else repr(value) for name, value in job.kwargs.items()
        }
        question = values.pack((job.function, list(map(list, job.inputs)), plain))
        self.questions[question] = job.function
        return Reply(NO_RESULT, text="nothing")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", FIXED)
def test_no_question_comes_twice(name):
    week, questions = load_week(ROOT / name), []
    for seed in (1, 2):
        runner = Recorder()
        outcome = run_checks([week.name], weeks=[week], runner=runner, seed=seed)
        assert outcome.earned == 0 and not outcome.faults
        questions.append(runner.questions)
    assert len(questions[0]) > 30
    again = {function for question, function in questions[0].items() if question in questions[1]}
    assert again <= FIXED[name], again
