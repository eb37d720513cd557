"""`grade feedback`, `report`, `export`, `forget` as one types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from grading.gradebook.course import course_folder
from grading.marks import write
from grading.reports.commands import add_commands
from labkit.errors import LabError
from tests.grading.reports.aclass import ROOT, mark
from tests.grading.reports.looking import Tags, read_table
from tests.grading.reports.pngs import png


@pytest.fixture
def grade(tmp_path, monkeypatch):
    """Run a command in a course that holds week 13 only, with two students' marks."""
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "week13_allreduce").symlink_to(ROOT / "week13_allreduce")
    monkeypatch.chdir(tmp_path / "course")
    write(Path("marks"), mark("anna", "13.5 GB/s"))
    write(Path("marks"), mark("ben"))
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)

    def run(*args, input=None):
        result = CliRunner().invoke(app, args, input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_feedback_with_pictures_of_the_submission_that_was_marked(grade, week):
    from grading.intake.find import find_submissions
    from grading.intake.load import load

    folder = Path("submitted/anna/week13")
    folder.mkdir(parents=True)
    (folder / "plot.png").write_bytes(png(4, 4))
    (entry,) = find_submissions("submitted", week)
    write(Path("marks"), mark("anna", submission=load(entry, week).digest))
    result = grade("feedback", "week13", "--to", "feedback")
    assert result.exit_code == 0 and "2 pages are in feedback" in result.output
    assert [a["alt"] for a in Tags(Path("feedback/anna/week13.html").read_text()).all("img")] == [
        "Your picture 1: the file plot.png."
    ]
    write(Path("marks"), mark("anna", submission="another one"))
    grade("feedback", "week13", "--to", "feedback")
    page = Path("feedback/anna/week13.html").read_text()
    assert not Tags(page).all("img"), "pictures of another hand-in are not shown"


def test_feedback_tells_whose_points_are_not_all_there(grade):
    """Else pages are handed back that speak of points to come, and who has no page is not missed."""
    for student in ("anna", "cleo"):
        Path("submitted", student, "week13").mkdir(parents=True)
        Path("submitted", student, "week13", "collectives.py").write_text("x = 1\n")
    result = grade("feedback", "week13", "--to", "feedback")
    assert "2 of them say that points by hand come later: `grade status week13`" in result.output
    assert "No page for cleo: handed in, and not graded yet" in result.output
    one = grade("feedback", "week13", "--to", "feedback", "--student", "anna").output
    assert "1 of them says that points by hand" in one and "cleo" not in one
    for name in ("anna", "ben"):
        write(Path("marks"), mark(name, unanswered=["13.7"]))
    assert "points by hand" not in grade("feedback", "week13", "--to", "feedback").output


def test_feedback_of_one_student(grade):
    assert grade("feedback", "week13", "--to", "f", "--student", "ben").exit_code == 0
    assert [p.name for p in Path("f").iterdir()] == ["ben"]
    with pytest.raises(LabError, match="did you mean 'ben'"):
        grade("feedback", "week13", "--to", "f", "--student", "bem")


def test_report_draws_the_page_and_prints_the_short_form(grade):
    result = grade("report", "week13", "--to", "class.html")
    assert result.exit_code == 0 and "What the class has not understood" in result.output
    assert "2 students" in result.output and len(Tags(Path("class.html").read_text()).all("img")) == 3


def test_export_in_both_formats(grade):
    assert "2 have no total yet" in grade("export", "week13", "--to", "all.csv").output
    result = grade("export", "week13", "--to", "canvas.csv", "--format", "canvas", "--automatic")
    assert "2 of 2 students are in canvas.csv" in result.output
    assert Path("canvas.csv").read_text().startswith('"Student"')
    assert grade("export", "week13", "--to", "x.csv", "--automatic").exit_code == 2


def test_the_term_is_a_table_of_all_weeks_that_have_marks(grade):
    Path("roster.csv").write_text(
        'Identifier,"Full name","Email address"\n"Participant 1",anna,a@x\n"Participant 2",ben,b@x\n'
        '"Participant 3",cy,c@x\n'
    )
    write(Path("marks"), mark("anna", unanswered=["13.7"]))
    Path("submitted/ben/week13").mkdir(parents=True)
    said = grade("export", "--to", "term.csv", "--roster", "roster.csv").output
    assert "3 students and 1 week are in term.csv" in said and "2 have no total yet" in said
    rows = read_table(Path("term.csv"))
    assert [(r["student"], r["Email address"], r["week13 (100)"], r["total"], r["open"]) for r in rows] == [
        ("anna", "a@x", "80", "80", ""),
        ("ben", "b@x", "", "", "week13 to be graded by hand"),
        ("cy", "c@x", "", "", "week13 not handed in yet"),
    ]
    assert grade("export", "--to", "t.csv", "--format", "moodle").exit_code == 2
    assert grade("export", "--to", "t.csv", "--zeros").exit_code == 2
    shutil.rmtree("marks")
    with pytest.raises(LabError, match="there are no marks in marks"):
        grade("export", "--to", "t.csv")


def test_a_hand_in_without_a_mark_is_no_zero(grade):
    """`grade run` passes over what it cannot read: whoever handed that in is not missing."""
    Path("roster.csv").write_text("anna\nben\ncleo\ndora\n")
    Path("course.toml").write_text("[deadlines]\nweek13 = 2026-01-01T00:00:00Z\n")
    Path("submitted/cleo/week13").mkdir(parents=True)
    Path("submitted/cleo/week13/collectives.py").write_text("x = 1\n")
    said = grade("export", "week13", "--to", "all.csv", "--roster", "roster.csv", "--zeros").output
    assert "1 student handed nothing in, 0 points: dora" in said
    assert "1 hand-in is not graded yet, and no zero: cleo" in said
    assert {row["student"]: row["total"] for row in read_table(Path("all.csv"))} == {"anna": "", "ben": "", "dora": "0"}
    grade("export", "--to", "term.csv", "--roster", "roster.csv", "--zeros")
    open_ = {row["student"]: (row["total"], row["open"]) for row in read_table(Path("term.csv"))}
    assert open_["cleo"] == ("", "week13 not graded yet") and open_["dora"] == ("0", "")


def test_forget_shows_asks_and_removes(grade):
    grade("feedback", "week13", "--to", "feedback")
    refused = grade("forget", "anna", input="n\n")
    assert refused.exit_code == 1 and "marks of week13: marks/week13/anna (1 file, " in refused.output
    assert Path("marks/week13/anna").exists() and Path("feedback/anna").exists()
    done = grade("forget", "anna", input="y\n")
    assert done.exit_code == 0 and "removed: feedback, feedback/anna" in done.output
    assert not Path("marks/week13/anna").exists() and Path("marks/week13/ben/1.json").exists()
    with pytest.raises(LabError, match="nothing is stored of 'anna'"):
        grade("forget", "anna", "--yes")


def test_the_course_directory_is_found_where_the_page_for_instructors_puts_it(grade, monkeypatch):
    asked = []
    monkeypatch.setattr("grading.reports.standing.standings", lambda week, marks, folder, rules: asked.append(folder))
    with pytest.raises(TypeError):  # there is nobody
        grade("report", "week13", "--to", "class.html")
    Path("gradebook").mkdir()
    Path("gradebook/nbgrader_config.py").write_text("")
    for words in ((), ("--gradebook", "other")):
        with pytest.raises(TypeError):
            grade("report", "week13", "--to", "class.html", *words)
    monkeypatch.chdir("gradebook")
    assert course_folder(None) == Path(".")
    Path("within/gradebook").mkdir(parents=True)
    Path("within/gradebook/nbgrader_config.py").write_text("")
    monkeypatch.chdir("within")
    assert course_folder(None) == Path("."), "it lies in a course directory"
    assert asked == [Path("."), Path("gradebook"), Path("other")]


def test_forget_says_if_no_gradebook_was_searched(grade):
    assert "none was searched: --gradebook DIR" in grade("forget", "anna", input="n\n").output


def test_forget_without_asking_tells_what_is_left_to_a_person(grade):
    grade("export", "week13", "--to", "all.csv")
    result = grade("forget", "ben", "--yes")
    assert result.exit_code == 1 and "left to you: " in result.output and "all.csv names this student" in result.output
    again = grade("forget", "ben", "--yes")
    assert again.exit_code == 1 and "Of ben there is" not in again.output


def test_the_rules_of_the_working_directory_hold(grade):
    Path("course.toml").write_text("[deadlines]\nweek13 = 2026-11-19T23:59:00+01:00\n[late]\nper_day = 0.1\n")
    grade("export", "week13", "--to", "c.csv", "--format", "canvas", "--automatic")
    assert Path("c.csv").read_text().splitlines()[-1].endswith(",72"), "ben: 80 less 10 %"
    grade("feedback", "week13", "--to", "f", "--student", "ben")
    assert "10 % of the points are taken off" in Path("f/ben/week13.html").read_text()
    with pytest.raises(LabError, match="other.toml"):
        grade("report", "week13", "--to", "x.html", "--course", "other.toml")


def test_mistakes_are_one_sentence(grade):
    with pytest.raises(LabError, match="grade run week13"):
        grade("report", "week13", "--to", "class.html", "--marks", "nowhere")
    with pytest.raises(LabError, match="there is no week"):
        grade("export", "week99", "--to", "x.csv")
    Path("marks/week13/anna/1.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(LabError, match="grade run"):
        grade("feedback", "week13", "--to", "f")


def test_feedback_and_the_seed_wait_for_the_last_hand_in(grade):
    """Somebody has an extension: pages and the seed would tell them of hidden data."""
    from grading.cli import app

    Path("marks/week13/.seed.json").write_text('{"seed": 5}')
    Path("course.toml").write_text(
        "[deadlines]\nweek13 = 2020-01-01T00:00:00+00:00\n[extensions.ben]\nweek13 = 2999-01-01T00:00:00+00:00\n"
    )

    def seed(*more):
        return CliRunner().invoke(app, ["seed", "week13", *more])

    with pytest.raises(LabError, match=r"until 2999-01-01 .*'ben' has an extension.*--anyway"):
        grade("feedback", "week13", "--to", "feedback")
    assert not Path("feedback").exists()
    assert isinstance(seed().exception, LabError) and seed("--anyway").output == "5\n"
    assert grade("feedback", "week13", "--to", "feedback", "--anyway").exit_code == 0
    Path("course.toml").write_text("[deadlines]\nweek13 = 2020-01-01T00:00:00+00:00\n")
    assert seed().output == "5\n" and grade("feedback", "week13", "--to", "feedback").exit_code == 0


def test_status_where_no_class_is_says_so(grade):
    assert "week13: 2 handed in, 2 graded" in grade("status").output
    shutil.rmtree("marks")
    said = " ".join(grade("status").output.split())
    assert said.startswith("No class is here: submitted holds no hand-in, marks no marks")


def test_the_column_of_canvas_that_is_filled_is_told(grade):
    Path("r.csv").write_text(
        "Student,ID,SIS Login ID,Section,Week 13 (113)\nPoints Possible,,,,80\nA,1,anna,,\nB,2,ben,,\n"
    )
    words = ("export", "week13", "--to", "c.csv", "--format", "canvas", "--automatic", "--roster", "r.csv")
    assert "Grades, Import, into the column 'Week 13 (113)' of r.csv" in grade(*words).output
    assert "as a new assignment: r.csv has no column of this title" in grade(*words, "--assignment", "Lab").output


@pytest.mark.parametrize(
    "words, name", [(("--format", "canvas", "--automatic", "--roster", "r.csv"), "A"), ((), "anna")]
)
def test_a_second_export_tells_what_changed(grade, words, name):
    """Points by hand and extensions change a total without a word of `grade run`."""
    Path("r.csv").write_text("Student,ID,SIS Login ID,Section\nA,1,anna,\nB,2,ben,\n")
    command = ("export", "week13", "--to", "c.csv", *words)
    write(Path("marks"), mark("anna", "13.5 GB/s", unanswered=["13.7"]))
    assert "Changed since" not in grade(*command).output and "Changed since" not in grade(*command).output
    before = mark("anna", "13.5 GB/s").points
    write(Path("marks"), mark("anna", unanswered=["13.7"]))
    assert f"Changed since the file that was there: {name} {before:g} -> 80\n" in grade(*command).output


def test_the_term_tells_what_changed(grade):
    write(Path("marks"), mark("anna", "13.5 GB/s", unanswered=["13.7"]))
    assert "Changed since" not in grade("export", "--to", "t.csv").output
    write(Path("marks"), mark("anna", unanswered=["13.7"]))
    assert "Changed since the file that was there: anna " in grade("export", "--to", "t.csv").output


def test_who_is_excused_is_so_in_every_export(grade):
    """One of them handed in, one's hand-in has no mark, one handed in nothing, one is nobody."""
    write(Path("marks"), mark("anna", unanswered=["13.7"]))
    Path("submitted/cleo/week13").mkdir(parents=True)
    Path("submitted/cleo/week13/collectives.py").write_text("x = 1\n")
    Path("r.csv").write_text("anna\nben\ncleo\ndora\njonas\n")
    text = '[deadlines]\nweek13 = 2026-01-01T00:00:00Z\n[roster]\nfile = "r.csv"\n[extensions.jonas]\n'
    text += "week13 = 2999-01-01T00:00:00Z\n"
    Path("course.toml").write_text(text)
    with pytest.raises(LabError, match="can be handed in until 2999"):
        grade("feedback", "week13", "--to", "pages")
    Path("course.toml").write_text(f'{text}[excused]\nweek13 = ["ben", "cleo", "jonas", "joans"]\n')
    assert grade("feedback", "week13", "--to", "pages").exit_code == 0, (
        "an excused one's extension keeps nothing closed"
    )
    for words in (("week13",), ()):
        with pytest.raises(
            LabError, match="joans of .excused. is not found in r.csv, and 0 points of week13 would go to"
        ):
            grade("export", *words, "--to", "export.csv", "--zeros")
    assert not Path("export.csv").exists(), "dora's zero may be joans'"
    said = grade("export", "week13", "--to", "export.csv", "--zeros", "--anyway").output
    assert "1 student handed nothing in, 0 points: dora\n" in said and "not graded yet" not in said
    assert "4 students are excused, no points and no zero: ben; cleo; joans; jonas\n" in said
    slip = "[excused] in course.toml, week13, speaks of joans, who is not in r.csv, the marks or the hand-ins: "
    assert f"{slip}did you mean jonas?\n" in said and "no total yet" not in said and "6 students are in" in said
    rows = {row["student"]: (row["total"], row["possible"], row["state"]) for row in read_table(Path("export.csv"))}
    free = ("", "", "excused")
    assert rows == {
        "anna": ("80", "100", "complete"),
        "dora": ("0", "100", "missing"),
        **dict.fromkeys(("ben", "cleo", "joans", "jonas"), free),
    }
    said = grade("export", "--to", "t.csv", "--zeros", "--anyway").output
    assert "Excused, and out of `total` and `possible`: ben (week13); cleo (week13); jonas (week13)\n" in said
    assert slip in said and "no total yet" not in said
    assert [(row["student"], row["possible"]) for row in read_table(Path("t.csv"))] == [
        ("anna", "100"),
        ("ben", "0"),
        ("cleo", "0"),
        ("dora", "100"),
        ("jonas", "0"),
    ]
    Path("canvas.csv").write_text(
        "Student,ID,SIS Login ID,Section\nA,1,anna,\nB,2,ben,\nC,3,cleo,\nD,4,dora,\nJ,5,jonas,\n"
    )
    words = ("export", "week13", "--to", "c.csv", "--format", "canvas", "--zeros", "--roster", "canvas.csv", "--anyway")
    course = Path("course.toml").read_text()
    Path("course.toml").write_text(course.replace('"ben"', '"B"'))  # the roster's name of him
    assert "5 of 6 students are in c.csv" in (said := grade(*words).output)
    assert "1 student left out (not in the roster): joans\n" in said
    grades = {row["Student"]: row["week13: All-reduce"] for row in read_table(Path("c.csv"))}
    assert grades == {"    Points Possible": "100", "A": "80", "B": "EX", "C": "EX", "J": "EX", "D": "0"}
    Path("course.toml").write_text(text)
    said = grade(*words).output
    assert "1 hand-in is not graded yet, and no zero: cleo\n" in said and "excused" not in said
    grade("export", "--to", "t.csv", "--zeros")
    assert "excused" not in Path("t.csv").read_text()
