"""The class's tables: numbers are numbers, what is open is empty, and no cell is a formula."""

import csv
import io

import pytest

from grading.publish.table import dumps, harmless, term_table, week_table, write
from grading.register.people import everybody, key_of
from grading.register.standing import standings
from labkit.checks.tasks import load_week
from tests.grading.publish.aclass import AWKWARD, LATE, ROOT, WEEK, a_class, forty, hand_in, hand_points, mark
from tests.grading.publish.looking import original, read_table

SECOND = load_week(ROOT / "week14_fsdp")


def called(cls):
    return {one.id: key_of(cls, one) for one in everybody(cls)}


def by_student(table):
    head, *rows = table
    return {row[0]: dict(zip(head, row)) for row in rows}


def week(cls, **how):
    return by_student(week_table(WEEK, standings(cls, WEEK), called(cls), **how))


def term(cls, weeks=(WEEK,), zeros=False):
    return by_student(term_table([(week, standings(cls, week), zeros) for week in weeks], called(cls), {}))


def test_one_line_each_with_points_by_task_and_the_total(tmp_path):
    with a_class(tmp_path, ["anna", "ben", "cleo"], LATE) as cls:
        one = hand_in(cls, "anna", mark("13.5 GB/s"), days_late=1)
        hand_in(cls, "ben", mark())
        hand_points(cls, one, "13.7", 15)
        hand_points(cls, one, "13.6", 4)
        found = week(cls)
    auto = mark("13.5 GB/s").points - 10 + 4
    anna, ben, cleo = found["anna"], found["ben"], found["cleo"]
    assert anna["total"] == pytest.approx(0.9 * (auto + 15)) and anna["late factor"] == 0.9
    assert anna["13.7 predictions, three clocks, the topology document (20)"] == 15 and anna["automatic"] == auto
    assert anna["decided by a person"] == "13.6: 4, the checks give 10" and anna["possible"] == 100
    assert (ben["total"], ben["by hand"], ben["state"]) == (None, None, "to be graded by hand")
    assert (cleo["attempts"], cleo["total"], cleo["state"], cleo["submission"]) == (0, None, "missing", None)


def test_zeros_and_excuses(tmp_path):
    with a_class(tmp_path, ["anna", "ben", "cleo"], LATE + '[excused]\nweek13 = ["anna", "ben"]\n') as cls:
        hand_points(cls, hand_in(cls, "anna", mark()), "13.7", 20)
        found, ofterm = week(cls, zeros=True), term(cls, zeros=True)
    assert [(one["total"], one["possible"]) for one in found.values()] == [(None, None), (None, None), (0, 100)]
    assert (ofterm["anna"]["total"], ofterm["anna"]["possible"], ofterm["anna"]["excused"]) == (None, 0, "week13")
    assert (ofterm["cleo"]["total"], ofterm["cleo"]["possible"], ofterm["cleo"]["open"]) == (0, 100, "")


def test_the_terms_total_waits_for_every_week(tmp_path):
    weeks = (WEEK, SECOND)
    with a_class(tmp_path, ["anna"], LATE, weeks) as cls:
        hand_points(cls, hand_in(cls, "anna", mark()), "13.7", 20)
        whole, part = term(cls, weeks)["anna"], term(cls)["anna"]
    assert (part["total"], part["possible"], part["open"]) == (100, 100, "")
    assert whole["total"] is None and whole["open"].startswith("week14 ") and whole["possible"] == 200


def test_a_table_comes_back_as_it_was(tmp_path):
    with forty(tmp_path / "autumn") as cls:
        path = write(week_table(WEEK, standings(cls, WEEK), called(cls)), tmp_path / "all.csv")
    text = path.read_bytes().decode("utf-8")
    assert text.startswith("\ufeff") and "\r\n" in text
    names = {row["name"] for row in read_table(path)}
    assert set(AWKWARD) <= names and len(names) == 40
    for line in csv.reader(io.StringIO(text[1:], newline="")):
        assert not any(cell.lstrip("\u200b\ufeff ")[:1] in ("=", "+", "-", "@") for cell in line)
    assert dumps([["a", 1.5, None, 2]]) == '"a",1.5,"",2\r\n', "numbers have a point and no quotes"


@pytest.mark.parametrize(
    "cell", ["=1", "+1", "-1", "@x", "\t=1", "  =1", "\u200b=1", "\ufeff=1", "\u00ad\u200f=1", "'=1", "\uff1d1", "\r=1"]
)
def test_what_a_spreadsheet_would_calculate_gets_an_apostrophe_and_other_cells_stay(cell):
    assert harmless(cell) == f"'{cell}" and original(harmless(cell)) == cell
    for other in ("a=1", "", "-", "'t Hooft", "Zoë", "1", "\u200bAnna", "O'Brien"):
        assert harmless(other) == other
