"""Week 13 through the sandbox: the reference has full marks, the released week none, and mutants the score that
tests/mutants13.py intends for them. (`verdicts.py` beside this runs all of them, several times and under load.)"""

from types import SimpleNamespace

import pytest

from grading.sandbox import runner
from grading.sandbox.call import End
from grading.sandbox.runner import SandboxRunner, theirs
from labkit.checks.runner import Reply
from labkit.checks.verdict import CRASHED
from tests.grading.sandbox.verdicts import boxed, differences
from tests.mutants13 import MUTANTS

# One of every kind of ending, spread over the tasks.
SAMPLE = [
    "13.1 plain least squares", "13.2 off-by-one chunk", "13.2 deadlock order", "13.2 one rank crashes",
    "13.2 a rank ends its process", "13.2 nothing comes back", "13.3 endless loop",
    "13.4 built-in collective in disguise",
]  # fmt: skip
ALL = {f"{one.task} {one.name}": one for one in MUTANTS}
week13 = boxed("week13_allreduce")


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLE)
def test_mutant(week13, name):
    assert differences(ALL[name], week13.mutant(ALL[name])) == []


def test_the_reference_and_the_released_week(week13):
    assert week13.reference().earned == 80
    outcome = week13.released()
    assert outcome.earned == 0
    assert {case.verdict for case in outcome.cases} == {"not attempted"}


def test_the_courses_files_are_named_as_such_and_a_path_of_the_students_own_stays():
    assert theirs("at /course/week13_allreduce/simple.py:7") == "at the course's own week13_allreduce/simple.py:7"
    assert theirs("'/course/week13_allreduce/a.py'") == "'the course's own week13_allreduce/a.py'"
    for own in ("/home/me/course/week13_allreduce/a.py", "../course/a.py", "~/course/a.py", "my-/course/a.py"):
        assert theirs(f"no file '{own}'") == f"no file '{own}'"


def test_a_diagnosis_names_the_courses_files_in_its_causes_too(monkeypatch):
    place = "/course/week13_allreduce/a.py:7"
    said = Reply(CRASHED, text=f"at {place}", cause=(f"rank 0 at {place}",))
    monkeypatch.setattr(runner, "failed_reply", lambda *args: said)
    job = SimpleNamespace(without=(), function="f")
    reply = object.__new__(SandboxRunner)._reply(End(CRASHED, autopsy=object()), job)
    assert all("the course's own week13_allreduce/a.py:7" in each for each in (reply.text, *reply.cause))
