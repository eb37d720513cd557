"""What an instructor types in the wrong place, in the wrong order, or of the wrong week: refused in one sentence that
says what to type instead, or understood. Each of these cost a new instructor up to half an hour in a walked term."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from grading import history, judge, marks
from grading.cli import _called, main
from grading.here import not_the_class
from grading.intake.collect import collect
from grading.intake.find import find_submissions
from grading.intake.load import load
from grading.intake.policy import DEFAULTS, Late, Rules, refuse_while_open
from grading.intake.rename import rename
from grading.reports.by_hand import ByHand
from grading.reports.commands import again
from grading.reports.feedback import path_of, what_next
from grading.reports.standing import Standing
from grading.reports.status import status
from grading.run import Report
from grading.similar.commands import _year
from grading.table import class_table, poorer, told_once
from labkit.checks.outcome import CaseResult, Outcome
from labkit.checks.tasks import find_weeks
from labkit.checks.verdict import FAULT, NO_RESULT, PASSED
from labkit.errors import LabError
from tests.grading.reports.aclass import mark, spoil

ROOT = Path(__file__).resolve().parents[2]
WEEKS = {week.name: week for week in find_weeks(ROOT)}
LONG_AGO, FAR_OFF = "2001-01-01T12:00:00+00:00", "2999-01-01T12:00:00+00:00"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def grade(folder, *words, status=0):
    """What a command says; its last line if it fails."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main([str(word) for word in words])
    assert (left.value.code or 0) == status, out.getvalue() + err.getvalue()
    return " ".join((out.getvalue() if status != 2 else err.getvalue()).split())


def modules(week):
    return sorted({f"{name.split('.')[0]}.py" for task in week.tasks for name in task.modules if task.kind == "auto"})


def download(path, week, *students):
    """A download of Moodle's: each student's modules of a week."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, student in enumerate(students, 100):
            for name in modules(week):
                archive.writestr(f"{student}_{number}_assignsubmission_file_/{name}", "x = 1\n")
    return path


@pytest.fixture
def classroom(tmp_path):
    """A class's folder: marks of week 13 of anna and of one whom Canvas calls carterben_4002, a roster, a deadline."""
    for student in ("anna", "carterben_4002", "stranger"):
        marks.write(tmp_path / "marks", mark(student))
    (tmp_path / "roster.csv").write_text("anna\nBen Carter\nhugo\n")
    (tmp_path / "course.toml").write_text(
        f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n[ids]\n'
        '"carterben_4002" = "ben"\n"ben" = "Ben Carter"\n'
    )
    return tmp_path


# ---- the wrong week


PAIRS = [(name, other) for name in WEEKS for other in WEEKS]
CLOSE = [("week14", "week14"), ("week14", "week15")]  # both have a module overlap.py


@pytest.mark.parametrize(
    "name, other", [pair if pair in CLOSE else pytest.param(*pair, marks=pytest.mark.thorough) for pair in PAIRS]
)
def test_a_download_of_another_week_is_refused(name, other, tmp_path):
    source = download(tmp_path / "x.zip", WEEKS[other], "anna", "ben")
    if name == other:
        assert len(collect([source], WEEKS[name], tmp_path / "submitted", DEFAULTS).added) == 2
        return
    with pytest.raises(LabError, match=f"x.zip holds hand-ins of {other}, and none of {name}; nothing was collected"):
        collect([source], WEEKS[name], tmp_path / "submitted", DEFAULTS)
    assert not list((tmp_path / "submitted" / name).glob("*/*"))
    one = collect([source], WEEKS[name], tmp_path / "submitted", DEFAULTS, students=["anna"])
    assert len(one.added) == 1, "who did hand in another week's files can be collected by name"


def test_feedback_is_not_packed_by_another_weeks_download(classroom):
    """The platform finds a student by the names in it, so the pages would stand in the other assignment."""
    page = path_of(classroom / "feedback", WEEKS["week13"], "anna")
    page.parent.mkdir(parents=True)
    page.write_text("page")
    words = ("pack", "feedback", "week13", "--like", "x.zip", "--to", "up.zip")
    download(classroom / "x.zip", WEEKS["week14"], "anna")
    said = grade(classroom, *words, status=2)
    assert "x.zip holds hand-ins of week14, and none of week13; nothing was packed: give the download of" in said
    assert not (classroom / "up.zip").exists()
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    assert "up.zip holds 1 page;" in grade(classroom, *words, status=1)


def test_a_whole_tree_and_a_class_with_one_slip_are_collected(tmp_path):
    for week in WEEKS.values():  # a clone of the student tree holds every week
        for name in modules(week):
            path = tmp_path / "clones" / "anna" / week.package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1\n")
    assert len(collect([tmp_path / "clones"], WEEKS["week15"], tmp_path / "kept", DEFAULTS).added) == 1
    source = download(tmp_path / "x.zip", WEEKS["week14"], "anna", "ben")
    with zipfile.ZipFile(source, "a") as archive:
        for name in modules(WEEKS["week13"]):
            archive.writestr(f"cleo_200_assignsubmission_file_/{name}", "x = 1\n")
    assert len(collect([source], WEEKS["week14"], tmp_path / "submitted", DEFAULTS).added) == 3
    with pytest.raises(LabError, match="holds hand-ins of week14, and 1 of week13; nothing was collected"):
        collect([source], WEEKS["week13"], tmp_path / "other", DEFAULTS)
    even = download(tmp_path / "even.zip", WEEKS["week14"], "anna")
    with zipfile.ZipFile(even, "a") as archive:
        for name in modules(WEEKS["week13"]):
            archive.writestr(f"cleo_200_assignsubmission_file_/{name}", "x = 1\n")
    assert len(collect([even], WEEKS["week13"], tmp_path / "even", DEFAULTS).added) == 2, "of two, either may be right"


def test_the_roster_is_not_written_over(classroom):
    """Canvas' exported gradebook and what goes back to it have one form: a hurried instructor gives them one name."""
    before = (classroom / "roster.csv").read_text()
    for words in (
        ("week13", "--to", "roster.csv"),
        ("--to", classroom / "roster.csv"),
        ("week13", "--to", "roster.csv", "--zeros"),
    ):
        assert "roster.csv is the roster, and would be written over" in grade(classroom, "export", *words, status=2)
    assert (classroom / "roster.csv").read_text() == before


def test_an_attempt_that_no_mark_knows_is_told_wherever_points_are(classroom, monkeypatch):
    """Collected or renamed and not graded: until then a page would tell of an older attempt, and nobody would know."""
    monkeypatch.setenv("COLUMNS", "200")
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    grade(classroom, "collect", "week13", "--from", "x.zip")
    (classroom / "marks" / "week13" / "anna" / "1.json").rename(classroom / "kept.json")
    marks.write(classroom / "marks", replace(marks.read(classroom / "kept.json"), attempt=0))
    told = (
        "1 student has an attempt that is not graded as it is now (anna), and the points here are of before: `grade run"
    )
    ways = {
        "feedback": ("--to", "feedback", "--anyway"),
        "report": ("--to", "page.html"),
        "export": ("--to", "table.csv"),
    }
    for command, words in ways.items():
        assert told in grade(classroom, command, "week13", *words), command
    assert f"week13: {told}" in grade(classroom, "export", "--to", "term.csv")
    assert "attempt 1 not graded yet" in grade(classroom, "status", "week13")


def test_a_file_renamed_since_its_mark_was_made_is_told(classroom, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with zipfile.ZipFile(classroom / "x.zip", "w") as archive:
        archive.writestr("anna_100_assignsubmission_file_/collectives (1).py", "x = 1\n")
    grade(classroom, "collect", "week13", "--from", "x.zip")
    week, path = WEEKS["week13"], classroom / "marks" / "week13" / "anna" / "1.json"

    def marked():
        (entry,) = find_submissions(classroom / "submitted", week)
        found = load(entry, week)
        marks.write(
            classroom / "marks",
            replace(marks.read(path), submission=found.digest, notes=list(found.notes), received=""),
        )
        assert "as it is now" not in grade(classroom, "status", "week13")

    marked()
    for words in ((), ("--undo",)):
        rename(classroom / "submitted", week, "anna", "collectives (1).py", "collectives.py", undo=bool(words))
        assert "attempt 1 not graded as it is now" in grade(classroom, "status", "week13")
        assert "1 student has an attempt that is not graded as it is now" in grade(
            classroom, "export", "week13", "--to", "t.csv"
        )
        marked()


def test_a_time_told_since_and_an_attempt_that_went_are_told(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    grade(classroom, "collect", "week13", "--from", "x.zip", "--received", "2001-01-03T10:00+00:00")
    said = grade(classroom, "export", "week13", "--to", "t.csv")
    assert "1 student has an attempt that is not graded as it is now (anna)" in said, "its mark has another time"
    assert "2 students have a mark of an attempt that is not here any more (carterben_4002, stranger)" in said


def test_what_was_collected_by_mistake_is_taken_back_and_brought_back(classroom):
    """A whole class had a week's files collected as another's, and there was no way back."""
    week, root = WEEKS["week13"], classroom / "submitted"
    for name in ("right.zip", "wrong.zip"):
        download(classroom / name, week, "anna", "bea")
        with zipfile.ZipFile(classroom / name, "a") as archive:
            archive.writestr("anna_100_assignsubmission_file_/mine.py", name)
            archive.writestr("bea_101_assignsubmission_file_/mine.py", name)
        grade(classroom, "collect", "week13", "--from", name)

    def here():
        return [(one.student, one.attempt) for one in find_submissions(root, week)]

    whole = [("anna", 1), ("anna", 2), ("bea", 1), ("bea", 2)]
    marks.write(classroom / "marks", replace(mark("anna"), attempt=2))
    assert here() == whole
    said = grade(classroom, "withdraw", "week13", "--from", "wrong.zip")
    assert "2 attempts withdrawn: anna, attempt 2, bea, attempt 2" in said and "`grade load week13`" in said
    assert here() == [("anna", 1), ("bea", 1)]
    assert [one.attempt for one in marks.all_marks(classroom / "marks", "week13") if one.student == "anna"] == [1]
    said = grade(classroom, "collect", "week13", "--from", "wrong.zip")
    assert here() == [("anna", 1), ("bea", 1)], "the same source once more brings nothing"
    assert "2 of what is in wrong.zip were withdrawn before, and stay so (anna, bea)" in said
    download(classroom / "third.zip", week, "anna", "hugo")
    grade(classroom, "collect", "week13", "--from", "third.zip")
    assert ("anna", 3) in here(), "no number is given twice"
    grade(classroom, "withdraw", "week13", "anna")
    assert "2 attempts brought back" in grade(classroom, "withdraw", "week13", "--from", "wrong.zip", "--undo")
    assert "1 attempt brought back: anna, attempt 3" in grade(classroom, "withdraw", "week13", "--undo")
    assert "nothing is withdrawn here" in grade(classroom, "withdraw", "week13", "--undo", status=2)
    grade(classroom, "withdraw", "week13", "anna", "--attempt", "3")
    assert here() == [*whole, ("hugo", 1)] and marks.read(classroom / "marks" / "week13" / "anna" / "2.json").points
    for words, why in {
        ("annna",): "there is no attempt of 'annna'; did you mean 'anna'?",
        ("anna", "--attempt", "7"): "there is no attempt 7 of anna: 1, 2",
        ("--from", "other.zip"): "no attempt came from other.zip: from right.zip, third.zip, wrong.zip",
        (): "whose attempt? Name the student",
    }.items():
        assert why in grade(classroom, "withdraw", "week13", *words, status=2)


def times(folder):
    return {one.student: one.received for one in find_submissions(folder / "submitted", WEEKS["week13"])}


WRONG, RIGHT, EARLY = (datetime(2026, 11, day, 12, tzinfo=UTC) for day in (12, 14, 10))


def handed_in(path, *students, text="x = 1\n", name="{}_100_assignsubmission_file_/collectives.py"):
    with zipfile.ZipFile(path, "w") as archive:
        for student in students:
            archive.writestr(name.format(student), text)


def told_to_type(folder, said):
    """The commands in a sentence, typed as they stand there; what the last one said."""
    for command in re.findall("`(grade [^`]+)`", next(part for part in said.split(". ") if "withdrawn before" in part)):
        said = grade(folder, *shlex.split(command)[1:])
    return said


def test_a_wrong_date_that_was_withdrawn_is_put_right_by_the_commands_that_are_told(tmp_path, monkeypatch):
    """`3 of what is in it were withdrawn before, and stay so`: nobody was named, and the students were missing."""
    monkeypatch.setenv("COLUMNS", "200")
    handed_in(tmp_path / "DL 3.zip", "anna", "Ben Carter", "cem")
    words = ("collect", "week13", "--from", "DL 3.zip", "--received")
    grade(tmp_path, *words, WRONG.isoformat())
    grade(tmp_path, "withdraw", "week13", "--from", "DL 3.zip")
    said = grade(tmp_path, *words, RIGHT.isoformat())
    assert times(tmp_path) == {}
    assert "3 of what is in DL 3.zip were withdrawn before, and stay so (Ben Carter, anna, cem): " in said
    assert (
        "`grade withdraw week13 --from 'DL 3.zip' --undo` brings them back, and then `grade collect week13 --from "
        "'DL 3.zip' --student '*' --received 2026-11-14T12:00:00+00:00` gives them another time"
    ) in said
    assert "--student '*' --received TIME` gives" in grade(tmp_path, *words[:-1])
    told_to_type(tmp_path, said)
    assert times(tmp_path) == {"anna": RIGHT, "Ben Carter": RIGHT, "cem": RIGHT}
    assert "withdrawn" not in grade(tmp_path, *words, RIGHT.isoformat())


def test_nobody_else_gets_the_time_of_what_was_withdrawn(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    handed_in(tmp_path / "a.zip", "anna", "bea")
    grade(tmp_path, "collect", "week13", "--from", "a.zip", "--received", EARLY.isoformat())
    handed_in(tmp_path / "b.zip", "anna", "bea", *(late := [f"late{n}" for n in range(7)]))
    words = ("collect", "week13", "--from", "b.zip", "--received")
    grade(tmp_path, *words, WRONG.isoformat())
    grade(tmp_path, "withdraw", "week13", "--from", "b.zip")
    said = grade(tmp_path, *words, RIGHT.isoformat())
    assert "7 of what is in b.zip were withdrawn before, and stay so (late0, late1, late2, late3, late4 and 2" in said
    told_to_type(tmp_path, said)
    assert times(tmp_path) == {"anna": EARLY, "bea": EARLY, **dict.fromkeys(late, RIGHT)}
    grade(tmp_path, "withdraw", "week13", "late3")
    said = grade(tmp_path, *words, RIGHT.isoformat())
    assert "1 of what is in b.zip was withdrawn before, and stays so (late3)" in said and "brings it back" in said


def test_withdrawn_ones_of_another_source_are_brought_back_from_there(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    handed_in(tmp_path / "a.zip", "anna")
    handed_in(tmp_path / "b.zip", "bea")
    handed_in(tmp_path / "ab.zip", "anna", "bea")
    for name, when in (("a.zip", EARLY), ("b.zip", WRONG)):
        grade(tmp_path, "collect", "week13", "--from", name, "--received", when.isoformat())
        grade(tmp_path, "withdraw", "week13", "--from", name)
    said = grade(tmp_path, "collect", "week13", "--from", "ab.zip", "--received", RIGHT.isoformat())
    assert "`grade withdraw week13 --from a.zip --undo` and `grade withdraw week13 --from b.zip --undo` bring" in said
    assert "--from ab.zip --student ID --received TIME` gives one of them another time" in said, "they had two times"
    grade(tmp_path, "withdraw", "week13", "--from", "a.zip", "--undo")
    assert times(tmp_path) == {"anna": EARLY}, "of the other source nothing comes back"


def test_whom_the_platform_marks_as_in_time_needs_no_time(tmp_path, monkeypatch):
    """--student of a name weighs more than Canvas' mark, and would make them late."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "course.toml").write_text(f"[deadlines]\nweek13 = {WRONG.isoformat()}\n")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("doejane_4567_88", "roemax_LATE_4568_93", "poeeva_4569_94"):
            archive.writestr(f"{name}_collectives.py", f"x = {name!r}\n")
    words = ("collect", "week13", "--from", "x.zip", "--received")
    grade(tmp_path, *words, EARLY.isoformat())
    for student in ("doejane_4567", "roemax_4568"):
        grade(tmp_path, "withdraw", "week13", student)
    said = grade(tmp_path, *words, RIGHT.isoformat())
    assert "--student roemax_4568 --received" in said and "--student doejane" not in said
    told_to_type(tmp_path, said)
    late = times(tmp_path)
    assert late["roemax_4568"] == RIGHT and late["doejane_4567"] == late["poeeva_4569"] == EARLY
    grade(tmp_path, "withdraw", "week13", "doejane_4567")
    assert "another time" not in grade(tmp_path, *words, RIGHT.isoformat())


def test_a_folder_of_downloads_is_no_folder_of_students(tmp_path):
    """Downloads of several weeks lie in one folder. Each was taken for a student who is called like its file."""
    (tmp_path / "hand").mkdir()
    download(tmp_path / "hand" / "w13.zip", WEEKS["week13"], "anna", "ben")
    with pytest.raises(
        LabError, match=r"w13\.zip is the download of a whole class \(anna, ben\): collect it by itself"
    ):
        collect([tmp_path / "hand"], WEEKS["week13"], tmp_path / "submitted", DEFAULTS)
    (tmp_path / "hand" / "w13.zip").unlink()
    with zipfile.ZipFile(tmp_path / "hand" / "anna.zip", "w") as archive:  # one student's own
        archive.writestr("week13_allreduce/collectives.py", "x = 1\n")
    assert [
        one.student for one in collect([tmp_path / "hand"], WEEKS["week13"], tmp_path / "kept", DEFAULTS).added
    ] == ["anna"]


def test_a_time_that_has_not_come_is_refused(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    words = ("collect", "week13", "--from", "x.zip", "--received")
    assert "has not come yet" in grade(classroom, *words, FAR_OFF, status=2) and not (classroom / "submitted").exists()
    grade(classroom, *words, LONG_AGO)


def test_a_page_is_not_written_over_the_rules(classroom):
    before = (classroom / "course.toml").read_text()
    for words in (("report", "week13"), ("export", "week13"), ("export",)):
        assert "a .toml holds rules" in grade(classroom, *words, "--to", "course.toml", status=2)
    assert (classroom / "course.toml").read_text() == before


def test_who_is_named_wrongly_is_told_who_is_here(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna", "Ben Carter")
    grade(classroom, "collect", "week13", "--from", "x.zip")
    said = grade(classroom, "rename", "week13", "annna", "x.py", "ring.py", status=2)
    assert "no hand-in of 'annna' in submitted; did you mean 'anna'?" in said
    said = grade(classroom, "rename", "week13", "carterben_4002", "x.py", "y.py", status=2)
    assert "attempt 1 of Ben Carter holds no x.py" in said, "by any name of [ids]"
    assert "did you mean 'anna'?" in grade(classroom, "run", "week13", "--student", "annna", status=2)
    assert "of 'annna' here; did you mean 'anna'?" in grade(classroom, "forget", "annna", status=2)


def test_who_is_not_in_the_roster_is_told_when_the_hand_in_comes(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna", "Ben Carter", "anya")
    said = grade(classroom, "collect", "week13", "--from", "x.zip")
    assert "anya handed in and is not in the roster: [ids] in course.toml says who it is" in said
    assert said.count("handed in and is") == 1
    assert "anya" not in grade(classroom, "collect", "week13", "--from", "x.zip").partition("attempt")[0], "told once"


def test_a_note_says_of_which_attempt_it_is():
    lost, whole = replace(mark("anna"), notes=["There is no ring.py."]), mark("anna", attempt=2)
    other = replace(mark("ben"), notes=lost.notes)
    assert told_once([lost, whole, other]) == ["anna (attempt 1), ben: There is no ring.py."]
    both = replace(whole, notes=lost.notes)
    assert told_once([lost, both]) == ["anna (attempt 1, 2): There is no ring.py."]


def test_pages_older_than_their_marks_are_not_packed_silently(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    for name in ("anna", "carterben_4002", "stranger"):
        page = path_of(classroom / "feedback", WEEKS["week13"], name)
        page.parent.mkdir(parents=True)
        page.write_text("page")
    words = ("pack", "feedback", "week13", "--like", "x.zip", "--to", "up.zip")
    told = "the page is not of the points of now, run `grade feedback` again"
    assert f"anna, carterben_4002, stranger: {told}" in grade(classroom, *words, status=1), "some other page"
    grade(classroom, "feedback", "week13", "--to", "feedback")
    assert told not in grade(classroom, *words, status=1)
    anna = marks.read(classroom / "marks/week13/anna/1.json")
    marks.write(classroom / "marks", replace(anna, points=anna.points - 3))
    assert f"anna: {told}" in grade(classroom, *words, status=1)


def test_nothing_is_written_where_students_would_read_it(classroom):
    """What was released lies beside the class, and a name of it is typed quickly."""
    (classroom / "students" / ".labs").mkdir(parents=True)
    (classroom / "students" / ".labs" / "release.json").write_text("{}")
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    grade(classroom, "feedback", "week13", "--to", "feedback")
    for words in (
        ("feedback", "week13", "--to", "students"),
        ("export", "week13", "--to", "students/all.csv"),
        ("pack", "feedback", "week13", "--like", "x.zip", "--to", "students/up.zip"),
        ("pack", "gradescope", "week13", "--to", "students/autograder.zip"),
    ):
        assert "lies in the tree that students get" in grade(classroom, *words, status=2), words
    assert [path.name for path in (classroom / "students").iterdir()] == [".labs"]
    said = grade(classroom, "pack", "gradescope", "week13", "--to", "marks", status=2)
    assert "marks is a folder, and a file is to be written" in said


@pytest.mark.parametrize("names", [("anna_100_assignsubmission_file_/week13.html",), ("doejane_4567_88_week13.html",)])
def test_packed_feedback_is_no_hand_in(names, tmp_path):
    """It is called as the platform calls hand-ins, and lies beside them: everybody would have an empty attempt."""
    with zipfile.ZipFile(tmp_path / "up.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "<!DOCTYPE html>")
    with pytest.raises(LabError, match="up.zip holds feedback pages"):
        collect([tmp_path / "up.zip"], WEEKS["week13"], tmp_path / "submitted", DEFAULTS)


def test_an_attempt_that_lacks_what_an_earlier_one_has_is_told_with_the_way_out():
    """A file that was forgotten came alone, by mail: 85 points were 16, and only a list of missing files said why."""
    first, second = mark("anna"), replace(mark("anna", attempt=2), missing={"week13_allreduce/topology.py": ""})
    told = (
        "anna: attempt 2 lacks week13_allreduce/topology.py, which attempt 1 has. Collect all its files together, or "
    )
    assert poorer([second, first]) == [f"{told}`grade withdraw week13 anna` takes it back"]
    assert poorer([second]) == poorer([first]) == []
    assert poorer([replace(first, missing=second.missing), second]) == [], "neither has it"
    assert poorer([replace(second, attempt=1), replace(first, attempt=2)]) == []


def test_points_by_hand_that_want_a_look_are_told_where_points_leave():
    slip = Standing(mark("anna"), [1], by_hand={"13.7": ByHand("13.7", 25)})
    late = Standing(mark("ben"), [1], by_hand={"13.7": ByHand("13.7", 5, again=True)})
    assert again([slip, late]) == [
        "graded by hand before the answer changed, look again: ben",
        "more points by hand than there are: anna, 25 of 20 in 13.7",
    ]
    assert again([Standing(mark("anna"), [1], by_hand={"13.7": ByHand("13.7", 20)})]) == []


def test_an_extension_of_nobody_is_told_where_points_are(classroom):
    with (classroom / "course.toml").open("a") as file:
        file.write(f"[extensions.annna]\nweek13 = {FAR_OFF}\n")
    told = "[extensions] in course.toml speaks of annna, who is not in roster.csv: did you mean anna?"
    assert told in grade(classroom, "status", "week13")
    assert told in grade(classroom, "export", "week13", "--to", "all.csv")


def test_a_time_told_of_one_student_weighs_more_than_the_platforms_mark(tmp_path):
    """Canvas marks by its own due date, which may be another. For a whole download its marks hold, and that is told."""
    due = NOON - timedelta(days=1)
    rules, week = Rules(deadlines={"week13": due}), WEEKS["week13"]
    names = ("doejane_4567_88_", "roemax_LATE_4568_93_")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            for module in modules(week):
                archive.writestr(f"{name}{module}", "x = 1\n")

    def times(given, *students):
        report = collect([tmp_path / "x.zip"], week, tmp_path / "submitted", rules, given=given, students=students)
        found = {one.student: one.received for one in find_submissions(tmp_path / "submitted", week)}
        return report.notes, found["doejane_4567"], found["roemax_4568"]

    notes, plain, late = times(NOON)
    assert (plain, late) == (due, NOON) and any("marks hold before --received for 1 of them" in note for note in notes)
    assert times(NOON, "doejane_4567")[1] == NOON
    assert times(due - timedelta(hours=1), "roemax_4568")[2] == due - timedelta(hours=1)


def test_an_id_put_right_after_collecting_says_how_nobody_stays_twice(classroom):
    """A slip in [ids] was mended, and the same hand-in was there under both ids for good."""
    download(classroom / "x.zip", WEEKS["week13"], "farid")
    rules = (classroom / "course.toml").read_text()
    (classroom / "course.toml").write_text(f'{rules}"farid" = "annna"\n')
    grade(classroom, "collect", "week13", "--from", "x.zip")
    (classroom / "course.toml").write_text(f'{rules}"farid" = "anna"\n')
    said = grade(classroom, "collect", "week13", "--from", "x.zip")
    assert "farid was annna by the [ids] of then and is anna now; both are here: grade withdraw week13 annna" in said
    grade(classroom, "withdraw", "week13", "annna")
    assert [one.student for one in find_submissions(classroom / "submitted", WEEKS["week13"])] == ["anna"]
    assert "[ids] of then" not in grade(classroom, "collect", "week13", "--from", "x.zip"), "told when it is added"


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_no_zero_for_somebody_who_may_have_handed_in(kind, tmp_path):
    """Hugo had 82 points, no line in [ids], and a zero in Canvas."""
    marks.write(tmp_path / "marks", mark("Hugo Lund"))
    (tmp_path / "roster.csv").write_text('Student,ID,SIS User ID,SIS Login ID,Section\n"Lund, Hugo",9,,u9,\n')
    rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n'
    (tmp_path / "course.toml").write_text(rules)
    words = ["export", "--to", "out.csv", "--zeros"]
    words += [] if kind == "term" else ["week13", "--format", kind]
    said = grade(tmp_path, *words, status=2)
    assert "Hugo Lund is not found in roster.csv, and 0 points would go to u9 (Lund, Hugo)." in said
    assert not (tmp_path / "out.csv").exists()
    grade(tmp_path, *words[:-1] if kind == "term" else [word for word in words if word != "--zeros"])
    grade(tmp_path, *words, "--anyway")
    if kind != "term":
        assert "0 points: u9 (Lund, Hugo)" in grade(tmp_path, *words, "--anyway")
    (tmp_path / "course.toml").write_text(rules + '[ids]\n"Hugo Lund" = "u9"\n')
    assert "0 points" not in grade(tmp_path, *words), "he is u9"


def test_an_extension_of_nobody_is_told_without_a_roster_too(classroom):
    rules = f"[deadlines]\nweek13 = {LONG_AGO}\n[extensions.annna]\nweek13 = {FAR_OFF}\n"
    (classroom / "course.toml").write_text(rules)
    said = grade(classroom, "status", "week13")
    assert "extends the deadline of annna, from whom nothing is here; did you mean anna?" in said


def test_a_roster_as_excel_saves_it_says_what_to_choose_there(classroom):
    (classroom / "roster.csv").write_bytes("student\nJürgen\n".encode("cp1252"))
    assert "roster.csv is not in UTF-8: in Excel, Save As, CSV UTF-8" in grade(classroom, "status", "week13", status=2)


def test_a_zero_in_another_weeks_column_is_told_before_it_is_imported(tmp_path):
    marks.write(tmp_path / "marks", mark("anna", assignment="week14"))
    (tmp_path / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section,Week 13 (811)\nanna,9,,anna,,\n")
    words = ["export", "week14", "--to", "out.csv", "--format", "canvas", "--roster", "roster.csv", "--assignment"]
    assert "'Week 13 (811)' speaks of week13, and here are points of week14" in grade(tmp_path, *words, "Week 13 (811)")
    assert "speaks of" not in grade(tmp_path, *words, "Week 14")


def test_why_tells_of_which_week_a_task_is(tmp_path):
    marks.write(tmp_path / "marks", mark("anna"))
    assert "week13 has no task 14.1: it is of week14" in grade(tmp_path, "why", "week13", "anna", "14.1", status=2)
    assert "did you mean '13.1'" in grade(tmp_path, "why", "week13", "anna", "131", status=2)


def test_an_older_mail_beside_a_page_is_written_anew(classroom):
    """After an extension the page had 90 points and the mail beside it 63."""
    text = path_of(classroom / "feedback", WEEKS["week13"], "anna").with_suffix(".txt")
    words = ("feedback", "week13", "--to", "feedback")
    grade(classroom, *words)
    assert not text.exists(), "nobody asked for one"
    grade(classroom, *words, "--text")
    first = text.read_text()
    marks.write(classroom / "marks", replace(mark("anna"), seed=4711))
    text.write_text("older")
    grade(classroom, *words, "--student", "anna")
    assert text.read_text() == first


def test_two_accounts_of_one_student_are_one_after_the_command_that_is_told(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "carterben_4002")
    root = classroom / "submitted" / "week13"
    (classroom / "course.toml").write_text("")
    grade(classroom, "collect", "week13", "--from", "x.zip")
    (here,) = [path.name for path in root.iterdir() if path.is_dir()]
    download(classroom / "y.zip", WEEKS["week13"], "ben")
    with zipfile.ZipFile(classroom / "y.zip", "a") as archive:
        archive.writestr("ben_100_assignsubmission_file_/mine.py", "x = 2\n")
    grade(classroom, "collect", "week13", "--from", "y.zip")
    (classroom / "course.toml").write_text(f'[ids]\n"{here}" = "ben"\n')
    said = grade(classroom, "collect", "week13", "--from", "x.zip")
    assert f"grade withdraw week13 {here} takes the first one back, with its marks" in said
    grade(classroom, "withdraw", "week13", here)
    assert "are one student by [ids]" not in grade(classroom, "collect", "week13", "--from", "x.zip")


def test_what_a_hand_in_is_that_nothing_will_be_graded_of_is_told_when_it_comes(classroom):
    (classroom / "hand").mkdir()
    (classroom / "hand" / "emil.rar").write_bytes(b"Rar!")
    download(classroom / "hand" / "x.zip", WEEKS["week13"], "anna")
    (classroom / "hand" / "x.zip").rename(classroom / "hand" / "anna.zip")
    said = grade(classroom, "collect", "week13", "--from", "hand", "--to", "kept")
    assert "emil: only .zip archives are opened" in said and f"kept is made, in {classroom}" in said
    assert "is made" not in grade(classroom, "collect", "week13", "--from", "hand", "--to", "kept")


def test_a_copied_exchange_without_times_says_that_the_copying_counts(classroom):
    folder = classroom / "hand" / "anna" / "week13_allreduce"
    folder.mkdir(parents=True)
    (folder / "ring.py").write_text("x = 1\n")
    (classroom / "hand").chmod(0o777)
    said = grade(classroom, "collect", "week13", "--from", "hand", "--to", "kept")
    assert "Of 1 new attempt nothing but when its files were last written tells the time (anna)" in said


def test_two_students_whom_a_slip_makes_one_are_told(classroom):
    """`"Ben Carter" = "anna"`, copied from the line above: his hand-in was Anna's last attempt, without a word."""
    (classroom / "course.toml").write_text('[ids]\n"Anna Meier" = "anna"\n"Ben Carter" = "anna"\n')
    download(classroom / "x.zip", WEEKS["week13"], "Anna Meier", "Ben Carter")
    with zipfile.ZipFile(classroom / "x.zip", "a") as archive:
        archive.writestr("Ben Carter_101_assignsubmission_file_/mine.py", "x = 2\n")
    said = grade(classroom, "collect", "week13", "--from", "x.zip")
    assert "anna is Ben Carter by [ids], and Anna Meier as well: if they are not one student, correct it" in said
    download(classroom / "y.zip", WEEKS["week14"], "Anna Meier")
    download(classroom / "z.zip", WEEKS["week14"], "Ben Carter")
    with zipfile.ZipFile(classroom / "z.zip", "a") as archive:
        archive.writestr("Ben Carter_100_assignsubmission_file_/mine.py", "x = 2\n")
    assert "as well" not in grade(classroom, "collect", "week14", "--from", "y.zip")
    assert "and Anna Meier as well" in grade(classroom, "collect", "week14", "--from", "z.zip"), "of a later source too"
    (classroom / "roster.csv").write_text("Identifier,Full name\nP 1,Anna Meier\nP 2,Ben Carter\nP 3,Eva\n")
    said = grade(classroom, "status", "week13", "--roster", "roster.csv")
    assert "[ids] in course.toml calls Anna Meier, Ben Carter of roster.csv all anna" in said


def test_a_date_in_the_past_that_takes_lateness_away_is_told(classroom, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (classroom / "course.toml").write_text("[deadlines]\nweek13 = 2026-01-10T23:59:00+01:00\n")
    words = ("collect", "week13", "--from")
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    said = grade(classroom, *words, "x.zip", "--received", "2025-01-11T09:00+01:00")
    assert "is 364 days before the deadline: if the date is a slip, --student '*' --received TIME" in said
    said = grade(classroom, *words, "x.zip", "--student", "*", "--received", "2026-01-09T09:00+01:00")
    assert "before" not in said
    download(classroom / "y.zip", WEEKS["week13"], "bea")
    said = grade(classroom, *words, "y.zip", "--received", "2025-12-11T09:00+01:00")
    assert "is before all that was collected earlier, of which the first came 2026-01-09 09:00+01:00" in said
    download(classroom / "both.zip", WEEKS["week13"], "bea", "cai")
    said = grade(classroom, *words, "both.zip", "--received", "2025-12-10T09:00+01:00")
    assert "if the date is a slip, --student cai --received TIME" in said, "whoever was there before keeps the time"
    download(classroom / "z.zip", WEEKS["week13"], "cem")
    assert "before" not in grade(classroom, *words, "z.zip", "--received", "2026-01-12T09:00+01:00")
    said = grade(classroom, "status", "week13")
    assert "2026-01-12 09:00 late" in said


def test_times_of_several_zones_stand_in_the_deadlines(classroom, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (classroom / "course.toml").write_text("[deadlines]\nweek13 = 2026-01-10T23:59:00+05:30\n")
    download(classroom / "x.zip", WEEKS["week13"], "bea")
    grade(classroom, "collect", "week13", "--from", "x.zip", "--received", "2026-01-10T18:45+00:00")
    assert "2026-01-11 00:15 late" in grade(classroom, "status", "week13"), "18:45 looked as if it was in time"


def test_zeros_that_may_change_are_told(classroom):
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    rules = f'[deadlines]\nweek13 = {yesterday}\n[roster]\nfile = "roster.csv"\n'
    (classroom / "course.toml").write_text(f"{rules}[late]\nper_day = 0.1\ncloses_after_days = 7\n")
    words = ("export", "week13", "--to", "t.csv", "--zeros", "--anyway")
    assert "week13 can be handed in late until" in grade(classroom, *words)
    (classroom / "course.toml").write_text(rules)
    assert "these zeros may change" not in grade(classroom, *words)
    (classroom / "course.toml").write_text(f"{rules}[extensions.anna]\nweek13 = {FAR_OFF}\n")
    assert "these zeros may change" not in grade(classroom, *words), "anna's extension is nobody else's"


# ---- the wrong folder


def test_folders_of_the_class_and_of_nbgrader_are_no_students(classroom):
    """`--from gradebook` made five students: autograded, exchange, nbgrader_config, source, submitted."""
    said = grade(classroom, "collect", "week13", "--from", ".", status=2)
    assert "is a class's folder, and no folder of students" in said
    (classroom / "gradebook" / "source").mkdir(parents=True)
    (classroom / "gradebook" / "nbgrader_config.py").write_text("c = get_config()\n")
    said = grade(classroom, "collect", "week13", "--from", "gradebook", status=2)
    assert "is nbgrader's course directory, and no folder of students: name the exchange" in said
    assert find_submissions(classroom / "submitted", WEEKS["week13"]) == [], "nobody was collected"


def test_a_week_of_which_nothing_was_collected_is_no_week_of_one_student_per_other_week(classroom):
    """submitted/week14 was graded as a hand-in of a student called week14, and nothing took it back."""
    download(classroom / "x.zip", WEEKS["week14"], "anna")
    grade(classroom, "collect", "week14", "--from", "x.zip")
    for command in ("run", "race"):
        said = grade(classroom, command, "week13", status=2)
        assert "submitted holds what was collected of week14, and nothing of week13: `grade collect week13" in said


@pytest.mark.parametrize(
    "words",
    [("status", "week13"), ("status",), ("run", "week13"), ("load", "week13"), ("report", "week13", "--to", "x.html")],
)
def test_in_nbgraders_course_directory_the_class_is_named(words, classroom):
    book = classroom / "gradebook"
    (book / "submitted" / "anna" / "week13").mkdir(parents=True)
    (book / "nbgrader_config.py").write_text("c = get_config()\n")
    said = grade(book, *words, status=2)
    assert "is nbgrader's course directory, and the class's folder" in said and "type it there (cd ..)" in said


def test_a_course_directory_may_be_the_class_itself(classroom):
    (classroom / "nbgrader_config.py").write_text("c = get_config()\n")
    with contextlib.chdir(classroom):
        not_the_class(Path("submitted"), Path("marks"))


def test_in_the_repository_nothing_is_collected(tmp_path):
    source = download(tmp_path / "x.zip", WEEKS["week13"], "anna")
    assert "is the course's repository" in grade(ROOT, "collect", "week13", "--from", source, status=2)
    assert not (ROOT / "submitted").exists()


def test_before_anything_was_collected_the_next_command_is_named(tmp_path):
    assert "`grade collect week13 --from" in grade(tmp_path, "run", "week13", status=2)
    assert "No class is here" in grade(tmp_path, "status", "week13")


def test_a_stray_file_beside_the_students_is_named(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "collectives.py").write_text("x = 1\n")
    with pytest.raises(LabError, match=re.escape("beside folders or archives of students (anna): take it out")):
        find_submissions(tmp_path, WEEKS["week13"])


# ---- too early


def test_solutions_wait_for_the_last_hand_in(tmp_path):
    (tmp_path / "course.toml").write_text(f"[deadlines]\nweek13 = {FAR_OFF}\nweek14 = {LONG_AGO}\n")
    words = ("release", "week13", "--to", "students", "--solutions")
    assert "its solutions would tell the answers" in grade(tmp_path, *words, "week13", status=2)
    assert not (tmp_path / "students").exists()


@pytest.mark.thorough
def test_solutions_come_when_they_may(tmp_path):
    (tmp_path / "course.toml").write_text(f"[deadlines]\nweek13 = {FAR_OFF}\nweek14 = {LONG_AGO}\n")
    words = ("release", "week13", "--to", "students", "--solutions")
    grade(tmp_path, *words, "week13", "--anyway")
    assert (tmp_path / "students/solutions/week13_allreduce/collectives.py").exists()
    grade(tmp_path, *words, "week14")


def test_a_refusal_says_where_its_date_comes_from():
    rules = Rules(deadlines={"week13": NOON}, late=Late(closes_after_days=7))
    with pytest.raises(LabError, match=r"2026-11-27 12:00.* \(the deadline, and closes_after_days adds 7 days\)"):
        refuse_while_open(rules, "week13", "feedback", False, NOON + timedelta(days=2))


def test_who_was_too_late_is_told_from_who_was_late(week13_class):
    rows = {row.student: row for row in week13_class.rows}
    from grading.reports.status import _cells

    said = {student: (_cells(row)[3], _cells(row)[-1]) for student, row in rows.items()}
    waits = "to be graded by hand"
    assert said == {"early": ("", waits), "late": ("late", waits), "closed": ("late", "complete, too late")}


def test_what_came_too_late_is_a_zero_and_nobody_has_to_read_it(week13_class):
    (closed,) = (row.standing for row in week13_class.rows if row.student == "closed")
    assert closed.total == 0 and closed.ungraded == [] and week13_class.waiting == 2, "the other two"
    assert "these points come later" not in " ".join(what_next(WEEKS["week13"], closed))
    doubt = replace(closed, mark=spoil(mark("closed", complete=False), "test_algbw", FAULT, "it failed"))
    assert doubt.total == 0 and doubt.state == "complete", "a fault of the grader's changes nothing"
    for slip in (ByHand("13.7", 5, again=True), ByHand("13.7", 25), ByHand("13.7", 5, of=(7, "x"))):
        old = replace(closed, by_hand={"13.7": slip})
        assert (old.total, old.state) == (0, "complete"), "nor do points by hand"


def test_a_date_is_whole_in_80_columns(week13_class):
    from rich.console import Console

    from grading.reports.status import show

    out, week13_class.told = io.StringIO(), []
    show(week13_class, Console(file=out, width=80))
    assert "2026-11-29" in out.getvalue() and max(map(len, out.getvalue().splitlines())) <= 80


@pytest.fixture
def week13_class(tmp_path):
    for student, days in (("early", -1), ("late", 1), ("closed", 9)):
        marks.write(tmp_path / "marks", mark(student, received=(NOON + timedelta(days=days)).isoformat()))
    rules = Rules(deadlines={"week13": NOON}, late=Late(per_day=0.1, closes_after_days=7))
    return status(WEEKS["week13"], tmp_path / "submitted", tmp_path / "marks", tmp_path, rules, NOON)


# ---- names


def test_all_names_of_a_student_are_understood(classroom):
    for name in ("carterben_4002", "ben", "Ben Carter"):
        assert "carterben_4002, week13: attempt 1 counts" in grade(classroom, "why", "week13", name)
    assert "`grade status week13` tells who handed nothing in" in grade(classroom, "why", "week13", "hugo", status=2)
    grade(classroom, "feedback", "week13", "--to", "feedback", "--student", "Ben Carter")
    assert (classroom / "feedback/carterben_4002/week13.html").exists()
    said = grade(classroom, "forget", "Ben Carter", "--yes", status=1)
    assert "removed: marks of week13" in said and "removed: feedback" in said
    assert not (classroom / "marks/week13/carterben_4002").exists() and (classroom / "marks/week13/anna").exists()
    assert not (classroom / "feedback/carterben_4002").exists()


def test_a_circle_in_the_ids_is_refused():
    with pytest.raises(LabError, match="leads from 'a' in a circle"):
        Rules(ids={"a": "b", "b": "a"})
    assert Rules(ids={"a": "a", "b": "a"}).called("a") == ["a", "b"], "an id may be its own"


def test_the_term_has_each_student_by_the_name_in_ids_and_tells_what_is_not_in_it(classroom):
    marks.write(classroom / "marks", mark("Ben Carter", assignment="week14"))
    for name in ("week13", "week16"):
        collect([download(classroom / "x.zip", WEEKS[name], "anna")], WEEKS[name], classroom / "submitted", DEFAULTS)
    assert "may be somebody's" in grade(classroom, "export", "--to", "term.csv", "--zeros", status=2), "the stranger's"
    said = grade(classroom, "export", "--to", "term.csv", "--zeros", "--anyway")
    table = list(csv.reader(io.StringIO((classroom / "term.csv").read_text("utf-8-sig"))))
    assert [line[0] for line in table[1:]] == ["Ben Carter", "anna", "hugo", "stranger"]
    assert "Not in the roster, with a line of their own: stranger" in said
    assert "week16 has no column: 1 hand-in is not graded yet" in said and "week13 has no column" not in said


def test_a_roster_that_is_not_there_is_no_matter_of_encodings(classroom):
    (classroom / "roster.csv").unlink()
    said = grade(classroom, "status", "week13", status=2)
    assert "there is no roster roster.csv: put it there" in said and "UTF-8" not in said


def test_a_forgotten_time_is_told_for_everybody_at_once(tmp_path):
    download(tmp_path / "x.zip", WEEKS["week13"], "anna", "ben")
    words = ("collect", "week13", "--from", "x.zip")
    assert "of 2 nothing tells when" in grade(tmp_path, *words)
    said = grade(tmp_path, *words, "--received", "2026-11-20T12:00+00:00", "--student", "*")
    assert "nothing tells when" not in said
    for student in ("anna", "ben"):
        assert f"{student}, attempt 1: handed in 2026-11-20 12:00+00:00, by --received" in said


def test_a_gradebook_that_is_not_there_is_made_by_the_command_that_is_named(classroom):
    assert "`grade course init gradebook` makes one" in grade(classroom, "load", "week13", status=2)


def test_what_is_known_keeps_its_time_and_it_is_said(tmp_path):
    download(tmp_path / "x.zip", WEEKS["week13"], "anna")
    words = ("collect", "week13", "--from", "x.zip", "--received")
    grade(tmp_path, *words, "2026-11-20T12:00+00:00")
    said = grade(tmp_path, *words, "2026-11-21T12:00+00:00")
    assert "1 attempt known before: the time stays (--received with --student ID" in said
    assert "known before" not in grade(tmp_path, *words, "2026-11-21T12:00+00:00", "--student", "anna")


# ---- a command's own words


@pytest.mark.parametrize("new", ["collectives", "collectivs.py", "collectives.ipynb"])
def test_a_name_that_no_task_reads_is_no_new_name(new, tmp_path):
    week = WEEKS["week13"]
    source = download(tmp_path / "x.zip", week, "anna")
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("anna_100_assignsubmission_file_/collectives (1).py", "x = 1\n")
    collect([source], week, tmp_path, DEFAULTS)
    with pytest.raises(LabError, match="week13 reads no file .*; did you mean 'collectives.py'"):
        rename(tmp_path, week, "anna", "collectives (1).py", new)
    assert "helper.py" in rename(tmp_path, week, "anna", "collectives (1).py", "helper.py"), "a module of their own"


def test_a_task_for_people_is_told_from_one_that_is_not_there(classroom):
    (classroom / "submitted").mkdir()
    said = grade(classroom, "run", "week13", "--task", "13.7", status=2)
    assert "13.7 is marked by a person; tests judge 13.1" in said
    said = grade(classroom, "run", "week13", "--task", "14.1", status=2)
    assert "week13 has no task of this number; tests judge 13.1" in said


def test_a_race_without_entries_is_told(classroom, monkeypatch):
    (classroom / "submitted").mkdir()
    monkeypatch.setattr("grading.race.race", lambda *words: ([], []))
    assert "nobody handed in an entry to the race of week13" in grade(classroom, "race", "week13", status=2)


def test_an_earlier_year_is_its_class_folder_or_what_it_keeps(tmp_path):
    (tmp_path / "autumn25" / "submitted" / "week13").mkdir(parents=True)
    (tmp_path / "old" / "anna").mkdir(parents=True)
    kept = tmp_path / "autumn25" / "submitted" / "week13"
    assert _year(tmp_path / "autumn25", "week13") == (kept, "autumn25")
    assert _year(tmp_path / "autumn25" / "submitted", "week13") == (kept, "autumn25")
    assert _year(tmp_path / "old", "week13") == (tmp_path / "old", "old")


# ---- what a run prints


def printed(report):
    from rich.console import Console

    out = io.StringIO()
    class_table(report, Console(file=out, width=400))
    return out.getvalue()


def test_many_cases_of_which_the_same_became_are_one_line():
    cases = (*((f"behaviour {n}", NO_RESULT, PASSED) for n in range(9)), ("another", PASSED, NO_RESULT))
    change = history.Change("anna", 1, "2026-11-20", [], "", [], (0, 5), [history.Task("13.4", 0, 5, cases)])
    said = printed(Report(1, [mark("anna")], changes=[change]))
    assert "behaviour 0, and 8 more: no result, now passed" in said and "behaviour 1" not in said
    assert "another: passed, now no result" in said
    assert len(list(history.sentences(change))) == 11, "the record keeps each"


def test_an_archive_that_was_not_opened_says_what_to_do(tmp_path):
    week = WEEKS["week13"]
    folder = tmp_path / "anna"
    folder.mkdir()
    (folder / "hw.tar.gz").write_bytes(b"x")
    (folder / "trace.json.gz").write_bytes(b"x")
    from grading.intake.load import load

    (entry,) = find_submissions(tmp_path, week)
    notes = load(entry, week).notes
    assert notes == ["hw.tar.gz was not opened: hand in the files, or one .zip of them."]
    said = printed(Report(1, [mark("anna", notes=notes), mark("ben")]))
    assert "To grade what anna packed, unpack it into DIR/STUDENT: grade collect week13 --from DIR" in said
    later = mark("anna", attempt=2)
    assert "To grade what" not in printed(Report(1, [mark("anna", notes=notes), later, mark("ben")])), "it has come"


def test_a_student_is_graded_by_any_name(classroom):
    week = WEEKS["week13"]
    collect([download(classroom / "x.zip", week, "carterben_4002")], week, classroom / "submitted", DEFAULTS)
    with contextlib.chdir(classroom):
        assert _called(["Ben Carter", "nobody"], Path("submitted"), week) == ["carterben_4002", "nobody"]


def test_a_time_that_does_not_hold_is_not_said_to_hold(tmp_path):
    week = WEEKS["week13"]
    folder = tmp_path / "in" / "anna+week13+2026-11-19 10:00:00.000000 UTC+abcdefghijkl"
    folder.mkdir(parents=True)
    (folder / "timing.py").write_text("x = 1\n")
    (folder / "timestamp.txt").write_text("2026-11-19 10:00:00.000000 UTC")

    def notes(given, *students):
        sources = [tmp_path / "in"]
        return collect(sources, week, tmp_path / "kept", DEFAULTS, given=given, students=students).notes

    assert not notes(None) and not notes(NOON), "it is known, and keeps its time"
    assert any("by --received, holds" in note for note in notes(NOON, "anna"))


# ---- what pages and answers say


def test_why_tells_each_diagnosis_whole_and_once(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    marks.write(tmp_path / "marks", mark("anna", "13.2 mean for sum"))
    gone, absent = mark("ben"), "There is no collectives.py: this task earns nothing."
    for task in gone.tasks:
        if task["id"] in ("13.2", "13.3"):
            for case in task["cases"]:
                case.update(verdict=NO_RESULT, text=absent, points=0)
    marks.write(tmp_path / "marks", gone)
    said = grade(tmp_path, "why", "week13", "anna")
    assert "expected 271, 762" in said and "got 67.75" in said and "cause: the mean over the ranks" in said
    said = grade(tmp_path, "why", "week13", "ben")
    assert said.count(absent) == 1 and "as at 13.2" in said
    assert said.count("no result: Rank r gets chunk r of the sum") >= 2, "each behaviour is still named"
    assert absent in grade(tmp_path, "why", "week13", "ben", "13.3")


def test_one_is_told_in_the_singular(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert "1 mark, 1 of them made now" in printed(Report(1, [mark("anna")]))
    assert "2 marks, 2 of them" in printed(Report(2, [mark("anna"), mark("ben")]))
    marks.write(tmp_path / "marks", mark("anna", "13.5 GB/s"))
    grade(tmp_path, "report", "week13", "--to", "class.html")
    page = (tmp_path / "class.html").read_text()
    assert "1 of 1 student (" in page and not re.search(r"(?<![\d.])1 (students|behaviours|attempts)\b", page)


def test_a_week_in_two_words_and_a_download_without_from_are_put_right(tmp_path):
    for command in ("run", "collect", "status"):
        assert "a week's name is one word: week13" in grade(tmp_path, command, "week", "13", status=2)
    said = grade(tmp_path, "collect", "week13", "x.zip", status=2)
    assert "grade collect week13 --from x.zip" in said
    assert "Missing option '--from'" in grade(tmp_path, "collect", "week13", status=2)


@pytest.mark.parametrize("command, given", [("second", "40"), ("similar", "1.5")])
def test_a_percentage_for_a_fraction_is_put_right(command, given, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = grade(tmp_path, command, "week13", "--to", "x", "--share", given, status=2)
    assert f"a fraction from 0 to 1: {float(given) / 100:g} for {given} %" in said


def test_no_place_of_this_machine_is_in_a_mark(monkeypatch):
    """A student's page is made of it, and a backup or another program may read it as well."""
    week = WEEKS["week16"]
    told = f"it waits at {ROOT}/labkit/checks/bare.py:122"
    case = CaseResult("16.2", "t", "Scale", "", Fraction(4), NO_RESULT, told, (told,))
    monkeypatch.setattr(judge, "_about", lambda *words: {"student": "anna", "assignment": week.name})
    made = judge.make(
        None, "", [], [], week, Outcome([(week, ("16.2",))], 1, [case]), SimpleNamespace(isolation=""), 1, 1
    )
    assert str(ROOT) not in json.dumps(made.tasks) and "labkit/checks/bare.py:122" in made.cases[0]["text"]
