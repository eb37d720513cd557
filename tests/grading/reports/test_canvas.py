"""Canvas' gradebook import, read here as Canvas' importer reads it."""

from __future__ import annotations

import csv
import io
import re

import pytest

from grading.intake.roster import read as read_roster
from grading.reports.by_hand import ByHand
from grading.reports.canvas import export
from grading.reports.one_week import again
from grading.reports.standing import Standing
from labkit.checks.verdict import FAULT
from labkit.errors import LabError
from tests.grading.reports.aclass import AWKWARD, mark, spoil

ROSTER = """Student,ID,SIS User ID,SIS Login ID,Section,Homework 1 (99),Current Score
    Points Possible,,,,,10,(read only)
"O'Neill, Anna",4711,u1,anna@uni,Group 1,3,30
"כהן, דנה",4712,u2,dana,"Group 1, Group 2",,
"Müller, Bob",4713,=u3,@bob,Group 2,,
"Smith, Jo",4714,u4,jo1,,,
"Smith, Jo",4715,u5,jo2,,,
"""


def as_canvas(path):
    """(assignment's title, points possible, lines), by the rules of lib/gradebook_importer.rb: where the student's
    columns end, which line gives the points, who a line is, and what a number is."""
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8"), newline="")))
    head, points, *lines = rows
    assert len(head) > 3 and "Student" in head[0] and "ID" in head[1]
    assert "SIS User ID" in head[2] and "SIS Login ID" in head[3] and "Section" in head[4]
    assert "Points Possible" in points[0] and len({len(row) for row in rows}) == 1
    (title,) = head[5:]
    assert not re.search("Current Score|Final Score|Override", title)
    grades = [row[5] for row in (points, *lines)]
    assert all(re.fullmatch(r"\d+(\.\d+)?", grade) for grade in grades), "no thousands, a point, and never empty"
    names = ("student", "id", "user", "login", "section", "grade")
    return title, float(points[5]), [dict(zip(names, row)) for row in lines]


def done(name, points=20, **more):
    return Standing(mark(name, **more), [1], by_hand={"13.7": ByHand("13.7", points)})


def test_names_come_back_and_grades_are_the_totals(week, tmp_path):
    names = [name for name in AWKWARD if not re.match(r"'?[=+\-@]", name)]
    written = export(week, [done(name) for name in names], tmp_path / "canvas.csv")
    title, points, lines = as_canvas(written.path)
    assert title == "week13: All-reduce" and points == 100 and written.lines == len(names)
    assert [line["login"] for line in lines] == [line["student"] for line in lines] == names
    assert all(line["id"] == "" and line["grade"] == "100" for line in lines)
    assert not written.path.read_bytes().startswith(b"\xef\xbb\xbf")


def test_without_a_roster_an_id_like_a_formula_is_left_out_and_told(week, tmp_path):
    written = export(week, [done("=HYPERLINK()"), done("anna")], tmp_path / "canvas.csv")
    assert written.lines == 1 and "=HYPERLINK()" in written.told[0] and "--roster" in written.told[0]


def test_a_student_without_a_total_has_no_line_since_an_empty_grade_would_delete(week, tmp_path):
    faulty = spoil(mark("faulty", complete=False), "test_algbw", FAULT, "the check itself failed")
    made = [done("anna"), Standing(mark("ben"), [1]), Standing(faulty, [1], by_hand={"13.7": ByHand("13.7", 20)})]
    written = export(week, made, tmp_path / "canvas.csv")
    assert [line["login"] for line in as_canvas(written.path)[2]] == ["anna"]
    assert written.told == [
        "1 student left out (to be graded by hand): ben",
        "1 student left out (a human must look): faulty",
    ]


def test_automatic_points_alone_after_the_late_rule(week, tmp_path):
    made = Standing(mark("ben", "13.5 GB/s"), [1], 0.5, "late")
    _, points, lines = as_canvas(export(week, [made], tmp_path / "c.csv", automatic_only=True).path)
    assert points == 80 and float(lines[0]["grade"]) == made.mark.points / 2


def test_the_roster_gives_canvas_own_columns(week, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_bytes(b"\xef\xbb\xbf" + ROSTER.encode())
    made = [done("anna@uni"), done("u2", 10), done("muellerbob_4713", 0)]
    written = export(week, made, tmp_path / "c.csv", roster=read_roster(roster), assignment="Week 13 (4242)")
    title, _, lines = as_canvas(written.path)
    assert title == "Week 13 (4242)" and written.told == []
    assert lines[0] == {
        "student": "O'Neill, Anna",
        "id": "4711",
        "user": "u1",
        "login": "anna@uni",
        "section": "Group 1",
        "grade": "100",
    }
    assert lines[1]["student"] == "כהן, דנה" and lines[1]["section"] == "Group 1, Group 2" and lines[1]["grade"] == "90"
    assert lines[2]["id"] == "4713" and lines[2]["user"] == lines[2]["login"] == "", "its number finds him; no formula"


@pytest.mark.parametrize(
    "columns, assignment, title, there",
    [
        (("Week 13 (113)", "Week 14 (114)"), None, "Week 13 (113)", True),
        (("week13: All-reduce (113)",), None, "week13: All-reduce (113)", True),
        (("All-Reduce (7)", "Week 13 quiz (8)"), None, "All-Reduce (7)", True),
        (("Week 13 (113)", "Lab one (5)"), "Lab one", "Lab one (5)", True),
        (("Week 14 (114)",), None, "week13: All-reduce", False),
        (("Week 13 (113)",), "Lab two", "Lab two", False),
    ],
)
def test_a_column_that_is_there_is_filled_and_not_made_once_more(week, tmp_path, columns, assignment, title, there):
    head = ",".join(("Student,ID,SIS User ID,SIS Login ID,Section", *columns))
    (tmp_path / "r.csv").write_text(f"{head}\n    Points Possible,,,,{',100' * len(columns)}\nA,7,,anna,,\n")
    written = export(
        week, [done("anna")], tmp_path / "c.csv", roster=read_roster(tmp_path / "r.csv"), assignment=assignment
    )
    assert as_canvas(written.path)[0] == title and written.column == (title if there else "") and written.told == []


def test_a_column_that_may_be_another_ones_is_asked_for_and_other_points_are_refused(week, tmp_path):
    """A quiz of the same week would lose its grades."""
    (tmp_path / "r.csv").write_text("Student,ID,Section,Week 13 quiz (8)\nPoints Possible,,,10\nA,anna,,\n")
    roster = read_roster(tmp_path / "r.csv")
    with pytest.raises(LabError, match=r"'Week 13 quiz \(8\)', which may be week13 or not: .*--assignment"):
        export(week, [done("anna")], tmp_path / "c.csv", roster=roster)
    for most, number in (("10", "10"), ("1000", "1000"), ("100.5", "100.5"), ('"80,0"', "80.0")):
        (tmp_path / "r.csv").write_text(f"Student,ID,Section,Week 13 quiz (8)\nPoints Possible,,,{most}\nA,anna,,\n")
        roster = read_roster(tmp_path / "r.csv")
        with pytest.raises(
            LabError, match=rf"'Week 13 quiz \(8\)' has {number} points possible in Canvas, and here are 100"
        ):
            export(week, [done("anna")], tmp_path / "c.csv", roster=roster, assignment="Week 13 quiz (8)")
    assert not (tmp_path / "c.csv").exists()
    for most in ("100", "100.0", '"100,00"', "", "(read only)"):
        (tmp_path / "r.csv").write_text(f"Student,ID,Section,Week 13 quiz (8)\nPoints Possible,,,{most}\nA,anna,,\n")
        roster = read_roster(tmp_path / "r.csv")
        written = export(week, [done("anna")], tmp_path / "c.csv", roster=roster, assignment="Week 13 quiz (8)")
        assert written.lines == 1 and written.told == []


def test_nobody_gets_another_one_s_grade(week, tmp_path):
    (tmp_path / "roster.csv").write_text(ROSTER)
    made = [done("Smith, Jo"), done("nobody"), done("anna@uni"), done("u1")]
    written = export(week, made, tmp_path / "c.csv", roster=read_roster(tmp_path / "roster.csv"))
    assert written.lines == 0
    assert written.told == [
        "1 student left out (several of the roster are called so): Smith, Jo",
        "1 student left out (not in the roster): nobody",
        "2 students left out (one student of the roster under two names, so the points of neither): anna@uni; u1",
    ]


def test_hand_points_for_an_older_answer_are_told(week, tmp_path):
    made = Standing(mark("anna"), [1], by_hand={"13.7": ByHand("13.7", 20, again=True)})
    written = export(week, [made], tmp_path / "c.csv", told=again([made]))
    assert written.lines == 0, "as long as somebody has to look, there is no total"
    assert written.told[0] == "1 student left out (to be looked at again by hand): anna"
    assert written.told[1:] == ["graded by hand before the answer changed, look again: anna"]


def test_more_points_than_a_task_has_are_told(week, tmp_path):
    extra = Standing(mark("ben"), [1], by_hand={"13.7": ByHand("13.7", 20, extra=5)})
    here = [done("anna", 25), extra, done("cai")]
    written = export(week, here, tmp_path / "c.csv", told=again(here))
    told = "more points by hand than there are: "
    assert written.told == [f"{told}anna, 25 of 20 in 13.7"] and written.lines == 3, "extra points are meant"
    assert done("anna", 25).state == f"{told}25 of 20 in 13.7", "in the table of grade status, too"
    assert extra.state == "complete"


def test_a_roster_with_semicolons_and_one_that_is_none(tmp_path):
    (tmp_path / "s.csv").write_text("Student;ID;SIS Login ID;Section\nPoints Possible;;;\nA, B;7;ab;\n")
    (line,) = read_roster(tmp_path / "s.csv").lines
    assert line.cells == {"Student": "A, B", "ID": "7", "SIS Login ID": "ab", "Section": ""}
    (tmp_path / "n.csv").write_text("name,points\nx,1\n")
    with pytest.raises(LabError, match="no roster"):
        read_roster(tmp_path / "n.csv")
    with pytest.raises(LabError, match="there is no roster .*missing.csv: put it there"):
        read_roster(tmp_path / "missing.csv")
