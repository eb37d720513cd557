"""`grade status`: the same standings as what is published, in a table."""

import io

import pytest
from rich.console import Console

from grading.publish import status
from grading.register.standing import standings
from tests.grading.publish.aclass import WEEK, mark


def shown(found, width=100):
    out = io.StringIO()
    status.show(found, Console(file=out, width=width))
    return out.getvalue()


def test_counts_and_states(six):
    before = list(six.db.iterdump())
    found = status.status(six, WEEK)
    assert list(six.db.iterdump()) == before
    assert list(found.counts.values()) == [4, 3, 1, 2, 1, 0, 1]
    states = {one.person.name: one.state for one in found.standings}
    assert states == {
        "anna": "complete", "ben": "to be graded by hand", "cleo": "complete", "dan": "not graded yet",
        "eva": "excused", "fay": "missing",
    }  # fmt: skip
    assert "4 submitted, 3 graded, 1 to be marked by a person, 2 late, 1 missing, 1 excused" in found.summary


def test_cells_of_the_table(six):
    rows = {one.person.name: status.cells(one, None) for one in standings(six, WEEK)}
    auto = mark("13.5 GB/s").points
    assert rows["anna"] == [
        "1", "1", "11-20 12:00", "", f"{auto} / 80", "10 / 20", f"{auto + 10}", "complete",
    ]  # fmt: skip
    assert rows["ben"][3:] == ["late", "80 / 80", "–", "", "to be graded by hand"]
    assert rows["cleo"][-1] == "complete, too late" and rows["fay"][:4] == ["", "", "", ""]


def test_problems_come_with_the_command_that_ends_them(six):
    text = shown(status.status(six, WEEK))
    assert "grade run week13" in text and "grade mark week13" in text and "blocks publishing" not in text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_table_fits_its_terminal(six, width):
    lines = shown(status.status(six, WEEK), width).splitlines()[:8]
    assert max(map(len, lines)) <= width
    if width == 80:  # nothing but a long state folds
        assert lines[0].split() == ["student", "no.", "of", "handed", "in", "checks", "by", "hand", "total", "state"]
        assert lines[1].split()[:9] == ["anna", "1", "1", "11-20", "12:00", lines[1].split()[5], "/", "80", "10"]


def test_students_of_one_name_are_told_apart(six):
    six.db.execute("UPDATE person SET name = 'anna' WHERE name = 'ben'")
    assert "anna (ben" in shown(status.status(six, WEEK), 140)
