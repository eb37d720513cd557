"""`grade why`: what the record has of one student."""

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


def test_what_the_record_has_of_one_student_and_of_one_task(six):
    said = lines(six, "anna")
    assert said[0].startswith("anna, week13: submission 1 counts, total ") and said[0].endswith("complete")
    assert any(line.startswith("submission 1, handed in 2026-11-20 12:00") and "seed 20261121" in line for line in said)
    assert not any("13.8" in line for line in said), "nobody asked for a stretch task"
    (one,) = (line for line in lines(six, "anna", "13.5") if line.startswith("13."))
    assert one.startswith("13.5 ") and any("13.8" in line for line in lines(six, "anna", "13.8"))
    assert lines(six, "fay") == ["fay, week13: missing"]
    assert lines(six, "eva")[0] == "eva, week13: excused" and len(lines(six, "eva")) == 2


def test_all_attempts_points_by_hand_in_their_order_and_every_regrade_with_its_reason(six):
    assert lines(six, "anna")[-1] == "It was graded once."
    hand_points(six, 1, "13.7", 12, "better on a second look", extra=1)
    add_mark(six, mark(submission=1, finished="2026-11-22T10:00:00+00:00", key="other"), because="a wrong test")
    said = lines(six, "anna")
    history, again = said.index("Points by hand, in their order:"), said.index("Graded again:")
    assert [line.rpartition(" ")[2] for line in said[history + 1 : history + 3]] == ["10", "12"]
    assert "    by hand: 12 and 1 extra" in said and "    a person wrote: better on a second look" in said
    assert "2026-11-22T10:00:00+00:00" in said[again:]
    assert any("13.5 from" in line and "a wrong test" in line for line in said[again:])
    assert any("13.5 from" in line for line in lines(six, "anna", "13.5"))
    assert not any("13.5 from" in line for line in lines(six, "anna", "13.2"))
    hand_in(six, "anna", mark(), at=NOON.replace(hour=13))
    said = lines(six, "anna")
    assert "submission 5 counts" in said[0] and sum(line.startswith("submission ") for line in said) == 2
    withdraw(six, [5])
    assert "submission 1 counts" in lines(six, "anna")[0]


@pytest.mark.parametrize(("student", "task"), [("zoe", None), ("anna", "99.1"), ("anna", "14.1")])
def test_whom_nobody_knows_and_another_weeks_task(six, student, task):
    with pytest.raises(LabError):
        why.show(six, WEEK, student, task, Console(quiet=True))
