"""`grade status`: the same standings as what is published, in a table."""

import io

import pytest
from rich.console import Console

from grading.publish import status
from tests.grading.publish.aclass import WEEK, mark


def shown(cls, width=100):
    out = io.StringIO()
    status.show(cls, status.status(cls, WEEK), Console(file=out, width=width))
    return out.getvalue()


def test_counts_states_and_cells(six):
    before = list(six.db.iterdump())
    found = status.status(six, WEEK)
    assert list(six.db.iterdump()) == before
    assert "4 submitted, 3 graded, 1 to be marked by a person, 2 late, 1 missing, 1 excused" in found.summary
    rows = {one.person.name: status.cells(one, None) for one in found.standings}
    auto = mark("13.5 GB/s").points
    assert rows["anna"] == ["1", "1", "11-20 12:00", "", f"{auto} / 80", "10 / 20", f"{auto + 10}", "complete"]
    assert rows["ben"][3:] == ["late", "80 / 80", "–", "", "to be graded by hand"]
    assert rows["cleo"][-1] == "complete, too late" and rows["dan"][-1] == "not graded yet"
    assert rows["eva"][-1] == "excused" and rows["fay"] == [""] * 7 + ["missing"]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_table_fits_its_terminal_and_problems_come_with_the_command_that_ends_them(six, width):
    text = shown(six, width)
    lines = text.splitlines()[:8]
    assert max(map(len, lines)) <= width
    assert "grade run week13" in text and "grade mark week13" in text and "blocks publishing" not in text
    if width == 80:  # nothing but a long state folds
        assert lines[0].split() == ["student", "no.", "of", "handed", "in", "checks", "by", "hand", "total", "state"]
        assert lines[1].split()[:5] == ["anna", "1", "1", "11-20", "12:00"]
    six.db.execute("UPDATE person SET name = 'anna' WHERE name = 'ben'")
    assert "anna (ben" in shown(six, 140), "two of one name are told apart"
