"""What an instructor types in the wrong place, of the wrong student or task, and what commands say then: refused in one
sentence that says what to type instead, or understood. Of collecting and of points that leave: test_slips_*.py."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from grading import history, judge, marks
from grading.cli import _called
from grading.here import not_the_class
from grading.intake.collect import collect
from grading.intake.find import find_submissions
from grading.intake.load import load
from grading.intake.policy import DEFAULTS, Rules
from grading.run import Report
from grading.similar.commands import _year
from grading.table import class_table, poorer, told_once
from labkit.checks.outcome import CaseResult, Outcome
from labkit.checks.verdict import NO_RESULT, PASSED
from labkit.errors import LabError
from tests.grading.aclassroom import ROOT, WEEKS, download, grade
from tests.grading.reports.aclass import mark


def test_who_is_named_wrongly_is_told_who_is_here(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna", "Ben Carter")
    grade(classroom, "collect", "week13", "--from", "x.zip")
    said = grade(classroom, "rename", "week13", "annna", "x.py", "ring.py", status=2)
    assert "no hand-in of 'annna' in submitted; did you mean 'anna'?" in said
    said = grade(classroom, "rename", "week13", "carterben_4002", "x.py", "y.py", status=2)
    assert "attempt 1 of Ben Carter holds no x.py" in said, "by any name of [ids]"
    assert "did you mean 'anna'?" in grade(classroom, "run", "week13", "--student", "annna", status=2)
    assert "of 'annna' here; did you mean 'anna'?" in grade(classroom, "forget", "annna", status=2)


def test_a_note_says_of_which_attempt_it_is():
    lost, whole = replace(mark("anna"), notes=["There is no ring.py."]), mark("anna", attempt=2)
    other = replace(mark("ben"), notes=lost.notes)
    assert told_once([lost, whole, other]) == ["anna (attempt 1), ben: There is no ring.py."]
    both = replace(whole, notes=lost.notes)
    assert told_once([lost, both]) == ["anna (attempt 1, 2): There is no ring.py."]


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


def test_why_tells_of_which_week_a_task_is(tmp_path):
    marks.write(tmp_path / "marks", mark("anna"))
    assert "week13 has no task 14.1: it is of week14" in grade(tmp_path, "why", "week13", "anna", "14.1", status=2)
    assert "did you mean '13.1'" in grade(tmp_path, "why", "week13", "anna", "131", status=2)


def test_why_tells_of_who_is_excused(tmp_path):
    """Two are, of whom one handed in; "there is no mark" was all that it said."""
    marks.write(tmp_path / "marks", mark("anna"))
    (tmp_path / "course.toml").write_text('[excused]\nweek13 = ["anna", "emil"]\n[ids]\n"Emil E." = "emil"\n')
    told = "emil is excused from week13 ([excused] in course.toml): no points and no zero; nothing of theirs was graded"
    assert told in grade(tmp_path, "why", "week13", "emil")
    said = grade(tmp_path, "why", "week13", "anna")
    assert "anna is excused from week13" in said and "attempt 1 counts" in said and "nothing of theirs" not in said
    assert "there is no mark of 'ben'" in grade(tmp_path, "why", "week13", "ben", status=2)


def test_why_tells_of_who_was_withdrawn(tmp_path):
    marks.write(tmp_path / "marks", mark("anna"))
    kept = marks.write(tmp_path / "marks", mark("Max Meier_501"))
    (kept.parent / "withdrawn").mkdir()
    kept.rename(kept.parent / "withdrawn" / kept.name)
    for name in ("Max Meier_501", "Max Meier"):
        assert "in week13: an attempt was withdrawn, `grade withdraw" in grade(
            tmp_path, "why", "week13", name, status=2
        )
    assert "there is no mark of 'ben'" in grade(tmp_path, "why", "week13", "ben", status=2)


def test_why_tells_it_by_a_name_without_moodles_number_too(tmp_path):
    marks.write(tmp_path / "marks", mark("Max Meier_501"))
    (tmp_path / "course.toml").write_text('[excused]\nweek13 = ["Max Meier_501"]\n')
    assert "Max Meier_501 is excused from week13" in grade(tmp_path, "why", "week13", "Max Meier")


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


def test_a_gradebook_that_is_not_there_is_made_by_the_command_that_is_named(classroom):
    assert "`grade course init gradebook` makes one" in grade(classroom, "load", "week13", status=2)


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


def test_why_tells_of_a_withdrawn_one_whose_folder_is_called_otherwise(tmp_path):
    marks.write(tmp_path / "marks", mark("anna"))
    kept = marks.write(tmp_path / "marks", mark("max@uni:9"))
    (kept.parent / "withdrawn").mkdir()
    kept.rename(kept.parent / "withdrawn" / kept.name)
    assert "week13: an attempt was withdrawn" in grade(tmp_path, "why", "week13", "max@uni:9", status=2)


def test_a_broken_mark_of_another_keeps_nobody_from_being_forgotten(tmp_path):
    marks.write(tmp_path / "marks", mark("anna"))
    marks.write(tmp_path / "marks", mark("ben")).write_text("{half")
    assert "marks of week13" in grade(tmp_path, "forget", "anna", "--yes")
