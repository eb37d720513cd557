"""Where a student stands: which attempt, what is sure, what a person gave (with nbgrader itself, if it is here)."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from grading.intake.policy import Rules
from grading.marks import write
from grading.reports.by_hand import ByHand, all_by_hand
from grading.reports.feedback import feedback
from grading.reports.one_week import again
from grading.reports.standing import Standing, standings
from grading.reports.status import status
from labkit.checks.tasks import find_week, find_weeks
from labkit.checks.verdict import FAULT
from labkit.errors import LabError
from tests.grading.reports.aclass import mark, spoil

ZOE = 'O\'Neill, "Zoë"'  # nbgrader knows her by another id


def hand_comments(course, week, student):
    return list(all_by_hand(course, week).get(student, {}).values())


def test_the_last_attempt_counts_unless_the_course_says_otherwise(week, tmp_path):
    for made in (
        mark("anna", attempt=1),
        mark("anna", "13.5 GB/s", attempt=2),
        mark("anna", "13.4 NaN", attempt=10),
        mark("ben"),
    ):
        write(tmp_path, made)
    anna, ben = standings(week, tmp_path, tmp_path)
    assert (anna.mark.attempt, anna.attempts, anna.factor) == (10, [1, 2, 10], 1.0)
    assert (ben.student, ben.attempts) == ("ben", [1])


def test_the_course_s_rules_choose_and_take_off(week, tmp_path):
    write(tmp_path, mark("anna", attempt=1))
    write(tmp_path, mark("anna", "13.5 GB/s", attempt=2, received="2026-11-21T12:00:00+01:00"))
    rules = Rules.model_validate(
        {
            "attempts": {"policy": "best"},
            "late": {"per_day": 0.25},
            "deadlines": {"week13": datetime(2026, 11, 20, 12, tzinfo=UTC)},
        }
    )
    (anna,) = standings(week, tmp_path, tmp_path, rules)
    assert (anna.mark.attempt, anna.factor) == (1, 0.75) and "25 % of the points are taken off" in anna.rule
    anna.by_hand["13.7"] = ByHand("13.7", 20)
    assert anna.total == 75


def test_of_a_cancelled_task_everybody_who_handed_in_has_all_points(week, tmp_path):
    """The wrong answer, the right one, the hole, the grader's own failure, the written one that nobody has graded."""
    faulty = spoil(mark("dora", complete=False), "test_all_reduce_op[mean]", FAULT, "the check itself failed")
    for made in (mark("anna", "13.4 NaN"), mark("ben"), mark("cleo", blank=("13.4",)), faulty, mark("eva")):
        write(tmp_path, made)
    rules = Rules(full_points={"week13": ["13.4", "13.7"]})
    assert {s.student: s.total for s in standings(week, tmp_path, tmp_path)} == dict.fromkeys(
        ["anna", "ben", "cleo", "dora", "eva"]
    )
    here = {s.student: s for s in standings(week, tmp_path, tmp_path, rules)}
    assert [here[name].total for name in here] == [100] * 5
    (task,) = (task for task in here["anna"].mark.tasks if task["id"] == "13.4")
    assert task["points"] < task["possible"] == here["anna"].points(task), "the mark itself stays"
    page = feedback(week, here["anna"])
    assert "decided by a person" in page and page.count("Everybody who handed in has all points of this task.") == 2
    found = status(week, tmp_path / "none", tmp_path, tmp_path, rules, datetime(2026, 12, 1, tzinfo=UTC))
    (told,) = (one for one in found.told if "all points" in one)
    assert told == "Everybody who handed in has all points of 13.4 and 13.7: [full_points] in course.toml"
    assert not [one for one in found.told if "in place of the checks" in one], "not once for each student"


def test_status_names_the_automatic_points_that_a_person_gave(week, tmp_path, monkeypatch):
    write(tmp_path, mark("anna"))
    own = {"anna": {"13.5": ByHand("13.5", 2), "13.7": ByHand("13.7", 9)}}
    monkeypatch.setattr("grading.reports.standing.all_by_hand", lambda course, week: own)
    found = status(week, tmp_path / "none", tmp_path, tmp_path, Rules(), datetime(2026, 12, 1, tzinfo=UTC))
    (task,) = (task for task in mark("anna").tasks if task["id"] == "13.5")
    told = f"Points by hand in place of the checks': anna 13.5: 2, the checks give {task['points']}"
    assert told in found.told, "13.7 is a person's to give"


def test_points_by_hand_do_not_weigh_less_than_all_of_them(week, tmp_path, monkeypatch):
    write(tmp_path, mark("anna"))
    own = ByHand("13.7", 3, extra=1, again=True, comments=["Why?"])
    monkeypatch.setattr("grading.reports.standing.all_by_hand", lambda course, week: {"anna": {"13.7": own}})
    (anna,) = standings(week, tmp_path, tmp_path, Rules(full_points={"week13": ["13.7"]}))
    assert anna.total == 101 and anna.state == "complete" and anna.by_hand["13.7"].comments[0] == "Why?"


def test_no_marks_is_one_sentence(week, tmp_path):
    with pytest.raises(LabError, match="grade run week13"):
        standings(week, tmp_path / "none", tmp_path)
    (tmp_path / "marks" / "week13" / "anna").mkdir(parents=True)
    with pytest.raises(LabError, match="grade run week13"):
        standings(week, tmp_path / "marks", tmp_path)
    with pytest.raises(LabError, match="did you mean 'week13'"):
        find_week("week133")


def test_a_fault_is_in_doubt_until_a_person_gives_the_points(week):
    faulty = spoil(mark("a", complete=False), "test_algbw", FAULT, "the check itself failed")
    made = Standing(faulty, [1], by_hand={"13.7": ByHand("13.7", 20)})
    assert not made.settled and made.total is None and made.automatic == faulty.points < 80
    assert [task["id"] for task in faulty.tasks if made.doubtful(task)] == ["13.5"]
    made.by_hand["13.5"] = ByHand("13.5", 10)
    assert made.settled and made.total == 100 and made.state == "complete"


def test_points_by_hand_of_another_hand_in_are_told_until_it_is_loaded(week):
    """Grace handed in anew after her answer had 20 of 20: 100 points stood as complete, and nobody had read it."""
    second = replace(mark("grace", attempt=2), submission="b")

    def now(task="13.7", points=20, **of):
        return Standing(second, [1, 2], by_hand={task: ByHand(task, points, **of)})

    for of in ((1, "a"), (1, ""), (2, "a")):  # another attempt; of before hashes were kept; another file of this one
        assert now(of=of).before == ["13.7"] and now(of=of).state == "by hand: of before `grade load`"
        assert now(of=of).total is None
        assert again([now(of=of)]) == ["points by hand are of an earlier hand-in, `grade load` first: grace, 13.7"]
    for of in ((2, "b"), (2, ""), None):
        assert now(of=of).before == [] and now(of=of).state == "complete" and again([now(of=of)]) == []
        assert now(of=of).total == 100 and now(of=of, again=True).total is None
    assert len(again([now(of=(1, "a"), again=True)])) == 1, "one sentence: the load comes first"
    earned = next(task["points"] for task in second.tasks if task["id"] == "13.2")
    for automatic, before in ((earned - 1, ["13.2"]), (earned, []), (None, [])):
        assert now("13.2", 3, of=(2, "b"), automatic=automatic).before == before
    assert now(points=None, of=(1, "a")).before == [], "nothing was given: nothing is old"


def test_a_mark_that_failed_as_a_whole_is_in_doubt_everywhere(week):
    made = Standing(mark("a", complete=False), [1])
    assert [task["id"] for task in made.mark.tasks if made.doubtful(task)] == [f"13.{n}" for n in range(1, 7)]


def test_extra_points_come_on_top_of_the_mark_s(week):
    given = {"13.1": ByHand("13.1", extra=2), "13.7": ByHand("13.7", 10, 1)}
    made = Standing(mark("a", "13.5 GB/s"), [1], 0.5, by_hand=given)
    assert made.automatic == round(made.mark.points + 2, 2) and made.given == 11
    assert made.total == round((made.mark.points + 13) / 2, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The small course, its directory, and three students loaded, two of them graded by hand."""
    from grading.gradebook.course import gradebook_id
    from grading.gradebook.init import init
    from grading.gradebook.load import load
    from labkit.checks.tasks import find_week
    from tests.grading.gradebook.samples import by_hand, make, put_marks
    from tests.grading.gradebook.samples import mark as small

    root = tmp_path_factory.mktemp("hand")
    source = make(root / "source")
    course = init(root / "course", source=source).course
    week = find_week("week91", find_weeks(source))
    put_marks(root / "marks", small("anna"), small(ZOE), small("c", {"91.1": 1}))
    load(course, week, root / "marks")
    by_hand(course, "anna", "task-91-2", 5, "well said\n<b>but short</b>")
    by_hand(course, "c", "task-91-1", 3)
    by_hand(course, gradebook_id(ZOE), "task-91-2", comment="nearly")
    with course.gradebook() as book:
        book.find_grade("task-91-3", "lab", "week91", gradebook_id(ZOE)).extra_credit = 1.5
        book.db.commit()
    return root, week


@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed")
class TestWithNbgrader:
    def test_points_and_comments_by_hand(self, made):
        root, week = made
        (given,) = hand_comments(root / "course", week, "anna")
        assert given == ByHand("91.2", 5, of=(1, ""), comments=["well said\n<b>but short</b>"])
        assert hand_comments(root / "course", week, "nobody") == []
        assert hand_comments(root / "course", week, ZOE) == [
            ByHand("91.3", None, 1.5, automatic=2, of=(1, "")),
            ByHand("91.2", comments=["nearly"]),
        ]
        assert hand_comments(root / "course" / "source", week, "anna") == [given], "from a folder inside"

    def test_they_complete_the_total(self, made):
        root, week = made
        by_name = {s.student: s for s in standings(week, root / "marks", root / "course")}
        assert by_name["anna"].total == 11 and by_name["anna"].state == "complete"
        assert by_name[ZOE].state == "to be graded by hand" and by_name[ZOE].automatic == 7.5
        assert by_name["c"].automatic == 3, "a person overruled 1 of 4, and 91.3 has none"

    @pytest.mark.thorough
    def test_what_came_after_the_load_is_told_and_the_load_asks_to_look(self, tmp_path):
        from grading.gradebook.init import init
        from grading.gradebook.load import load
        from tests.grading.gradebook.samples import by_hand, handed, make, put_marks
        from tests.grading.gradebook.samples import mark as small

        source = make(tmp_path / "source")
        course, week = init(tmp_path / "course", source=source).course, find_week("week91", find_weeks(source))
        put_marks(tmp_path / "marks", small("grace", submission="a"))
        load(course, week, tmp_path / "marks", files=lambda mark: handed("Because."))
        by_hand(course, "grace", "task-91-2", 6)

        def state():
            (grace,) = standings(week, tmp_path / "marks", tmp_path / "course")
            return grace.state

        assert state() == "complete"
        put_marks(tmp_path / "marks", small("grace", attempt=2, submission="b"))
        assert state() == "by hand: of before `grade load`"
        load(course, week, tmp_path / "marks", files=lambda mark: handed("I withdraw everything."))
        assert state() == "to be looked at again by hand"
        by_hand(course, "grace", "task-91-2", 1)
        assert state() == "complete"
        put_marks(tmp_path / "marks", small("grace", attempt=2, submission="c"))  # `grade rename`: another file counts
        assert state() == "by hand: of before `grade load`"

    def test_no_course_directory_and_no_nbgrader_are_no_error(self, made, tmp_path, monkeypatch):
        root, week = made
        assert hand_comments(tmp_path, week, "anna") == []
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert hand_comments(root / "course", week, "anna") == []

    def test_reading_changes_nothing(self, made):
        from grading.gradebook.course import open_course

        root, week = made
        base = root / "course" / "gradebook.db"
        before = base.read_bytes()
        hand_comments(root / "course", week, "anna")
        assert base.read_bytes() == before and open_course(root / "course").id
