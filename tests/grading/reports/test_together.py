"""What a group handed in is marked once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grading import judge, marks
from grading.intake.find import Entry
from grading.intake.policy import Rules
from grading.reports import standing
from grading.reports.by_hand import ByHand
from grading.reports.standing import Standing, standings
from grading.reports.together import same_hand_in, share, unequal
from labkit.checks.tasks import load_week
from tests.grading.reports.aclass import mark
from tests.grading.similar.variants import WEEK

TASK = "13.7"


@pytest.fixture(scope="module")
def week():
    return load_week(WEEK)


def member(name, points=None, *, group="Group A_70", of="same", **more):
    made = mark(name)
    made.group, made.submission, made.unanswered = group, of, []
    given = {TASK: ByHand(TASK, points, **{"of": (1, of), **more})} if points is not None or more else {}
    return Standing(made, [1], by_hand=given)


def totals(*members):
    share(members)
    return [one.by_hand[TASK].points if TASK in one.by_hand else None for one in members]


def test_what_one_member_was_given_the_others_have_with_its_comments():
    here = [member("anna", 7, comments=["Why?"]), member("ben"), member("cem", automatic=0.0)]
    assert totals(*here) == [7, 7, 7] and here[1].by_hand[TASK].comments == ["Why?"]
    assert here[0].by_hand[TASK] is not here[1].by_hand[TASK] and unequal(here) == []
    assert here[1].total == here[0].total is not None


def test_a_comment_that_keeps_the_groups_points_away_is_told():
    """Whoever moved into a group kept "B ok" of the group before, and stayed without points; nothing said why."""
    here = [member("anna", 7), member("ben", comments=["B ok"]), member("cem", automatic=0.0)]
    assert totals(*here) == [7, None, 7]
    (told,) = unequal(here)
    assert told.endswith(
        "ben none yet; cem 7 (a comment of their own stands there: ben; without it they have the group's)"
    )
    here = [member("anna", 7), member("ben", 5)]
    assert "comment" not in unequal(here)[0]


@pytest.mark.parametrize(
    "members, found",
    [
        ([member("anna", 7), member("ben", 5), member("cem")], [7, 5, None]),  # whose?
        ([member("anna", 7), member("ben", comments=["Late to the talk."])], [7, None]),
        ([member("anna", 7), member("ben", extra=1.0)], [7, None]),
        ([member("anna", 7, again=True), member("ben")], [7, None]),
        ([member("anna", 7), member("ben", of="another")], [7, None]),
        ([member("anna", 7), member("ben", group="Group B_71")], [7, None]),
        ([member("anna", 7, group=""), member("ben", group="")], [7, None]),  # a copy is no group
        ([member("anna", 7), member("ben", 7), member("cem")], [7, 7, 7]),
    ],
)
def test_whose_points_are_not_sure_stay_as_they_are(members, found):
    assert totals(*members) == found


@pytest.mark.parametrize("of", [(1, "older"), (2, "same"), None])
def test_points_of_an_earlier_hand_in_are_nobody_elses(of):
    """The group handed in again, and nothing was loaded yet: the others were complete with the old answer's points."""
    anna = member("anna", 7)
    anna.by_hand[TASK] = ByHand(TASK, 7, of=of)
    assert totals(anna, member("ben")) == [7, None]


def test_members_who_differ_are_told(week):
    here = [member("anna", 7), member("ben", 5), member("cem")]
    assert unequal(here) == ["Group A has different points for one hand-in, 13.7: anna 7; ben 5; cem none yet"]
    assert unequal([member("anna", 7, group=""), member("ben", 5, group="")]) == []


def test_a_mark_tells_whose_group_handed_it_in(week, tmp_path):
    entry = Entry("anna", 1, None, tmp_path, group="Group A_70")
    made = judge.failed(entry, "x", week, judge.Settings(1), "the machine is overloaded")
    marks.write(tmp_path, made)
    assert marks.read(marks.path_of(tmp_path, "week13", "anna", 1)).group == "Group A_70"


def test_the_class_is_read_so(week, tmp_path, monkeypatch):
    for name in ("anna", "ben"):
        marks.write(tmp_path / "marks", member(name).mark)
    monkeypatch.setattr(standing, "all_by_hand", lambda course, week: {"anna": {TASK: ByHand(TASK, 7, of=(1, "same"))}})
    assert [one.by_hand[TASK].points for one in standings(week, tmp_path / "marks", tmp_path)] == [7, 7]


def test_a_comment_is_told_of_whom_it_leaves_without_points_alone():
    here = [member("anna", 7, comments=["Good."]), member("ben", 5), member("cem", automatic=0.0)]
    assert totals(*here) == [7, 5, None]
    assert "comment" not in unequal(here)[0]


def test_who_counts_by_one_hand_in_are_those_of_one_group_whose_last_it_is(week, tmp_path):
    marks.write(tmp_path, replace(member("ben", group="", of="his own").mark, attempt=1))
    marks.write(tmp_path, replace(member("ben").mark, attempt=2))
    others = [member("anna"), member("cem", of="another"), *(member(name, group="") for name in ("dora", "emil"))]
    for one in others:
        marks.write(tmp_path, one.mark)
    alone = {name: [name] for name in ("cem", "dora", "emil")}
    assert same_hand_in(tmp_path, week, Rules()) == {"anna": ["anna", "ben"], "ben": ["ben", "anna"], **alone}


def test_a_comment_that_keeps_nothing_away_is_not_told():
    here = [member("anna", 7), member("ben", 5), member("cem", comments=["x"])]
    assert totals(*here) == [7, 5, None] and "without it" not in unequal(here)[0]
