"""What is typed into formgrader goes to its submission, of a group to all members, and never to another attempt."""

import shutil

import pytest

from grading.marking.session import prepare
from grading.marking.typed import read_back, typed
from grading.register.marks import add_mark, hand_marks
from grading.register.standing import standings
from grading.register.submissions import withdraw
from tests.grading.marking.samples import handed, mark, scores, type_in
from tests.grading.publish.aclass import hand_in

CELL = "task-91-2"


def totals(cls, week):
    return {one.person.name: one.total for one in standings(cls, week)}


def given(cls, submission, task="91.2"):
    found = hand_marks(cls, "week91").get(submission, {}).get(task)
    return found and (found.points, found.extra, found.comment)


@pytest.fixture
def ready(cls, week):
    """Anna alone has submission 1, Ben and Cleo 2 as a group; both are on the screen."""
    hand_in(cls, "anna", mark(), files=handed())
    hand_in(cls, ["ben", "cleo"], mark({"91.1": 1, "91.3": 2}), files=handed())
    prepare(cls, week)
    return cls


def test_points_and_comments_are_the_submissions(ready, week, course):
    type_in(course, 1, CELL, 5, "Fine.")
    type_in(course, 2, CELL, 4)
    assert read_back(ready, week) == []
    assert given(ready, 1) == (5, 0, "Fine.") and given(ready, 2) == (4, 0, "")
    assert totals(ready, week) == {"anna": 11, "ben": 7, "cleo": 7, "dan": None}
    rows = ready.db.execute("SELECT count(*) FROM hand_mark").fetchone()[0]
    assert read_back(ready, week) == [] and ready.db.execute("SELECT count(*) FROM hand_mark").fetchone()[0] == rows


def test_automatic_points_can_be_overruled_extra_ones_given_and_points_taken_away(ready, week, course):
    type_in(course, 1, "task-91-1", 3)
    with course.gradebook() as book:
        book.find_grade("task-91-3", "lab", "week91", "1").extra_credit = 0.5
        book.db.commit()
    read_back(ready, week)
    anna = standings(ready, week)[0]
    assert [anna.points(task) for task in anna.tasks] == [3, None, 2.5] and anna.in_place
    type_in(course, 1, "task-91-1", None)
    for points in (5, None, 0):
        type_in(course, 1, CELL, points)
        read_back(ready, week)
        assert given(ready, 1)[0] == points
    assert totals(ready, week)["anna"] == 6.5, "nought points are points"
    history = ready.db.execute("SELECT points FROM hand_mark WHERE submission = 1 AND task = '91.2' ORDER BY id")
    assert [row["points"] for row in history] == [5, None, 0], "and stay in the history"


def test_they_never_go_over_to_another_attempt_and_come_back_with_theirs(ready, week, course):
    type_in(course, 2, CELL, 4, "of the first")
    newer = hand_in(ready, ["ben", "cleo"], mark(), files=handed(answer="Another."), days_late=1)
    report = prepare(ready, week).report
    assert (report.new, report.gone) == (1, 1) and given(ready, newer) is None
    assert totals(ready, week)["ben"] is None and given(ready, 2) == (4, 0, "of the first")
    assert scores(ready.folder, newer)[CELL] == (None, None, True) and scores(ready.folder, 2) == {}
    withdraw(ready, [newer])
    prepare(ready, week)
    assert scores(ready.folder, 2)[CELL] == (None, 4, False) and totals(ready, week)["cleo"] == 7
    assert typed(ready.folder, week)[2, "91.2"].comment == "of the first"
    hand_in(ready, "cleo", mark(), files=handed(answer="Alone."), days_late=2)
    prepare(ready, week)
    assert totals(ready, week)["ben"] == 7 and totals(ready, week)["cleo"] is None, "of the group's the others have it"


def test_the_course_directory_can_be_made_again_without_a_loss(ready, week, course, template):
    type_in(course, 1, CELL, 5, "Fine.")
    read_back(ready, week)
    shutil.rmtree(ready.folder / "gradebook")
    assert typed(ready.folder, week) == {} and read_back(ready, week) == []
    shutil.copytree(template[1], ready.folder / "gradebook")
    assert read_back(ready, week) == []
    prepare(ready, week)
    assert scores(ready.folder, 1)[CELL] == (None, 5, False) and given(ready, 1) == (5, 0, "Fine.")
    assert typed(ready.folder, week)[1, "91.2"].comment == "Fine."


def test_rows_of_submissions_that_are_not_here_are_left_alone(ready, week, course):
    """The folder was another class's."""
    type_in(course, 2, CELL, 4)
    ready.db.execute("DELETE FROM submission WHERE id = 2")
    assert read_back(ready, week) == [] and hand_marks(ready, "week91") == {}


def test_what_is_typed_while_the_screen_is_filled_is_not_written_over(ready, week, course, monkeypatch):
    """Nor lost with a submission that counts no more."""
    from grading.marking import screen

    real = screen.read_submission

    def meanwhile(*words):
        for number in (1, 2):
            type_in(course, number, CELL, 3)
        return real(*words)

    hand_in(ready, ["ben", "cleo"], mark(), files=handed(answer="Another."), days_late=1)
    monkeypatch.setattr(screen, "read_submission", meanwhile)
    prepare(ready, week)
    assert scores(ready.folder, 1)[CELL] == scores(ready.folder, 2)[CELL] == (None, 3, False)
    read_back(ready, week)
    assert given(ready, 1)[0] == given(ready, 2)[0] == 3


# -- looked at again --------------------------------------------------------------------------------------------------
def regraded(cls, submission, made):
    made.submission, made.finished = submission, "2026-10-07T00:00:00+00:00"
    add_mark(cls, made)


def test_points_beside_other_automatic_ones_are_looked_at_again(ready, week, course):
    type_in(course, 2, "task-91-1", 3)
    type_in(course, 2, CELL, 4)
    read_back(ready, week)
    regraded(ready, 2, mark({"91.1": 2, "91.3": 2}))
    assert totals(ready, week)["ben"] is None and read_back(ready, week) == []
    assert totals(ready, week)["ben"] is None, "nobody has looked: formgrader shows the points of before"
    report = prepare(ready, week).report
    assert any("91.1" in sentence for sentence in report.human)
    assert scores(ready.folder, 2)["task-91-1"] == (2, 3, True) and scores(ready.folder, 2)[CELL] == (None, 4, False)
    read_back(ready, week)
    assert totals(ready, week)["ben"] is None
    type_in(course, 2, "task-91-1", 3)  # the same points once more: formgrader asks no longer
    read_back(ready, week)
    assert totals(ready, week)["ben"] == 9


def test_an_answer_that_is_read_otherwise_since_is_looked_at_again(ready, week, course):
    """A misnamed notebook was found after it had been marked."""
    type_in(course, 1, CELL, 1)
    read_back(ready, week)
    regraded(ready, 1, mark(content="another"))
    assert totals(ready, week)["anna"] is None
    type_in(course, 1, CELL, 2)
    read_back(ready, week)
    assert totals(ready, week)["anna"] is None, "formgrader shows what was handed in as it was read before"
    prepare(ready, week)
    assert scores(ready.folder, 1)[CELL] == (None, 2, True)
    type_in(course, 1, CELL, 5)
    read_back(ready, week)
    assert totals(ready, week)["anna"] == 11


# -- items ------------------------------------------------------------------------------------------------------------
def test_items_become_points_in_both_places(ready, week, course):
    type_in(course, 1, CELL, comment="1: 3 #units\n2: 1")
    assert read_back(ready, week) == []
    assert given(ready, 1) == (4, 0, "1: 3 #units\n2: 1") and scores(ready.folder, 1)[CELL] == (None, 4, False)
    type_in(course, 1, CELL, comment="1: 4\n2: 1")
    assert read_back(ready, week) == [] and given(ready, 1)[0] == 5, "the items alone have changed"


def test_typed_points_that_differ_from_the_items_stay_and_are_named(ready, week, course):
    type_in(course, 1, CELL, 1, "1: 3\n2: 2")
    (said,) = read_back(ready, week)
    assert "1 point" in said and "5" in said and given(ready, 1)[0] == 1
    assert read_back(ready, week) == [said], "as long as it is so"
    type_in(course, 1, CELL, 5)
    assert read_back(ready, week) == [] and given(ready, 1)[0] == 5
    type_in(course, 2, CELL, 7)
    assert len(read_back(ready, week)) == 1 and given(ready, 2)[0] == 7, "more than there are"


@pytest.mark.parametrize("comment", ["1: 3", "1 3 2 2", "1: 3; 2: 2", "see #nosuch"])
def test_what_cannot_be_meant_gives_no_points_and_is_named(ready, week, course, comment):
    type_in(course, 1, CELL, comment=comment)
    (said,) = read_back(ready, week)
    assert said.startswith("submission 1, 91.2: ") and given(ready, 1) == (None, 0, comment)
    assert totals(ready, week)["anna"] is None
