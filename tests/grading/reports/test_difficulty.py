"""Tasks as questions: numbers of a class that is known."""

from __future__ import annotations

import random

import pytest

from grading.reports import class_page, difficulty
from grading.reports.difficulty import questions
from grading.reports.overview import overview
from grading.reports.standing import Standing
from labkit.checks.verdict import NO_RESULT
from tests.grading.reports.aclass import mark, scored
from tests.grading.reports.looking import assert_one_harmless_file, words


def student(name, shares, attempts=1):
    """One whose automatic tasks earn these shares of their points."""
    made = mark(name)
    for task in made.tasks:
        if task["id"] in shares:
            task["points"] = shares[task["id"]] * task["possible"]
    return Standing(scored(made), list(range(1, attempts + 1)))


def asked(week, standings):
    return {task.id: task for task in questions(overview(week, standings)).tasks}


def test_difficulty_and_discrimination_of_a_class_that_is_known(week):
    rng = random.Random(3)
    skill = [n / 39 for n in range(40)]
    rng.shuffle(skill)
    shares = [{"13.1": s, "13.2": s, "13.3": rng.random(), "13.4": s, "13.5": 1.0, "13.6": s} for s in skill]
    found = asked(week, [student(f"s{n}", own) for n, own in enumerate(shares)])
    assert found["13.2"].difficulty == pytest.approx(0.5) and found["13.5"].difficulty == 1
    assert found["13.2"].discrimination > 0.9 and found["13.2"].interval[0] > 0.8
    assert found["13.3"].interval[0] < 0 < found["13.3"].interval[1], "chance"
    assert found["13.5"].discrimination is None, "everybody has the same"
    assert not any(task.suspect for task in found.values())
    found = asked(week, [student(f"s{n}", {**own, "13.3": 1 - own["13.2"]}) for n, own in enumerate(shares)])
    assert found["13.3"].discrimination < -0.9 and found["13.3"].suspect and not found["13.2"].suspect


def test_what_was_lost_is_told_as_lost(week):
    page = words(class_page.html(overview(week, [student("anna", {"13.2": 0.7}), student("ben", {"13.2": 0.5})])))
    assert "those who tried lost most there, in the mean: 13.2" in page and "(40 % of the points lost" in page


def test_few_students_have_no_correlation(week):
    here = [student(f"s{n}", {"13.2": n / 9, "13.1": n / 9}) for n in range(difficulty.FEW - 1)]
    assert asked(week, here)["13.2"].discrimination is None


def test_what_was_not_tried_is_no_difficulty_and_no_misunderstanding(week):
    left = Standing(mark("left", blank=("13.2",)), [1])
    gone = mark("gone", missing={"collectives.py": ""})
    for task in gone.tasks:
        for case in task["cases"] if task["id"] in ("13.2", "13.3", "13.4") else ():
            case.update(verdict=NO_RESULT, points=0, text="There is no collectives.py in this hand-in.")
        task["points"] = 0 if task["id"] in ("13.2", "13.3", "13.4") else task["points"]
    here = [Standing(mark("full"), [1]), left, Standing(scored(gone), [1])]
    found = asked(week, here)
    assert (found["13.2"].tried, found["13.2"].difficulty) == (1, 1) and found["13.3"].tried == 2
    assert found["13.2"].causes == [] and overview(week, here).not_understood == []
    whole = {entry.title: entry.untried for entry in overview(week, here).behaviours if entry.task == "13.2"}
    assert whole and set(whole.values()) == {2}


def test_causes_are_told_by_task_and_counted_by_student(week):
    here = [Standing(mark(f"s{n}", "13.2 mean for sum"), [1]) for n in range(3)]
    here.append(Standing(mark("other", "13.2 off-by-one chunk"), [1]))
    (first, many), *_ = asked(week, here)["13.2"].causes
    assert many == 3 and "mean" in first
    assert [task.id for task in questions(overview(week, here)).again] == ["13.2"]


def test_attempts_against_points(week):
    here = [student(f"s{n}", {"13.1": 1 - n % 3 / 4}, attempts=3 - n % 3) for n in range(12)]
    found = questions(overview(week, here))
    assert [(attempts, many) for attempts, many, _ in found.by_attempts] == [(1, 4), (2, 4), (3, 4)]
    assert found.attempts == pytest.approx(1)


def test_the_page_shows_them_and_who_is_absent(week, klass):
    seen = overview(week, klass)
    seen.absent = ["<b>nobody", "dora"]
    text = class_page.html(seen)
    assert_one_harmless_file(text)
    assert "The tasks as questions" in text and "To teach again" in text
    assert "2 students handed nothing in: <b>nobody ; dora" in words(text)
