"""Which attempt counts, what lateness costs, and where that puts everybody."""

from datetime import timedelta, timezone

import pytest

from grading.intake.arrival import GIVEN, Key
from grading.register.classes import open_class
from grading.register.counting import JUST_AFTER, handed_in, lateness
from grading.register.deadlines import closes, due, extend, refuse_while_open
from grading.register.marks import HandMark, add_hand_mark
from grading.register.people import resolve
from grading.register.problems import AGAIN, ELSEWHERE, INEXACT, POORER, UNTIMED, WITHDRAWN, problems
from grading.register.standing import BY_HAND, COMPLETE, EXCUSED, FAULTY, MISSING, NOT_GRADED, NOT_YET, standings
from grading.register.submissions import attempt, retime, withdraw
from labkit.errors import LabError
from tests.grading.register.storing import AFTER, BEFORE, DEADLINE, DUE, WEEK, WEEKS, canvas, give_mark, hand_in, opened

LATE = "[late]\ngrace_minutes = 10\nper_day = 0.1\nmost = 0.25\ncloses_after_days = 5\n"
BEST = '[attempts]\npolicy = "best"\n'
ANNA, SEAN, JANE = canvas("mülleranna", "4501"), canvas("obriensean", "4502"), canvas("doejane", "4503")


def after(hours):
    return DUE + timedelta(hours=hours)


def of(cls, key="anna@x.org", now=AFTER):
    person = resolve(cls, key)
    return next(one for one in standings(cls, WEEK, now) if one.person == person)


def kinds(cls):
    return [one.kind for one in problems(cls, WEEK)]


@pytest.mark.parametrize(
    "hours, factor, late",
    [
        (-1, 1, False),
        (0, 1, False),
        (5 / 60, 1, False),  # within the grace it is in time for everything: status, factor and sentence
        (10 / 60, 1, False),
        (11 / 60, 0.9, True),
        (24, 0.9, True),
        (24.1, 0.8, True),
        (49, 0.75, True),
        (120, 0.75, True),
        (120.1, 0, True),
    ],
)
def test_lateness(tmp_path, hours, factor, late):
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:
        found = lateness(cls.rules, after(hours), DUE)
        assert (found.factor, found.late, bool(found.sentence)) == (factor, late, late)
        assert lateness(cls.rules, None, DUE).factor == lateness(cls.rules, after(hours), None).factor == 1
        india = after(hours).astimezone(timezone(timedelta(hours=5, minutes=30)))  # the moment counts, however written
        hand_in(cls, "a", ANNA, received=india)
        standing = of(cls)
        assert standing.counted.received == after(hours)
        assert (standing.factor, standing.late, standing.rule) == (factor, late, found.sentence)


def test_an_extension_moves_one_persons_deadline_and_the_later_of_two_holds(tmp_path):
    own = (("S001", 48), ('"anna@x.org"', 24))  # one person by two names
    rules = "".join(f"[extensions.{name}]\nweek13 = {after(hours).isoformat()}\n" for name, hours in own)
    with opened(tmp_path / "c", rules=DEADLINE + LATE + rules) as cls:
        for label, keys in (("a", ANNA), ("s", SEAN)):
            hand_in(cls, label, keys, received=after(47))
        assert of(cls).factor == 1 and of(cls, "S002").factor == 0.8
        anna = resolve(cls, "S001").id
        for granted, holds in ((50, 50), (40, 48), (60, 60), (None, 48)):  # the platform's newest word
            extend(cls, anna, "week13", after(granted) if granted else None)
            assert due(cls, anna, "week13") == after(holds)


def test_the_last_counts_by_time_not_by_number(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:
        second = hand_in(cls, "a", ANNA, b"second", received=BEFORE).id
        first = hand_in(cls, "a", ANNA, b"first", received=after(-9)).id
        assert of(cls).counted.submission.id == second and of(cls).counted.attempts == (first, second)
        withdraw(cls, [second])
        assert of(cls).counted.submission.id == first
        withdraw(cls, [second], undo=True)
        retime(cls, first, after(-0.5))
        assert of(cls).counted.submission.id == first and "Attempt 2 of 2 counts, the last." in of(cls).rule


def test_what_came_too_late_takes_the_place_of_no_other(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:
        early = hand_in(cls, "a", ANNA, b"early").id
        late = hand_in(cls, "a", ANNA, b"late", received=after(500)).id
        assert of(cls).counted.submission.id == early
        give_mark(cls, early, missing={"collectives.py": ""})
        give_mark(cls, late)
        assert POORER not in kinds(cls), "what it lacks, no earlier one has"
        withdraw(cls, [early])
        assert of(cls).counted.submission.id == late and (of(cls).factor, of(cls).total) == (0, 0)


def test_best_is_by_automatic_points_after_lateness_without_the_full_ones(tmp_path):
    rules = DEADLINE + LATE + BEST
    with opened(tmp_path / "c", rules=rules) as cls:
        early, late = hand_in(cls, "a", ANNA, b"1").id, hand_in(cls, "a", ANNA, b"2", received=after(5)).id
        give_mark(cls, early, 90)
        assert of(cls).state == NOT_GRADED and of(cls).total is None, "the other may be better"
        give_mark(cls, late, 99)
        assert of(cls).counted.submission.id == early and of(cls).total == 90
        give_mark(cls, late, 100)
        assert of(cls).counted.submission.id == early, "equal points after lateness: no better"
        other = hand_in(cls, "a", ANNA, b"3", received=after(-0.5)).id
        give_mark(cls, other, 90)
        assert of(cls).counted.submission.id == other, "of equals the later one"
    (tmp_path / "c" / "course.toml").write_text(f'{rules}[full_points]\nweek13 = ["13.2"]\n')
    with open_class(tmp_path / "c", WEEKS) as cls:
        assert of(cls).total == 100 and of(cls).counted.submission.id == other


def test_who_handed_in_nothing_is_missing_once_the_grace_is_over(tmp_path):
    rules = f"{DEADLINE}{LATE}[excused]\nweek13 = ['jane@x.org']\n"
    with opened(tmp_path / "c", rules=rules) as cls:
        assert [of(cls, now=after(hours)).state for hours in (0, 0.1, 0.2)] == [NOT_YET, NOT_YET, MISSING]
        assert of(cls, "jane@x.org").state == EXCUSED and of(cls).total is None
        number = hand_in(cls, "a", ANNA).id
        withdraw(cls, [number])
        assert of(cls).state == MISSING and WITHDRAWN in kinds(cls)


def test_canvas_marks_and_times(tmp_path):
    """A late mark without a time is the least that it can mean; a time of the whole download weighs less than it."""
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:

        def time_of(late, received=None, content=b"x"):
            number = hand_in(cls, "a", ANNA, content, received=received, late=late, timed=GIVEN).id
            found = handed_in(cls.rules, attempt(cls, number))
            withdraw(cls, [number])
            return found

        just_after = after(10 / 60) + JUST_AFTER
        assert time_of(True) == just_after and time_of(False, content=b"1") is None
        assert time_of(True, after(-9), b"2") == just_after and time_of(True, after(30), b"3") == after(30)
        assert time_of(False, after(30), b"4") == DUE and time_of(False, after(-3), b"5") == after(-3)
        assert time_of(None, after(30), b"6") == after(30)
        number = hand_in(cls, "a", ANNA, b"7", received=None, late=True).id
        assert of(cls).late and "does not tell by how much" in of(cls).rule
        retime(cls, number, BEFORE)
        assert not of(cls).late, "what an instructor says of this very attempt holds"


@pytest.mark.parametrize(
    "received, late, kind",
    [(None, None, UNTIMED), (None, True, INEXACT), (after(30), True, INEXACT), (None, False, "")],
)
def test_a_time_that_nothing_tells_exactly_is_reported_until_it_is_set(tmp_path, received, late, kind):
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:
        number = hand_in(cls, "a", ANNA, received=received, late=late, timed=GIVEN).id
        found = [one for one in problems(cls, WEEK) if one.kind in (UNTIMED, INEXACT)]
        assert [(one.kind, one.command, one.blocks) for one in found] == (
            [(kind, f"grade submission {number} time TIME", False)] if kind else []
        )
        assert of(cls).factor == (1 if not late else 0.8 if received else 0.9)
        retime(cls, number, after(30))
        assert of(cls).late and not {UNTIMED, INEXACT} & set(kinds(cls))


def test_a_groups_submission_is_each_members_with_each_ones_own_deadline(tmp_path):
    rules = f"{DEADLINE}{LATE}[extensions.S002]\nweek13 = {after(48).isoformat()}\n"
    with opened(tmp_path / "c", rules=rules) as cls:
        both = [[Key("email", "anna@x.org")], [Key("email", "sean@x.org")]]
        more = {"group": "Team 1", "members": both, "received": after(20)}
        number = hand_in(cls, "Team 1", [Key("moodle", "9", "week13")], how="moodle", **more).id
        give_mark(cls, number, 60, written=True)
        add_hand_mark(cls, WEEK, number, HandMark("13.7", 8))
        assert (of(cls).total, of(cls, "S002").total) == (61.2, 68) and of(cls, "S003").counted is None
        own = hand_in(cls, "s", SEAN, b"own", received=after(30)).id
        assert of(cls, "S002").counted.submission.id == own and of(cls).counted.submission.id == number


def test_points_by_hand_belong_to_an_attempt_and_never_go_over(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE + LATE) as cls:
        first = hand_in(cls, "a", ANNA, b"1", received=after(-3)).id
        give_mark(cls, first, 60, written=True)
        assert of(cls).state == BY_HAND and of(cls).ungraded == ["13.7"]
        add_hand_mark(cls, WEEK, first, HandMark("13.7", 9, comment="well said"))
        assert (of(cls).total, of(cls).state) == (69, COMPLETE)
        second = hand_in(cls, "a", ANNA, b"2").id
        assert of(cls).state == NOT_GRADED and of(cls).total is None
        give_mark(cls, second, 70, written=True)
        assert of(cls).state == BY_HAND and not of(cls).by_hand and ELSEWHERE in kinds(cls)
        add_hand_mark(cls, WEEK, second, HandMark("13.7", 3.5, extra=0.5))
        assert of(cls).total == 74 and ELSEWHERE not in kinds(cls)
        withdraw(cls, [second])
        assert of(cls).total == 69
        with pytest.raises(LabError, match="no task"):
            add_hand_mark(cls, WEEK, first, HandMark("99.1", 3))


def test_points_by_hand_are_looked_at_again_when_what_they_were_given_for_changed(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE) as cls:
        number = hand_in(cls, "a", ANNA).id
        give_mark(cls, number, 60, written=True)
        add_hand_mark(cls, WEEK, number, HandMark("13.7", 9))
        add_hand_mark(cls, WEEK, number, HandMark("13.2", 80))
        assert of(cls).total == 89 and of(cls).in_place == ["13.2: 80, the checks give 60"]
        give_mark(cls, number, 65, written=True)
        assert of(cls).looked_at_again == ["13.2"] and of(cls).total is None and AGAIN in kinds(cls)
        give_mark(cls, number, 60, written=True, content="other")
        assert of(cls).looked_at_again == ["13.7", "13.2"]
        for task, points in (("13.7", 9), ("13.2", 80)):
            add_hand_mark(cls, WEEK, number, HandMark(task, points))
        assert of(cls).total == 89


def test_a_mark_that_the_grader_could_not_finish_is_no_zero(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE) as cls:
        number = hand_in(cls, "a", ANNA).id
        give_mark(cls, number, 0, complete=False)
        assert (of(cls).state, of(cls).total) == (FAULTY, None)
        add_hand_mark(cls, WEEK, number, HandMark("13.2", 50))
        assert (of(cls).state, of(cls).total) == (COMPLETE, 50)
        for worth in (60, 0):  # the grader succeeds: what a person gave while it had failed is looked at again
            give_mark(cls, number, worth)
            assert (of(cls).state, of(cls).looked_at_again, of(cls).total) == (AGAIN, ["13.2"], None)
        add_hand_mark(cls, WEEK, number, HandMark("13.2", 50))
        assert of(cls).total == 50
        give_mark(cls, hand_in(cls, "a", ANNA, b"2", received=after(-0.5)).id, 20, missing={"collectives.py": ""})
        assert POORER in kinds(cls), "an earlier attempt has what this one lacks"


def test_a_week_closes_with_the_last_extension_and_what_late_ones_still_get(tmp_path):
    rules = f"{DEADLINE}{LATE}[extensions.S001]\nweek13 = {after(48).isoformat()}\n"
    rules += f"[extensions.S002]\nweek13 = {after(99).isoformat()}\n[excused]\nweek13 = ['S002']\n"
    with opened(tmp_path / "c", rules=rules) as cls:
        until, whose = closes(cls, "week13")
        assert until == after(48) + timedelta(days=5, minutes=10) and whose.email == "anna@x.org"
        assert closes(cls, "week14") is None
    far = "[deadlines]\nweek13 = 2999-01-01T12:00:00Z\n"
    with opened(tmp_path / "c", rules=far) as cls, pytest.raises(LabError, match="can be handed in until"):
        refuse_while_open(cls, "week13", "feedback")
    with opened(tmp_path / "c", rules=DEADLINE.replace("2026", "2001")) as cls:
        refuse_while_open(cls, "week13", "feedback")
