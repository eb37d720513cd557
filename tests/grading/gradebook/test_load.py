"""`grade load`: what the gradebook holds afterwards, whatever was there before."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from grading.gradebook.load import load
from grading.intake.load import EMPTY
from grading.intake.policy import Rules
from grading.intake.receipts import WITHDRAWN
from grading.marks import path_of
from labkit.errors import LabError
from tests.grading.gradebook.samples import by_hand, handed, mark, put_marks, rows, scores, shown

OPEN = (None, None, True)
LATE = Rules.model_validate(
    {"deadlines": {"week91": datetime.fromisoformat("2026-10-07T00:00:00+02:00")}, "late": {"per_day": 0.25}}
)


def test_automatic_points_are_there_and_the_written_task_waits_for_a_human(course, week, marks):
    put_marks(marks, mark("anna"), mark("ben", {"91.1": 1.5}))
    report = load(course, week, marks)
    assert scores(course, "anna") == {"task-91-1": (4, None, False), "task-91-2": OPEN, "task-91-3": (2, None, False)}
    assert scores(course, "ben") == {"task-91-1": (1.5, None, False), "task-91-2": OPEN, "task-91-3": (0, None, False)}
    assert (report.new, report.changed, report.same) == (2, 0, 0)


def test_nbgrader_itself_adds_up(course, week, marks):
    put_marks(marks, mark("anna", {"91.1": 1.5, "91.3": 2}))
    load(course, week, marks)
    by_hand(course, "anna", "task-91-2", points=5)
    with course.gradebook() as book:
        submission = book.find_submission("week91", "anna")
        assert (submission.score, submission.max_score) == (8.5, 12)
        assert submission.timestamp == datetime(2026, 10, 5, 10, 30), "nbgrader keeps UTC"
        assert not submission.needs_manual_grade


def test_without_any_mark_it_says_what_comes_first(course, week, marks):
    (marks / week.name).mkdir(parents=True)
    with pytest.raises(LabError, match="there are no marks of week91 in .*: run `grade run week91` first"):
        load(course, week, marks)


def test_a_second_load_changes_nothing(course, week, marks):
    put_marks(marks, mark("anna"), mark("ben", {"91.1": 1}))
    load(course, week, marks, files=lambda mark: handed())
    before, written = rows(course), shown(course, "anna").stat().st_mtime_ns
    report = load(course, week, marks, files=lambda mark: handed())
    assert (report.new, report.changed, report.same) == (0, 0, 2)
    assert rows(course) == before and shown(course, "anna").stat().st_mtime_ns == written


def test_what_a_human_gave_survives_a_regrade(course, week, marks):
    put_marks(marks, mark("anna", {"91.1": 0}))
    load(course, week, marks)
    by_hand(course, "anna", "task-91-2", points=5, comment="well argued")
    by_hand(course, "anna", "task-91-1", points=3)
    put_marks(marks, mark("anna", {"91.1": 2, "91.3": 2}, attempt=2))
    report = load(course, week, marks)
    assert scores(course, "anna") == {
        "task-91-1": (2, 3, True),
        "task-91-2": (None, 5, False),
        "task-91-3": (2, None, False),
    }, "formgrader asks to look at the 3 again"
    assert ("anna", "task-91-2", "well argued") in rows(course)
    look = "anna: 91.1 keeps the 3 points given by hand; the automatic ones are now 2: look again"
    assert report.human == [look]
    still = "anna: 91.1 still has points by hand of before: look at them again"
    assert load(course, week, marks).human == [still]
    assert scores(course, "anna")["task-91-1"] == (2, 3, True), "until somebody has looked"
    by_hand(course, "anna", "task-91-1", points=2)
    load(course, week, marks)
    assert scores(course, "anna")["task-91-1"] == (2, 2, False)


def test_who_came_too_late_to_count_is_read_by_nobody_until_the_deadline_moves(course, week, marks):
    put_marks(marks, mark("anna"))
    due = datetime(2026, 10, 4, tzinfo=UTC)
    rules = Rules.model_validate({"late": {"per_day": 0.1, "closes_after_days": 1}, "deadlines": {"week91": due}})
    load(course, week, marks, rules=rules)
    assert scores(course, "anna")["task-91-2"] == (0, None, False)
    load(course, week, marks)
    assert scores(course, "anna")["task-91-2"] == OPEN


def test_more_points_than_a_task_has_are_told(course, week, marks):
    put_marks(marks, mark("anna"))
    load(course, week, marks)
    by_hand(course, "anna", "task-91-2", points=7.0)
    (task,) = (task for task in week.tasks if task.id == "91.2")
    assert task.points < 7
    told = load(course, week, marks).human
    assert told == [f"anna: 91.2 has 7 points by hand, of {task.points:g}: look again"]


def test_extra_credit_and_flags_survive(course, week, marks):
    put_marks(marks, mark("anna"))
    load(course, week, marks)
    with course.gradebook() as book:
        book.find_grade("task-91-1", "lab", "week91", "anna").extra_credit = 1
        book.find_submission("week91", "anna").notebooks[0].flagged = True
        book.db.commit()
    put_marks(marks, mark("anna", {}))
    load(course, week, marks)
    with course.gradebook() as book:
        assert book.find_grade("task-91-1", "lab", "week91", "anna").extra_credit == 1
        assert book.find_submission("week91", "anna").notebooks[0].flagged


def test_a_graders_fault_is_never_a_zero(course, week, marks):
    put_marks(marks, mark("anna", faults=("91.1",)))
    report = load(course, week, marks)
    assert scores(course, "anna")["task-91-1"] == OPEN, "left for a human"
    assert scores(course, "anna")["task-91-3"] == (2, None, False), "nothing else suffers"
    assert any("anna" in s and "91.1 (the grader itself failed here)" in s for s in report.human)


def test_a_fault_after_a_good_mark_does_not_keep_the_old_points_nor_touch_those_by_hand(course, week, marks):
    put_marks(marks, mark("anna"), mark("ben"))
    load(course, week, marks)
    by_hand(course, "ben", "task-91-1", points=3)
    put_marks(marks, mark("anna", faults=("91.1",)), mark("ben", faults=("91.1",)))
    load(course, week, marks)
    assert scores(course, "anna")["task-91-1"] == OPEN
    assert scores(course, "ben")["task-91-1"] == (None, 3, False)


@pytest.mark.parametrize(
    "broken", [dict(complete=False), dict(tasks=[]), pytest.param(dict(tasks=None), id="points None")]
)
def test_a_mark_that_is_not_complete_leaves_its_tasks_open(course, week, marks, broken):
    one = mark("anna")
    if broken.get("tasks", 1) is None:
        one.tasks[0]["points"] = one.tasks[2]["points"] = None
    else:
        for name, value in broken.items():
            setattr(one, name, value)
    report = load(course, week, put_marks(marks, one))
    assert scores(course, "anna")["task-91-1"] == scores(course, "anna")["task-91-3"] == OPEN
    assert len(report.human) == 1


def test_a_fault_that_was_mended_is_loaded(course, week, marks):
    put_marks(marks, mark("anna", faults=("91.1",)))
    load(course, week, marks)
    put_marks(marks, mark("anna"))
    assert load(course, week, marks).human == []
    assert scores(course, "anna")["task-91-1"] == (4, None, False)


def penalty(course) -> float:
    with course.gradebook() as book:
        return book.find_submission("week91", "anna").late_submission_penalty


def test_the_rules_say_which_attempt_counts(course, week, marks):
    put_marks(marks, *(mark("anna", {"91.1": points}, attempt=number) for number, points in ((1, 4), (2, 1), (10, 2))))
    load(course, week, marks)
    assert scores(course, "anna")["task-91-1"][0] == 2, "the last; 10 comes after 2"
    load(course, week, marks, rules=Rules.model_validate({"attempts": {"policy": "best"}}))
    assert scores(course, "anna")["task-91-1"][0] == 4
    text = json.loads(shown(course, "anna").read_text())["cells"][0]["outputs"][0]["text"]
    assert "Attempt 1 of 3 counts, with most automatic points." in text


def test_lateness_is_nbgraders_penalty_and_follows_points_given_by_hand(course, week, marks):
    put_marks(marks, mark("anna", received="2026-10-07T12:30:00+02:00"), mark("ben"))
    report = load(course, week, marks, rules=LATE)
    assert scores(course, "anna")["task-91-1"][0] == 4, "points are stored in full"
    assert penalty(course) == 1.5  # a quarter of 4 + 2
    assert [s.split(" (")[0] for s in report.told if "late" in s] == ["anna: Handed in 1 day late"]
    again = load(course, week, marks, rules=LATE).told
    assert not [s for s in again if "late" in s], "of who is as before it is not told again"
    by_hand(course, "anna", "task-91-2", points=6)
    load(course, week, marks, rules=LATE)
    assert penalty(course) == 3  # a quarter of 4 + 2 + 6
    load(course, week, marks)
    assert penalty(course) == 0


def test_all_points_of_a_cancelled_task_are_in_the_gradebook(course, week, marks):
    put_marks(marks, mark("anna", {"91.1": 1}), mark("ben"))
    load(course, week, marks)
    by_hand(course, "ben", "task-91-2", points=1.5)
    full = Rules(full_points={"week91": ["91.1", "91.2"]})
    report = load(course, week, marks, rules=full)
    most = {task.id: task.points for task in week.tasks}
    assert scores(course, "anna")["task-91-1"] == (most["91.1"], None, False)
    assert scores(course, "anna")["task-91-2"] == (most["91.2"], None, False), "nobody has to grade it"
    assert scores(course, "ben")["task-91-2"][1] == 1.5, "what a person gave stays"
    said = f"91.1 from 1 to {most['91.1']}, 91.2 from none to {most['91.2']}"
    assert f"anna: {said}" in report.sentences()
    against = (
        "ben: 91.2 keeps the 1.5 points given by hand here, and [full_points] gives everybody "
        f"{most['91.2']}: type them in formgrader"
    )
    assert report.human == [against] == load(course, week, marks, rules=full).human, "as long as they differ"
    by_hand(course, "ben", "task-91-1", points=1)
    assert any(s.startswith("ben: 91.1 keeps the 1 points given") for s in load(course, week, marks, rules=full).human)
    for cell, id in (("task-91-1", "91.1"), ("task-91-2", "91.2")):
        by_hand(course, "ben", cell, points=most[id])
    assert not load(course, week, marks, rules=full).human, "typed as it is asked for"
    by_hand(course, "ben", "task-91-2", points=1.5)
    gone = load(course, week, marks)
    assert scores(course, "ben")["task-91-2"] == (None, 1.5, False), "what everybody had is not left there"
    assert f"anna: 91.1 from {most['91.1']} to 1, 91.2 from {most['91.2']} to none" in gone.sentences()
    assert scores(course, "anna")["task-91-1"] == (1, None, False) and scores(course, "anna")["task-91-2"] == OPEN


def test_what_a_changed_penalty_is_told_to_be_adds_up(course, week, marks):
    """Of 6.06 points a quarter is 1.515: the total is 4.55, as `grade status` rounds it, and so 1.51 are lost."""
    put_marks(marks, mark("anna", received="2026-10-07T12:30:00+02:00"))
    load(course, week, marks, rules=LATE)
    by_hand(course, "anna", "task-91-2", points=0.06)
    (told,) = (s for s in load(course, week, marks, rules=LATE).sentences() if "penalty" in s)
    assert told == "anna: the late penalty from 1.5 to 1.51" and penalty(course) == 1.515


def test_deadlines_and_extensions_are_nbgraders_too(course, week, marks):
    put_marks(marks, mark("anna", received="2026-10-07T12:30:00+02:00"), mark("ben"))
    load(
        course,
        week,
        marks,
        rules=LATE.model_copy(
            update={"extensions": {"anna": {"week91": LATE.deadlines["week91"] + timedelta(days=2)}}}
        ),
    )
    with course.gradebook() as book:
        late = book.find_submission("week91", "anna")
        assert late.duedate == datetime(2026, 10, 8, 22, 0) and late.total_seconds_late == 0
        assert book.find_submission("week91", "ben").duedate == datetime(2026, 10, 6, 22, 0), "in UTC"
    assert penalty(course) == 0


def test_an_answer_that_changed_after_it_was_graded_is_looked_at_again(course, week, marks):
    put_marks(marks, mark("anna"), mark("ben"))
    load(course, week, marks, files=lambda mark: handed("Because."))
    by_hand(course, "anna", "task-91-2", points=5)
    again = load(course, week, marks, files=lambda mark: handed("Because of something else."))
    assert scores(course, "anna")["task-91-2"] == (None, 5, True), "the points stay, and formgrader asks"
    assert [s for s in again.human if "anna" in s] and not [s for s in again.human if "ben" in s]
    again = load(course, week, marks, files=lambda mark: handed("Because of something else."))
    assert again.human == ["anna: 91.2 still has points by hand of before: look at them again"]
    by_hand(course, "anna", "task-91-2", points=4)
    assert load(course, week, marks, files=lambda mark: handed("Because of something else.")).human == []
    assert scores(course, "anna")["task-91-2"] == (None, 4, False)


def test_points_that_a_group_had_at_the_copy_of_one_who_moved_are_told(course, week, marks):
    """Bea had group A's points. She is in group B now, which handed in again: the others of A had none any more, and
    nothing said so."""

    def of_group(name, group, submission, attempt=1):
        return mark(name, attempt=attempt, group=group, submission=submission)

    def answers(one):
        return handed(one.submission)

    put_marks(marks, *(of_group(name, "Group A_70", "a") for name in ("anna", "bea", "sean")))
    put_marks(marks, of_group("max", "Group B_71", "b"))
    load(course, week, marks, files=answers)
    by_hand(course, "bea", "task-91-2", points=5)
    put_marks(marks, *(of_group(name, "Group B_71", "b2", 2) for name in ("bea", "max")))
    put_marks(marks, of_group("zoe", "", "z"))
    load(course, week, marks, files=answers)
    by_hand(course, "zoe", "task-91-2", points=6)
    put_marks(marks, of_group("zoe", "", "z2", 2), of_group("ann", "", "z"))  # a copy is no group
    lost = (
        "Group A: 91.2 had its 5 points at bea's copy, which holds another hand-in now: give them at the copy of anna"
    )
    assert [line for line in load(course, week, marks, files=answers).human if "Group" in line] == [f"{lost}, sean"]
    assert f"{lost}, sean" in load(course, week, marks, files=answers).human, "until somebody has looked"
    by_hand(course, "sean", "task-91-2", points=5)
    assert not any("Group" in line for line in load(course, week, marks, files=answers).human), "it has points again"


def test_points_that_a_group_had_at_the_copy_of_one_who_was_withdrawn_are_told(course, week, marks):
    """Sean had not worked with them. His copy had their points, and `grade load` had nothing to look at."""

    def human():
        told = load(course, week, marks, files=lambda one: handed(one.submission)).human
        return [line for line in told if "Group" in line]

    put_marks(marks, *(mark(name, group="Group A_70", submission="a") for name in ("anna", "bea", "sean")))
    human()
    by_hand(course, "sean", "task-91-2", points=5)
    assert human() == [], "the others have them too"
    own = path_of(marks, "week91", "sean", 1)
    (own.parent / WITHDRAWN).mkdir()
    own.rename(own.parent / WITHDRAWN / own.name)
    (own.parent / WITHDRAWN / "2.json").write_text("{")
    lost = "Group A: 91.2 had its 5 points at sean's copy, which was withdrawn: give them at the copy of anna, bea"
    assert human() == [lost]
    by_hand(course, "bea", "task-91-2", points=4)
    assert human() == []


def test_once_somebody_has_looked_or_the_group_handed_in_again_nothing_is_told(course, week, marks):
    def human(*more):
        put_marks(marks, *more)
        told = load(course, week, marks, files=lambda one: handed(one.submission)).human
        return [line for line in told if "Group" in line]

    assert human(*(mark(name, group="Group A_70", submission="a") for name in ("anna", "bea"))) == []
    by_hand(course, "bea", "task-91-2", points=5)
    by_hand(course, "bea", "task-91-1", points=3)
    assert len(human(mark("bea", group="Group B_71", submission="b", attempt=2))) == 1, "the written one alone asks"
    assert human(mark("anna", group="Group A_70", submission="a2", attempt=2)) == [], "of that nobody had points"
    assert human(mark("cem", group="Group A_70", submission="a")) != []
    by_hand(course, "bea", "task-91-2", points=4)
    assert human() == []


def test_a_group_that_hands_in_again_as_a_whole_left_nobody_behind(course, week, marks):
    put_marks(marks, *(mark(name, group="Group A_70", submission="a") for name in ("anna", "bea")))
    load(course, week, marks, files=lambda one: handed(one.submission))
    by_hand(course, "bea", "task-91-2", points=5)
    put_marks(marks, *(mark(name, group="Group A_70", submission="a2", attempt=2) for name in ("anna", "bea")))
    human = load(course, week, marks, files=lambda one: handed(one.submission)).human
    assert human == ["bea: a written answer changed after it was graded by hand: look at it again"]


def test_an_answer_where_there_was_none_is_read_by_a_person(course, week, marks):
    put_marks(marks, mark("anna", unanswered=["91.2"]))
    load(course, week, marks, files=lambda mark: handed(""))
    assert scores(course, "anna")["task-91-2"] == (0, None, False)
    put_marks(marks, mark("anna"))
    report = load(course, week, marks, files=lambda mark: handed("Because."))
    assert scores(course, "anna")["task-91-2"] == OPEN and report.human == [], "nobody graded it before"


def test_a_load_without_the_submissions_asks_nobody_to_look_again(course, week, marks):
    put_marks(marks, mark("anna"))
    load(course, week, marks, files=lambda mark: handed())
    by_hand(course, "anna", "task-91-2", points=5)
    report = load(course, week, marks)
    assert report.human == [] and any("nothing that was handed in can be shown" in s for s in report.told)
    again = load(course, week, marks, files=lambda mark: handed("another answer"))
    assert len(again.human) == 1, "the earlier answer is still known"


def test_ids_of_any_script_stay_apart_and_come_back(course, week, marks):
    names = [
        "anna",
        "O'Brien, Zoë",
        "שלום",
        "a b",
        "<img src=x onerror=alert(1)>",
        "..",
        "a/b",
        "a%2Fb",
        "a=2Fb",
        "[abc]",
        "*",
        "",
    ]
    put_marks(marks, *(mark(name, {"91.1": i % 5}) for i, name in enumerate(names)))
    load(course, week, marks)
    from grading.gradebook.course import gradebook_id, student_of

    for i, name in enumerate(names):
        id = gradebook_id(name)
        assert student_of(id) == name and scores(course, id)["task-91-1"][0] == i % 5
        assert shown(course, id).is_file()
    everywhere = {p.parent.parent.parent for p in course.root.rglob("lab.ipynb")} - {course.root / "source"}
    assert {course.root / "autograded"} == everywhere - {course.root}, "no id leads out of its folder"


def test_nbgraders_own_folder_without_a_time_is_not_taken_for_ungraded(course, week, marks):
    put_marks(marks, mark("anna"), mark("ben"), mark("cleo"))
    (course.root / "submitted" / "anna" / "week91").mkdir(parents=True)
    (course.root / "submitted" / "ben" / "week91").mkdir(parents=True)
    (course.root / "submitted" / "ben" / "week91" / "timestamp.txt").write_text("2026-10-05 10:30:00 UTC")
    load(course, week, marks)
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    api = NbGraderAPI(coursedir=CourseDirectory(root=str(course.root), course_id=course.id))
    found = api.get_submissions("week91")
    assert {s["student"]: s["autograded"] for s in found} == dict(anna=True, ben=True, cleo=True)
    assert sum(s["score"] for s in found) == 18


def test_a_task_that_came_later_gets_its_rows(course, source, week, marks):
    from grading.gradebook.init import init
    from labkit.checks.tasks import find_week, find_weeks

    put_marks(marks, mark("anna"))
    load(course, week, marks)
    tasks = source / "week91_demo" / "tasks.toml"
    tasks.write_text(tasks.read_text() + '\n[[task]]\nid = "91.5"\ntitle = "late"\nkind = "written"\npoints = 3\n')
    with pytest.raises(LabError, match="task 91.5 is new.*grade course init"):
        load(course, find_week("week91", find_weeks(source)), marks)
    init(course.root, source=source)
    load(course, find_week("week91", find_weeks(source)), marks)
    assert scores(course, "anna")["task-91-5"] == OPEN and scores(course, "anna")["task-91-1"] == (4, None, False)
    by_hand(course, "anna", "task-91-5", points=3, comment="good")
    assert ("anna", "task-91-5", "good") in rows(course)


def test_one_writer_at_a_time(course, week, marks):
    put_marks(marks, mark("anna"))
    with course.one_writer(), pytest.raises(LabError, match="wait until it has finished"):
        load(course, week, marks)
    assert load(course, week, marks).new == 1


def test_a_broken_mark_stops_before_anything_is_loaded(course, week, marks):
    put_marks(marks, mark("anna"), mark("zoe"))
    (marks / "week91" / "zoe" / "1.json").write_text("{")
    with pytest.raises(LabError, match="is not a mark"):
        load(course, week, marks)
    assert rows(course) == []


def test_a_week_without_marks_and_a_mark_without_a_time_zone(course, week, marks):
    with pytest.raises(LabError, match="no marks of week91"):
        load(course, week, marks)
    put_marks(marks, mark("anna", received="yesterday"))
    with pytest.raises(LabError, match="no valid time"):
        load(course, week, marks)
    assert scores(course, "anna") == {}


def test_formgrader_can_save_while_a_load_is_between_two_students(course, week, marks):
    """Short transactions: the lock for writing is not held over the whole class."""
    put_marks(marks, mark("anna"), mark("ben"))

    def save(done, total, student):
        if done == 1:
            by_hand(course, "anna", "task-91-2", points=6)

    load(course, week, marks, progress=save)
    assert scores(course, "anna")["task-91-2"] == (None, 6, False)
    assert scores(course, "ben")["task-91-1"][0] == 4


def test_whose_points_changed_is_told_from_what_to_what(course, week, marks):
    load(course, week, put_marks(marks, mark("anna"), mark("ben")), files=lambda mark: handed())
    report = load(course, week, put_marks(marks, mark("anna", {"91.1": 1, "91.3": 2})), files=lambda mark: handed())
    assert report.changed == 1 and report.same == 1
    assert "anna: 91.1 from 4 to 1" in report.sentences() and not [s for s in report.sentences() if "ben" in s]


def test_an_answer_that_was_never_handed_in_waits_for_nobody_and_takes_points_all_the_same(course, week, marks):
    load(course, week, put_marks(marks, mark("anna", unanswered=["91.2"])), files=lambda mark: {})
    assert scores(course, "anna")["task-91-2"] == (0, None, False)
    by_hand(course, "anna", "task-91-2", points=3)
    load(course, week, marks, files=lambda mark: {})
    assert scores(course, "anna")["task-91-2"][1:] == (3, False)
    load(course, week, put_marks(marks, mark("ben", unanswered=["91.2"])), files=lambda mark: {})
    load(course, week, put_marks(marks, mark("ben")), files=lambda mark: handed())
    assert scores(course, "ben")["task-91-2"] == (None, None, True), "now there is an answer"


def test_formgraders_first_page_counts_what_has_come(course, week, marks):
    """What its page asks nbgrader for."""
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config.loader import PyFileConfigLoader

    def first_page():
        config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
        api = NbGraderAPI(CourseDirectory(config=config), config=config)
        assert not api.exchange_missing, "the page begins with a warning else"
        found = {one["name"]: one for one in api.get_assignments()}
        return found["week91"]["num_submissions"], found["week91"]["status"], found["week92"]["status"]

    assert first_page() == (0, "draft", "draft")
    load(course, week, put_marks(marks, mark("anna"), mark("ben", received="")), files=lambda mark: handed())
    assert first_page() == (2, "released", "draft")
    load(course, week, put_marks(marks, mark("ben", received="2026-10-06T12:30:00+02:00")), files=lambda mark: handed())
    with course.gradebook() as book:
        assert book.find_submission("week91", "ben").timestamp is not None
    theirs = course.root / "submitted" / "cleo" / "week91"
    theirs.mkdir(parents=True)
    (theirs / "lab.ipynb").write_text("{}")
    load(course, week, put_marks(marks, mark("cleo")), files=lambda mark: handed())
    assert [path.name for path in theirs.iterdir()] == ["lab.ipynb"], "nbgrader's own folder stays as it is"


def test_an_empty_hand_in_is_no_lost_one(course, week, marks):
    put_marks(marks, mark("anna"), mark("finn", notes=[EMPTY]))
    report = load(course, week, marks, files=lambda mark: {})
    lost = [sentence for sentence in report.told if "was handed in can be shown" in sentence]
    assert [sentence.split(":")[0] for sentence in lost] == ["anna"]


def test_whose_late_hand_in_has_changed_is_told_again(course, week, marks):
    late = {"received": "2026-10-07T12:30:00+02:00"}
    load(course, week, put_marks(marks, mark("anna", **late)), rules=LATE)
    put_marks(marks, mark("anna", {"91.1": 1}, **late))
    assert [s for s in load(course, week, marks, rules=LATE).told if "Handed in 1 day late" in s]
