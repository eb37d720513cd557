"""`grade why`: what the record has of one student."""

import io

import pytest
from rich.console import Console

from grading.publish import why
from grading.register.marks import add_mark
from grading.register.standing import standings
from grading.register.submissions import withdraw
from labkit.errors import LabError
from tests.grading.publish.aclass import NOON, WEEK, hand_in, hand_points, mark


def lines(six, name, task=None):
    one = next(one for one in standings(six, WEEK) if one.person.name == name)
    return why.lines(six, WEEK, one, task)


def test_what_the_record_has_of_one_student(six):
    said = lines(six, "anna")
    assert said[0].startswith("anna, week13: submission 1 counts, total ") and said[0].endswith("complete")
    assert any(line.startswith("submission 1, handed in 2026-11-20 12:00") and "seed 20261121" in line for line in said)
    assert not any("13.8" in line for line in said), "nobody asked for a stretch task"


def test_one_task_alone(six):
    (one,) = (line for line in lines(six, "anna", "13.5") if line.startswith("13."))
    assert one.startswith("13.5 ") and any("13.8" in line for line in lines(six, "anna", "13.8"))


def test_points_by_hand_in_their_order_and_what_was_written(six):
    hand_points(six, 1, "13.7", 12, "better on a second look", extra=1)
    said = lines(six, "anna")
    history = said[said.index("Points by hand, in their order:") :]
    assert [line.rpartition(" ")[2] for line in history[1:3]] == ["10", "12"]


def test_every_regrade_with_its_reason(six):
    better = mark()
    better.submission, better.finished, better.key = 1, "2026-11-22T10:00:00+00:00", "other"
    add_mark(six, better, because="a wrong test")
    said = lines(six, "anna")
    again = said[said.index("Graded again:") :]
    assert "2026-11-22T10:00:00+00:00" in again and any(
        "13.5 from" in line and "a wrong test" in line for line in again
    )
    assert any("13.5 from" in line for line in lines(six, "anna", "13.5"))
    assert not any("13.5 from" in line for line in lines(six, "anna", "13.2"))
    assert lines(six, "ben")[-1] == "It was graded once."


def test_all_attempts_are_there_and_which_counts(six):
    hand_in(six, "anna", mark(), at=NOON.replace(hour=13))
    said = lines(six, "anna")
    assert "submission 5 counts" in said[0] and sum(line.startswith("submission ") for line in said) == 2
    withdraw(six, [5])
    assert "submission 1 counts" in lines(six, "anna")[0]


def test_who_has_nothing_and_whom_nobody_knows(six):
    assert lines(six, "fay") == ["fay, week13: missing"]
    assert lines(six, "eva")[0] == "eva, week13: excused" and len(lines(six, "eva")) == 2
    console = Console(file=io.StringIO())
    for student, task in (("zoe", None), ("anna", "99.1"), ("anna", "14.1")):
        with pytest.raises(LabError):
            why.show(six, WEEK, student, task, console)
