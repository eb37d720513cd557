"""Tasks as questions: numbers of a class that is known."""

import random

import pytest

from grading.publish import difficulty
from grading.publish.difficulty import questions
from grading.publish.overview import overview
from labkit.checks.verdict import NO_RESULT
from tests.grading.publish.aclass import WEEK, scored, stand


def student(name, shares, attempts=1):
    """One whose automatic tasks earn these shares of their points."""
    one = stand(name, attempts=attempts)
    for task in one.tasks:
        if task["id"] in shares:
            task["points"] = shares[task["id"]] * task["possible"]
    scored(one.mark)
    return one


def asked(standings):
    return {task.id: task for task in questions(overview(WEEK, standings)).tasks}


def test_difficulty_and_discrimination_of_a_class_that_is_known():
    rng = random.Random(3)
    skill = [n / 39 for n in range(40)]
    rng.shuffle(skill)
    shares = [{"13.1": s, "13.2": s, "13.3": rng.random(), "13.4": s, "13.5": 1.0, "13.6": s} for s in skill]
    found = asked([student(f"s{n}", own) for n, own in enumerate(shares)])
    assert found["13.2"].difficulty == pytest.approx(0.5) and found["13.5"].difficulty == 1
    assert found["13.2"].discrimination > 0.9 and found["13.2"].interval[0] > 0.8
    assert found["13.3"].interval[0] < 0 < found["13.3"].interval[1], "chance"
    assert found["13.5"].discrimination is None, "everybody has the same"
    assert not any(task.suspect for task in found.values())
    found = asked([student(f"s{n}", {**own, "13.3": 1 - own["13.2"]}) for n, own in enumerate(shares)])
    assert found["13.3"].discrimination < -0.9 and found["13.3"].suspect and not found["13.2"].suspect
    found = asked([student(f"s{n}", dict.fromkeys(("13.1", "13.2", "13.4"), n % 2)) for n in range(12)])
    assert found["13.2"].discrimination > 0.9, "who has nothing counts"


def test_what_was_lost_is_shown_as_lost_and_few_students_have_no_correlation():
    here = [student(f"s{n}", {"13.2": n / 9, "13.1": n / 9}) for n in range(difficulty.FEW - 1)]
    assert asked(here)["13.2"].discrimination is None


def test_what_was_not_tried_is_no_difficulty_and_no_misunderstanding():
    left = stand("left", blank=("13.2",))
    gone = stand("gone", missing={"collectives.py": ""})
    for task in gone.tasks:
        for case in task["cases"] if task["id"] in ("13.2", "13.3", "13.4") else ():
            case.update(verdict=NO_RESULT, points=0, text="There is no collectives.py in this submission.")
        task["points"] = 0 if task["id"] in ("13.2", "13.3", "13.4") else task["points"]
    scored(gone.mark)
    here = [stand("full"), left, gone]
    found = asked(here)
    assert (found["13.2"].tried, found["13.2"].difficulty) == (1, 1) and found["13.3"].tried == 2
    assert found["13.2"].causes == [] and overview(WEEK, here).not_understood == []
    whole = {entry.title: entry.untried for entry in overview(WEEK, here).behaviours if entry.task == "13.2"}
    assert whole and set(whole.values()) == {2}


def test_causes_are_listed_by_task_and_counted_by_student():
    here = [stand(f"s{n}", "13.2 mean for sum") for n in range(3)]
    here.append(stand("other", "13.2 off-by-one chunk"))
    (first, many), *_ = asked(here)["13.2"].causes
    assert many == 3 and "mean" in first
    assert [task.id for task in questions(overview(WEEK, here)).again] == ["13.2"]


def test_attempts_against_points():
    here = [student(f"s{n}", {"13.1": 1 - n % 3 / 4}, attempts=3 - n % 3) for n in range(12)]
    found = questions(overview(WEEK, here))
    assert [(attempts, many) for attempts, many, _ in found.by_attempts] == [(1, 4), (2, 4), (3, 4)]
    assert found.attempts == pytest.approx(1)
