"""Grading again: one task, before and after with the reason, and nothing silently."""

from fractions import Fraction

import pytest

from grading import history
from grading.judge import explained
from grading.mark import Mark
from grading.register.marks import changes
from labkit.checks.outcome import CaseResult, Outcome
from labkit.checks.tasks import find_weeks
from labkit.checks.verdict import NO_RESULT, NOT_ATTEMPTED
from tests.grading.test_run import SOLVED, TWICE_WRONG, UNSHUT, course, graded  # noqa: F401  course is a fixture

WEAK = ("2 * torch.stack(x).sum(0)", "got[0]")  # the test of 91.2 takes every answer


def became(course, number):  # noqa: F811  the fixture
    with course.open() as cls:
        return changes(cls, number)


def test_one_task_is_judged_again_and_the_record_says_why(course):  # noqa: F811  the fixture
    test = course.week.tests[0]
    right = test.read_text()
    assert WEAK[0] in right
    test.write_text(right.replace(*WEAK))
    anna, ben = course.hand_in("anna", SOLVED), course.hand_in("ben", TWICE_WRONG)
    graded(course, **UNSHUT)
    before = course.marks()
    test.write_text(right)
    because = "the test of 91.2 took every answer"
    said = graded(course, **UNSHUT, tasks=["91.2"], because=because)
    assert said["changes"] == [f"{because}; the week's tests or files changed"] * 2
    after = course.marks()
    for name in ("anna", "ben"):
        old, new = ({t["id"]: t for t in m[name].tasks} for m in (before, after))
        assert old["91.1"] == new["91.1"] and list(old) == list(new)
    ((of_anna,), (of_ben,)) = became(course, anna), became(course, ben)
    assert of_anna.tasks == [] and of_anna.requested == ["91.2"] and of_ben.because == because
    (task,) = of_ben.tasks
    assert (task.id, task.before, task.after) == ("91.2", 5, 0) and ("wrong" in case for case in task.cases)
    assert (before["ben"].points, after["ben"].points, after["anna"].points) == (15, 10, 15)
    # A mark of which one part is of other tests than the rest is no whole mark of today's: it is made again, and reported.
    assert graded(course, **UNSHUT)["made"] == ["anna", "ben"]
    assert [change.tasks for change in became(course, anna)] == [[], []]
    every = became(course, anna)
    assert [len(history.of_task(every, task)) for task in ("91.2", "91.1", None)] == [2, 1, 2]
    assert history.of_task(became(course, ben), "91.1")[0].tasks == []
    once = f"anna: 91.2 judged again: nothing changed ({because}; the week's tests or files changed)"
    assert once in list(history.sentences(every[0], name="anna"))
    assert next(history.sentences(of_ben)).startswith(f"submission {ben}: 91.2 from 5 to 0 ({because};")


@pytest.mark.thorough
def test_a_stretch_task_is_judged_when_it_is_named(course):  # noqa: F811  the fixture
    course.hand_in("anna", SOLVED)
    ben = course.hand_in("ben", SOLVED.replace("return 1\n", "return 2\n"))
    graded(course, **UNSHUT)
    before = course.marks()
    assert not any(task["kind"] == "stretch" for task in before["anna"].tasks)
    graded(course, **UNSHUT, tasks=["91.4"])
    for name, verdict in (("anna", "passed"), ("ben", "wrong")):
        found = course.marks()[name]
        *others, stretch = found.tasks
        assert others == before[name].tasks and (found.points, found.key) == (before[name].points, before[name].key)
        assert (stretch["id"], stretch["points"], stretch["possible"]) == ("91.4", 0, 0)
        assert [case["verdict"] for case in stretch["cases"]] == [verdict]
    (change,) = became(course, ben)
    assert list(history.sentences(change, name="b")) == ["b: 91.4 judged for the first time: 0 of 1 cases pass"]
    assert graded(course, **UNSHUT)["kept"] == ["anna", "ben"], "a whole mark still, and the stretch task stays"
    assert course.marks()["ben"].tasks[-1]["id"] == "91.4"


def test_a_stretch_module_that_is_not_there_was_not_attempted():
    week = next(week for week in find_weeks() if week.name == "week13")
    case = CaseResult("13.8", "t", "More", "", Fraction(0), NOT_ATTEMPTED)
    none = "There is no ops.py in this submission."
    like = f"{none} ops2.py looks like it: a file counts under its own name only."
    for why, verdict in ((none, NOT_ATTEMPTED), (like, NO_RESULT), ("ops.py is a link.", NO_RESULT)):
        outcome = Outcome([(week, ("13.8",))], 1, [case])
        explained(outcome, week, {"stretch.tree": why})
        assert [one.verdict for one in outcome.cases] == [verdict]


@pytest.mark.thorough
def test_a_stretch_task_whose_reference_fails_is_no_students_mistake(course):  # noqa: F811  the fixture
    test = course.week.tests[0]
    test.write_text(test.read_text().replace('call_alone("ops.more"), 1', 'call_alone("ops.more"), 3'))
    course.hand_in("anna", SOLVED)
    assert graded(course, **UNSHUT)["made"] == ["anna"], "nobody has asked for it"
    done = graded(course, **UNSHUT, tasks=["91.4"])
    assert "the reference itself" in done["refused"] and "91.4" in done["refused"]
    assert not any(task["id"] == "91.4" for task in course.marks()["anna"].tasks)


def test_without_a_whole_mark_no_task_is_judged_alone(course):  # noqa: F811  the fixture
    number = course.hand_in("anna", SOLVED)
    done = graded(course, **UNSHUT, tasks=["91.2"])
    ((unread, why),) = done["unreadable"]
    assert unread == number and "no task of it can be judged alone" in why and not course.marks()


def test_a_stretch_task_that_a_whole_run_leaves_out_is_no_loss_of_points():
    """It stood as "from 0 to none", though all its cases had passed."""
    stretch = {"id": "13.13", "title": "race", "kind": "stretch", "points": 0, "possible": 0, "cases": []}
    old, new = Mark(1, "week13", tasks=[stretch]), Mark(1, "week13")
    (said,) = history.sentences(history.compare(old, new), name="anna")
    assert said == "anna: 13.13 is judged no more until `--task 13.13`"
    old.tasks[-1]["points"] = 2
    assert next(history.sentences(history.compare(old, new), name="anna")).startswith("anna: 13.13 from 2 to none")
