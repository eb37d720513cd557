"""What formgrader shows: each submission that counts once, by its number, with the points that the register has."""

import pytest

from grading.marking.screen import fill
from grading.marking.session import prepare
from grading.register.marks import add_mark
from grading.register.standing import standings
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError
from tests.grading.marking.samples import TASKS, handed, mark, rows, scores, shown, type_in
from tests.grading.publish.aclass import a_class, hand_in, hand_points

LATE = "[deadlines]\nweek91 = 2026-11-20T12:00:00+00:00\n[late]\nper_day = 0.1\ncloses_after_days = 5\n"


def test_automatic_points_are_there_the_written_task_waits_for_a_person_and_no_name_is_on_the_screen(cls, week, course):
    number = hand_in(cls, "anna", mark({"91.1": 1, "91.3": 2}), files=handed())
    report = prepare(cls, week).report
    assert (report.new, report.open, report.human) == (1, 1, [])
    want = {"task-91-1": (1, None, False), "task-91-2": (None, None, True), "task-91-3": (2, None, False)}
    assert scores(cls.folder, number) == want
    gradebook = cls.folder / "gradebook"
    assert not any("anna" in path.relative_to(gradebook).as_posix() for path in gradebook.rglob("*"))
    assert not any(b"anna" in path.read_bytes() for path in (gradebook / "gradebook.db", shown(cls.folder, 1)))
    before, view = rows(cls.folder), shown(cls.folder, 1).stat().st_mtime_ns
    report = prepare(cls, week).report
    assert (report.new, report.changed, report.same) == (0, 0, 1), "again nothing changes"
    assert rows(cls.folder) == before and shown(cls.folder, 1).stat().st_mtime_ns == view
    type_in(course, number, "task-91-2", 5)
    with course.gradebook() as book:  # nbgrader itself adds up
        found = book.find_submission("week91", str(number))
        assert (found.score, found.max_score, found.needs_manual_grade) == (8, 12, False)


def test_a_group_is_there_once_and_what_does_not_count_is_not(cls, week):
    hand_in(cls, ["anna", "ben"], mark(), files=handed())
    hand_in(cls, "cleo", mark(), files=handed("First."))
    hand_in(cls, "cleo", mark(), files=handed("Second."), days_late=1)
    hand_in(cls, "dan", files=handed("Not graded."))
    report = prepare(cls, week).report
    assert (report.new, report.ungraded) == (2, 1)
    assert {row[1] for row in rows(cls.folder)} == {"1", "3"}
    places = (cls.folder / "gradebook" / which for which in ("submitted", "autograded"))
    assert [sorted(path.name for path in place.iterdir()) for place in places] == [["1", "3"]] * 2


def test_who_is_excused_or_too_late_to_count_is_read_by_nobody_until_the_deadline_moves(cls, week):
    hand_in(cls, "anna", mark(), files=handed(), days_late=9)
    with a_class(cls.folder, "", '[excused]\nweek91 = ["anna"]\n', cls.weeks) as again:
        assert prepare(again, week).report.new == 0
    with a_class(cls.folder, "", LATE, cls.weeks) as again:
        assert prepare(again, week).report.open == 0
        assert scores(again.folder, 1)["task-91-2"] == (0, None, False)
    rules = LATE + "[extensions.anna]\nweek91 = 2026-12-20T12:00:00+00:00\n"
    with a_class(cls.folder, "", rules, cls.weeks) as again:
        assert prepare(again, week).report.open == 1
    assert scores(cls.folder, 1)["task-91-2"] == (None, None, True)


def test_an_answer_that_was_never_handed_in_waits_for_nobody_and_takes_points_all_the_same(cls, week, course):
    hand_in(cls, "anna", mark(unanswered=["91.2"]), files=handed())
    assert prepare(cls, week).report.open == 0
    assert scores(cls.folder, 1)["task-91-2"] == (0, None, False)
    type_in(course, 1, "task-91-2", 3)
    prepare(cls, week)
    assert standings(cls, week)[0].total == 9


def test_a_graders_fault_is_never_a_zero(cls, week, course):
    hand_in(cls, "anna", mark(faults=("91.1",)), files=handed())
    report = prepare(cls, week).report
    assert scores(cls.folder, 1)["task-91-1"] == (None, None, True) and any("91.1" in one for one in report.human)
    better = mark()
    better.submission = hand_in(cls, "ben", mark(faults=("91.1",)), files=handed("Other."))
    prepare(cls, week)
    add_mark(cls, better)
    assert prepare(cls, week).report.changed == 1 and scores(cls.folder, 2)["task-91-1"] == (4, None, False)
    type_in(course, 1, "task-91-1", 4)
    report = prepare(cls, week).report
    assert scores(cls.folder, 1)["task-91-1"] == (None, 4, False) and report.human == []
    assert standings(cls, week)[0].automatic == 6


@pytest.mark.parametrize("broken", [{"complete": False}, {"complete": False, "tasks": []}])
def test_a_mark_that_is_not_complete_leaves_its_tasks_open(cls, week, broken):
    hand_in(cls, "anna", mark(**broken), files=handed())
    prepare(cls, week)
    assert {points for points, *_ in scores(cls.folder, 1).values()} == {None}


def test_all_points_of_a_cancelled_task_are_on_the_screen(cls, week):
    hand_in(cls, "anna", mark({"91.1": 1}), files=handed())
    with a_class(cls.folder, "", '[full_points]\nweek91 = ["91.1", "91.2"]\n', cls.weeks) as again:
        assert prepare(again, week).report.open == 0
        assert [score[0] for score in scores(again.folder, 1).values()] == [4, 6, 0]
        assert standings(again, week)[0].total == 10


def test_points_that_were_given_elsewhere_are_there_from_the_start_and_a_later_task_gets_its_rows(cls, source, week):
    number = hand_in(cls, "anna", mark(), files=handed())
    hand_points(cls, number, "91.2", 5, "Fine.", extra=1)
    prepare(cls, week)
    assert ("week91", "1", "task-91-2", None, 5, 1, 0, "Fine.") in rows(cls.folder)
    more = '{id = "91.5", title = "how", kind = "written", points = 3},\n]\n'
    (source / "week91_demo" / "tasks.toml").write_text(TASKS.removesuffix("]\n") + more)
    with a_class(cls.folder, "", "", find_weeks(source)) as again:
        assert prepare(again, again.week("week91")).report.changed == 1
    assert scores(cls.folder, 1)["task-91-5"] == (None, None, True)


def test_one_writer_at_a_time(cls, course, week):
    hand_in(cls, "anna", mark(), files=handed())
    with course.one_writer(), pytest.raises(LabError, match="another `grade`"):
        fill(course, cls, week)


def test_an_archive_that_is_gone_leaves_the_verdicts(cls, week):
    number = hand_in(cls, "anna", mark(), files=handed())
    cls.archive(week, number).unlink()
    report = prepare(cls, week).report
    assert any("cannot be read" in one for one in report.human) and scores(cls.folder, 1)["task-91-1"][0] == 4


def test_formgraders_first_page_counts_them(cls, week, api):
    for name in ("anna", "ben"):
        hand_in(cls, name, mark(), files=handed())
    prepare(cls, week)
    found = next(one for one in api.get_assignments() if one["name"] == "week91")
    assert found["num_submissions"] == 2 and found["status"] == "released"
    assert {(one["student"], one["autograded"]) for one in api.get_submissions("week91")} == {("1", True), ("2", True)}
