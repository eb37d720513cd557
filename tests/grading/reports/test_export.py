"""The class as CSV: every name comes back as it was, no cell is a formula, numbers are numbers."""

from __future__ import annotations

import csv
import io

import pytest

from grading.marks import UNSANDBOXED, write
from grading.reports.by_hand import ByHand
from grading.reports.export import dumps, export, harmless, table
from grading.reports.standing import Standing, standings
from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT
from tests.grading.reports.aclass import AWKWARD, mark, spoil
from tests.grading.reports.looking import original, read_table

DANGEROUS = "=+-@\t\r\n\0\uff1d"


def test_names_with_commas_quotes_accents_and_right_to_left_script_come_back(week, tmp_path):
    for name in AWKWARD:
        write(tmp_path / "marks", mark(name, "13.5 GB/s"))
    here = standings(week, tmp_path / "marks", tmp_path)
    rows = read_table(export(week, here, tmp_path / "all.csv"))
    assert sorted(row["student"] for row in rows) == sorted(AWKWARD)
    for row in rows:
        assert float(row["automatic"]) == next(s for s in here if s.student == row["student"]).automatic


def test_no_cell_begins_like_a_formula(week, tmp_path):
    names = [
        *AWKWARD,
        "\t=1",
        "  =1",
        "'=1",
        "''@x",
        "\r\nx",
        "\0",
        "\uff1dSUM(A1)",
        "-2+3+cmd|' /C calc'!A0",
        "'''plain",
    ]
    for name in names:
        assert original(harmless(name)) == name
    text = dumps([["student"], *([name] for name in names)])
    cells = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert [original(cell) for cell in cells[1:]] == names
    assert not [cell for cell in cells if cell.lstrip(" ")[:1] and cell.lstrip(" ")[0] in DANGEROUS]
    assert harmless("'t Hooft") == "'t Hooft" and harmless("a-b") == "a-b" and harmless("") == ""


def test_columns_are_the_tasks_and_numbers_are_no_text(week, tmp_path):
    made = Standing(
        mark("anna", "13.5 GB/s", attempt=3), [1, 3], 0.9, "late, so 10 % less", {"13.7": ByHand("13.7", 15.5)}
    )
    path = export(week, [made], tmp_path / "all.csv")
    raw = path.read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf") and raw.count(b"\r\n") == 2, "Excel needs the mark; RFC 4180 ends lines so"
    row = read_table(path)[0]
    assert row["13.1 the alpha-beta cost model (15)"] == "15"
    assert row["13.7 predictions, three clocks, the topology document (20)"] == "15.5"
    assert not [name for name in row if "13.8" in name], "stretch tasks give no points"
    automatic = float(row["automatic"])
    assert automatic == made.mark.points < 80 and row["by hand"] == "15.5"
    assert float(row["total"]) == pytest.approx(0.9 * (automatic + 15.5), abs=0.005)
    assert (row["attempt"], row["attempts"], row["late factor"], row["rule"]) == ("3", "2", "0.9", "late, so 10 % less")
    assert row["state"] == "complete" and row["possible"] == "100" and row["isolation"] == "bubblewrap"
    assert row["decided by a person"] == ""
    assert b'"anna",3,2,' in raw and b",15.5," in raw


def test_points_in_place_of_the_checks_are_named(week, tmp_path):
    """Automatic points that a person decided look like the others: only the sentence tells them apart."""
    made = mark("anna", "13.5 GB/s")
    (task,) = (task for task in made.tasks if task["id"] == "13.5")
    by_hand = {"13.5": ByHand("13.5", task["possible"]), "13.7": ByHand("13.7", 9)}
    path = export(week, [Standing(made, [1], by_hand=by_hand)], tmp_path / "all.csv")
    row = read_table(path)[0]
    decided = f"13.5: {task['possible']}, the checks give {task['points']}"
    assert row["automatic"] == "80" and row["decided by a person"] == decided
    by_hand["13.5"].points = task["points"]
    assert Standing(made, [1], by_hand=by_hand).in_place == [], "the same points are nothing else"


@pytest.mark.parametrize("points", [None, 4])
def test_extra_points_of_an_automatic_task_are_named_and_asked_for_again(week, tmp_path, points):
    """Formgrader's box "extra credit" went around every question: 101 of 100 stood as complete, of an older attempt."""
    made = mark("anna", "13.5 GB/s", attempt=2)
    (task,) = (task for task in made.tasks if task["id"] == "13.5")
    given = ByHand("13.5", points, extra=5, of=(2, made.submission), automatic=task["points"])
    here = Standing(made, [1, 2], by_hand={"13.5": given, "13.7": ByHand("13.7", 20)})
    whole = number((task["points"] if points is None else points) + 5)
    assert here.in_place == [f"13.5: {whole}, the checks give {task['points']}"] and here.total is not None
    given.of = (1, "another")
    assert here.total is None and here.before == ["13.5"], "it was given for the first attempt"


def test_half_a_hundredth_is_rounded_up_as_it_is_by_hand(week):
    """(70.75 + 15) x 0.9 is 77.175, and the float below it made 77.17 of it."""
    made = mark("anna")
    made.tasks[0]["points"] -= 9.25
    total = Standing(made, [1], 0.9, by_hand={"13.7": ByHand("13.7", 15)}).total
    assert total == 77.18 and [number(x) for x in (0.125, 0.9 * 1.65, 1.005, 2 / 3, 2.004999)] == [
        0.13,
        1.49,
        1.01,
        0.67,
        2,
    ]


def test_a_slip_of_thirty_digits_in_formgrader_is_a_number_too():
    assert number(1e30) == 1e30 and number(-0.125) == -0.13 and number(0.0) == 0


def test_what_is_not_decided_is_empty_and_the_state_says_why(week):
    faulty = spoil(mark("b", complete=False), "test_algbw", FAULT, "the check itself failed")
    made = [
        Standing(mark("a", isolation=UNSANDBOXED), [1]),
        Standing(faulty, [1]),
        Standing(mark("c"), [1], by_hand={"13.7": ByHand("13.7", 20, again=True)}),
    ]
    head, *rows = table(week, made)
    a, b, c = (dict(zip(head, row)) for row in rows)
    assert a["total"] is None and a["by hand"] is None and a["state"] == "to be graded by hand" and a["automatic"] == 80
    assert a["isolation"] == UNSANDBOXED
    assert b["automatic"] is None and b["total"] is None and b["13.5 timing a collective (12)"] is None
    assert b["state"] == "a human must look" and b["13.1 the alpha-beta cost model (15)"] == 15
    assert c["total"] is None and c["by hand"] == 20 and c["state"] == "to be looked at again by hand"
