"""Points, pages and zeros that would leave the house too early, for the wrong ones or of before: told, or refused, in
one sentence. Each of these cost a new instructor up to half an hour in a walked term."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from grading import marks
from grading.intake.collect import collect
from grading.intake.commands import slips
from grading.intake.find import find_submissions
from grading.intake.load import load
from grading.intake.policy import DEFAULTS, Late, Rules, find_rules, refuse_while_open
from grading.intake.rename import rename
from grading.reports.by_hand import ByHand
from grading.reports.feedback import path_of, what_next
from grading.reports.one_week import again
from grading.reports.standing import Standing
from grading.reports.status import status
from labkit.checks.verdict import FAULT
from labkit.errors import LabError
from tests.grading.aclassroom import FAR_OFF, LONG_AGO, NOON, WEEKS, download, grade
from tests.grading.reports.aclass import mark, spoil


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


def test_a_page_is_not_written_over_the_rules(classroom):
    before = (classroom / "course.toml").read_text()
    for words in (("report", "week13"), ("export", "week13"), ("export",)):
        assert "a .toml holds rules" in grade(classroom, *words, "--to", "course.toml", status=2)
    assert (classroom / "course.toml").read_text() == before


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


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_no_zero_for_somebody_who_may_have_handed_in(kind, tmp_path):
    """Hugo had 82 points, no line in [ids], and a zero in Canvas."""
    marks.write(tmp_path / "marks", mark("Hugo B. Lund"))
    (tmp_path / "roster.csv").write_text('Student,ID,SIS User ID,SIS Login ID,Section\n"Lund, Hugo",9,,u9,\n')
    rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n'
    (tmp_path / "course.toml").write_text(rules)
    words = ["export", "--to", "out.csv", "--zeros"]
    words += [] if kind == "term" else ["week13", "--format", kind]
    said = grade(tmp_path, *words, status=2)
    assert "Hugo B. Lund is not found in roster.csv, and 0 points of week13 would go to u9 (Lund, Hugo)." in said
    assert not (tmp_path / "out.csv").exists()
    grade(tmp_path, *words[:-1] if kind == "term" else [word for word in words if word != "--zeros"])
    grade(tmp_path, *words, "--anyway")
    if kind != "term":
        assert "0 points: u9 (Lund, Hugo)" in grade(tmp_path, *words, "--anyway")
    (tmp_path / "course.toml").write_text(rules + '[ids]\n"Hugo B. Lund" = "u9"\n')
    assert "0 points" not in grade(tmp_path, *words), "he is u9"


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_nobody_loses_points_while_an_extension_reaches_nobody(kind, tmp_path):
    """Anna Müller's was written "Müller, Anna", and she had a zero for being late."""
    for name, days in (("Anna Müller", 2), ("Ben Okafor", -2)):
        then = datetime.fromisoformat(LONG_AGO) + timedelta(days=days)
        marks.write(tmp_path / "marks", replace(mark(name), received=then.isoformat()))
    (tmp_path / "roster.csv").write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section\nAnna Müller,1,,anna,\nBen Okafor,2,,ben,\n"
    )
    words = ["export", "--to", "out.csv", *([] if kind == "term" else ["week13", "--format", kind])]

    def with_rules(name, late="per_day = 0.1\ncloses_after_days = 1", more=""):
        rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n[late]\n{late}\n'
        (tmp_path / "course.toml").write_text(f'{rules}[extensions."{name}"]\nweek13 = {FAR_OFF}\n{more}')

    with_rules("Müller, Anna")
    said = grade(tmp_path, *words, status=2)
    assert "Müller, Anna of [extensions] is not found in roster.csv, and Anna Müller lost points of week13" in said
    assert not (tmp_path / "out.csv").exists()
    told = "speaks of Müller, Anna, who is not in roster.csv: did you mean Anna Müller?"
    assert told in grade(tmp_path, *words, "--anyway")
    for late_rule in ("per_day = 0.1", "per_day = 0.0"):
        with_rules("Müller, Anna", late_rule)
        grade(tmp_path, *words, status=2 if "0.1" in late_rule else 0)
    with_rules("Müller, Anna", more='[ids]\n"Müller, Anna" = "Anna Müller"\n')
    grade(tmp_path, *words)
    with_rules("Anna Müller")
    grade(tmp_path, *words)
    with_rules("Müller, Anna", more='[excused]\nweek13 = ["Anna Müller"]\n')
    grade(tmp_path, *words)


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_no_zero_for_somebody_who_may_have_more_time(kind, tmp_path):
    """Zoë's extension was written without its trema, and she had a zero weeks before her deadline."""
    marks.write(tmp_path / "marks", mark("anna"))
    (tmp_path / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\nA,1,,anna,\nZoë D,9,,zoë,\n")
    rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n'
    words = ["export", "--to", "out.csv", "--zeros"]
    words += [] if kind == "term" else ["week13", "--format", kind]

    def with_extension(name, until=FAR_OFF, more=""):
        (tmp_path / "course.toml").write_text(f'{rules}[extensions."{name}"]\nweek13 = {until}\n{more}')

    with_extension("zoe")
    said = grade(tmp_path, *words, status=2)
    assert "a zero may be somebody's whose deadline has not passed: zoe of [extensions] is not found in roster" in said
    assert "0 points of week13 would go to zoë (Zoë D)" in said and not (tmp_path / "out.csv").exists()
    told = "[extensions] in course.toml speaks of zoe, who is not in roster.csv: did you mean zoë?"
    assert told in grade(tmp_path, *words, "--anyway"), "also of the term"
    with_extension("zoe", LONG_AGO)
    grade(tmp_path, *words)
    with_extension("anna")
    grade(tmp_path, *words)
    for name in ("zoë", "Zoë D", "9"):  # whichever of her names in the roster
        with_extension(name)
        said = grade(tmp_path, *words)
        rows = list(csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8-sig").splitlines()))
        zeros = [row for row in rows if row and row[0].lower().startswith("zoë") and "0" in row[-5:]]
        assert ", 0 points:" not in said and (kind != "term" or zeros == []), zeros


def test_a_term_has_one_line_for_whom_ids_name_later(tmp_path):
    """The capstone was collected without names, and [ids] told afterwards who Participant_901 is."""
    marks.write(tmp_path / "marks", mark("Anna Müller"))
    marks.write(tmp_path / "marks", replace(mark("Participant_901"), assignment="week14"))
    (tmp_path / "course.toml").write_text('[ids]\n"Participant_901" = "Anna Müller"\n')
    grade(tmp_path, "export", "--to", "out.csv")
    _, *rows = csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8-sig").splitlines())
    assert [row[0] for row in rows] == ["Anna Müller"] and "missing" not in rows[0][-1]


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_no_zero_for_somebody_who_may_be_excused(kind, tmp_path):
    """Emil was ill, handed in nothing, so nobody gave him a line in [ids], and Canvas had a zero under another name."""
    marks.write(tmp_path / "marks", mark("anna"))
    header = "Student,ID,SIS User ID,SIS Login ID,Section\n"
    (tmp_path / "roster.csv").write_text(header + 'A,1,,anna,\n"Excused, E. M.",9,,u9,\n')
    rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n[excused]\nweek13 = ["Emil Excused"]\n'
    (tmp_path / "course.toml").write_text(rules)
    words = ["export", "--to", "out.csv", "--zeros"]
    words += [] if kind == "term" else ["week13", "--format", kind]
    said = grade(tmp_path, *words, status=2)
    assert "a zero may be somebody's who is excused: Emil Excused of [excused] is not found in roster.csv" in said
    assert "0 points of week13 would go to u9 (Excused, E. M.)" in said and not (tmp_path / "out.csv").exists()
    marks.write(tmp_path / "marks", replace(mark("Emil Excused"), assignment="week14"))
    assert "who is excused: Emil Excused of" in grade(tmp_path, *words, status=2), "who is known from another week"
    (tmp_path / "course.toml").write_text(rules + f"[extensions.u9]\nweek13 = {FAR_OFF}\n")
    assert "0 points: u9" not in grade(tmp_path, *words), "nobody has a zero yet"
    (tmp_path / "out.csv").unlink()
    (tmp_path / "course.toml").write_text(rules + '[ids]\n"u9" = "Emil Excused"\n')
    assert "0 points" not in grade(tmp_path, *words)
    (tmp_path / "course.toml").write_text(rules)
    two = 'A,1,,anna,\n"Excused, Emil",9,,u9,\n"Excused, Emil",10,,u10,\n'
    (tmp_path / "roster.csv").write_text(header + two)
    assert "who is excused: Emil Excused of" in grade(tmp_path, *words, status=2), "which of the two?"
    (tmp_path / "roster.csv").write_text(header + 'A,1,,anna,\n"Excused, Emil",9,,u9,\n')
    assert "0 points" not in grade(tmp_path, *words), "Moodle's name, the other way round"


@pytest.mark.parametrize("name", ['"Khan, Aisha"', "akhan", "104", "S104"])
def test_an_extension_under_another_name_of_the_roster_is_told_wherever_points_are(name, tmp_path):
    """She stayed late, and 10 % were taken off: rosters know all of these names, and extensions the hand-in's alone."""
    header = "Student,ID,SIS User ID,SIS Login ID,Section\n"
    (tmp_path / "roster.csv").write_text(header + '"Khan, Aisha",104,S104,akhan,A\n"Weber, Anna",101,S101,aweber,A\n')
    rules = f'[roster]\nfile = "roster.csv"\n[deadlines]\nweek13 = {LONG_AGO}\n'
    extended = f"[extensions.{name}]\nweek13 = {FAR_OFF}\n"
    (tmp_path / "course.toml").write_text(rules + extended)
    (tmp_path / "in" / "khanaisha_104").mkdir(parents=True)
    (tmp_path / "in" / "khanaisha_104" / "topology.py").write_text("x = 1\n")
    told = f"extends the deadline of {name.strip(chr(34))}, who is khanaisha_104 here: the extension has no effect"
    said = grade(tmp_path, "collect", "week13", "--from", "in")
    assert told in said and "from whom nothing is here" not in said
    marks.write(tmp_path / "marks", mark("khanaisha_104", received="2002-01-01T12:00:00+00:00"))
    assert told in grade(tmp_path, "status", "week13")
    assert told in grade(tmp_path, "export", "week13", "--to", "out.csv")
    assert f"week13: course.toml {told}" in grade(tmp_path, "export", "--to", "term.csv")
    with contextlib.chdir(tmp_path):  # what `grade load` says beside its own
        said = slips(find_rules(None, [WEEKS["week13"]]), WEEKS["week13"], tmp_path, tmp_path, here=["khanaisha_104"])
    assert [sentence for sentence in said if told in sentence]
    for right in (extended.replace(name, "khanaisha_104"), extended + f'[ids]\n{name} = "khanaisha_104"\n'):
        (tmp_path / "course.toml").write_text(rules + right)
        assert "no effect" not in grade(tmp_path, "status", "week13")
    (tmp_path / "course.toml").write_text(rules + extended.replace(name, "aweber"))
    assert "no effect" not in grade(tmp_path, "status", "week13"), "she may still hand in"
    (tmp_path / "course.toml").write_text(f"{rules}week14 = {LONG_AGO}\n" + extended.replace("week13", "week14"))
    assert "no effect" not in grade(tmp_path, "status", "week13"), "of another week, where she may have that name"


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


def test_the_term_has_each_student_by_the_name_in_ids_and_tells_what_is_not_in_it(classroom):
    marks.write(classroom / "marks", mark("Ben Carter", assignment="week14"))
    for name in ("week13", "week16"):
        collect([download(classroom / "x.zip", WEEKS[name], "anna")], WEEKS[name], classroom / "submitted", DEFAULTS)
    rules = classroom / "course.toml"
    more = f"week14 = {LONG_AGO}\nweek15 = {LONG_AGO}\ncapstone = 2099-01-01T00:00:00Z\n"
    rules.write_text(rules.read_text().replace("[roster]", f"{more}[roster]"))
    assert "may be somebody's" in grade(classroom, "export", "--to", "term.csv", "--zeros", status=2), "the stranger's"
    said = grade(classroom, "export", "--to", "term.csv", "--zeros", "--anyway")
    table = list(csv.reader(io.StringIO((classroom / "term.csv").read_text("utf-8-sig"))))
    assert [line[0] for line in table[1:]] == ["Ben Carter", "anna", "hugo", "stranger"]
    assert "Not in the roster, with a line of their own: stranger" in said
    assert "week16 has no column: 1 hand-in is not graded yet" in said and "week13 has no column" not in said
    assert "week15 has no column: its deadline has passed, and nothing of it is here" in said
    assert "week14 has no column" not in said and "capstone has no column" not in said


def test_a_roster_that_is_not_there_is_no_matter_of_encodings(classroom):
    (classroom / "roster.csv").unlink()
    said = grade(classroom, "status", "week13", status=2)
    assert "there is no roster roster.csv: put it there" in said and "UTF-8" not in said


def test_one_student_under_two_names_gets_the_points_of_neither(tmp_path):
    """15 by hand stood under the one name and 2 under the other, and Moodle got the second."""
    marks.write(tmp_path / "marks", mark("anna"))
    marks.write(tmp_path / "marks", mark("aweber"))
    (tmp_path / "canvas.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\nanna,9,,aweber,\nben,8,,ben,\n")
    told = "anna, aweber are one student of canvas.csv: `grade withdraw week13 ID` takes back what is not to count"
    words = ["export", "week13", "--to", "out.csv", "--roster", "canvas.csv"]
    assert told in grade(tmp_path, "status", "week13", "--roster", "canvas.csv")
    assert told in grade(tmp_path, *words)
    assert f"week13: {told}" in grade(tmp_path, "export", "--to", "out.csv", "--roster", "canvas.csv")
    left = "2 students left out (one student of the roster under two names, so the points of neither): anna; aweber"
    assert left in grade(tmp_path, *words, "--format", "canvas")
    assert "aweber" not in (tmp_path / "out.csv").read_text()
    shutil.rmtree(tmp_path / "marks" / "week13" / "aweber")
    assert "one student" not in grade(tmp_path, *words, "--format", "canvas", "--automatic")
    assert "aweber" in (tmp_path / "out.csv").read_text()


def test_two_names_of_one_line_of_moodles_worksheet(tmp_path):
    marks.write(tmp_path / "marks", mark("Anna Weber"))
    marks.write(tmp_path / "marks", mark("Anna Weber_801"))
    (tmp_path / "moodle.csv").write_text(
        "Identifier,Full name,Email address,Grade,Maximum grade\nParticipant 801,Anna Weber,a@x.edu,,100.00\n"
    )
    words = ("export", "week13", "--to", "out.csv", "--roster", "moodle.csv", "--format", "moodle", "--zeros")
    said = grade(tmp_path, *words)
    assert "Anna Weber, Anna Weber_801 are one student of moodle.csv" in said
    assert "so the points of neither): Anna Weber; Anna Weber_801" in said
    assert [row["Grade"] for row in csv.DictReader((tmp_path / "out.csv").open())] == [""]


def test_whose_only_hand_in_was_withdrawn_is_named_wherever_it_is_missing(classroom):
    """90 of 90 became a zero, and nobody said why."""
    download(classroom / "x.zip", WEEKS["week13"], "hugo")
    grade(classroom, "collect", "week13", "--from", "x.zip", "--received", LONG_AGO)
    told = "everything of hugo was withdrawn: week13 is missing then, and a zero by --zeros; `grade withdraw week13 ID"
    assert "withdrawn" not in grade(classroom, "status", "week13")
    grade(classroom, "withdraw", "week13", "hugo")
    assert told in grade(classroom, "status", "week13")
    assert told in grade(classroom, "export", "week13", "--to", "out.csv", "--zeros", "--anyway")
    assert f"week13: {told}" in grade(classroom, "export", "--to", "out.csv", "--zeros", "--anyway")
    grade(classroom, "withdraw", "week13", "hugo", "--undo")
    assert "withdrawn" not in grade(classroom, "status", "week13")
    (classroom / "roster.csv").write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section\nanna,1,,hugo,\nBen Carter,2,,ben,\nstranger,3,,stranger,\n"
    )
    grade(classroom, "withdraw", "week13", "hugo")
    assert "withdrawn" not in grade(classroom, "status", "week13"), "under her other name she is here"


def test_a_page_of_before_of_who_was_withdrawn_is_told(tmp_path):
    for name in ("anna", "ben"):
        marks.write(tmp_path / "marks", mark(name))
    words = ("feedback", "week13", "--to", "pages", "--anyway")
    assert "A page of before" not in grade(tmp_path, *words)
    shutil.rmtree(tmp_path / "marks" / "week13" / "ben")
    assert "A page of before is there of ben, who has no mark now" in grade(tmp_path, *words)
    assert "A page of before" not in grade(tmp_path, *words, "--student", "anna")


def test_a_task_beside_a_seed_is_refused(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna")
    grade(classroom, "collect", "week13", "--from", "x.zip", "--received", "2026-11-20T18:00+01:00")
    words = ("run", "week13", "--student", "anna", "--seed", "1", "--task", "13.4")
    assert "--seed shows every task" in grade(classroom, *words, status=2)


@pytest.mark.parametrize("kind", ["canvas", "csv", "term"])
def test_no_zero_for_one_of_two_who_are_called_as_an_extension_says(kind, tmp_path):
    """Which of the two has more time, nobody can tell: one had a zero."""
    marks.write(tmp_path / "marks", mark("anna"))
    two = "A,1,,anna,\nZoë D,9,,u9,\nZoë D,10,,u10,\n"
    (tmp_path / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\n" + two)
    rules = f'[deadlines]\nweek13 = {LONG_AGO}\n[roster]\nfile = "roster.csv"\n'
    (tmp_path / "course.toml").write_text(rules + f'[extensions."Zoë D"]\nweek13 = {FAR_OFF}\n')
    words = ["export", "--to", "out.csv", "--zeros", *([] if kind == "term" else ["week13", "--format", kind])]
    assert "deadline has not passed: Zoë D of [extensions]" in grade(tmp_path, *words, status=2)


def test_who_has_left_is_no_slip_of_ids_in_the_term_either(tmp_path):
    for name in ("anna", "lea"):
        marks.write(tmp_path / "marks", mark(name))
    (tmp_path / "roster.csv").write_text("anna\n")
    (tmp_path / "course.toml").write_text('[roster]\nfile = "roster.csv"\n[ids]\n"x" = "lea"\n"y" = "nobody"\n')
    said = grade(tmp_path, "export", "--to", "out.csv")
    assert "[ids] in course.toml speaks of nobody, who is not in roster.csv" in said and "speaks of lea" not in said


def test_of_two_extensions_the_later_one_keeps_the_zero_away(tmp_path):
    """Extended once by Zoë's name and once by her id, she had a zero before her deadline."""
    marks.write(tmp_path / "marks", mark("anna"))
    (tmp_path / "roster.csv").write_text("Student,ID,SIS User ID,SIS Login ID,Section\nA,1,,anna,\nZoë D,9,,zoë,\n")
    rules = f'[roster]\nfile = "roster.csv"\n[deadlines]\nweek13 = {LONG_AGO}\n'
    both = f'[extensions."zoë"]\nweek13 = {FAR_OFF}\n[extensions."Zoë D"]\nweek13 = {LONG_AGO}\n'
    (tmp_path / "course.toml").write_text(rules + both)
    assert ", 0 points:" not in grade(tmp_path, "export", "week13", "--to", "out.csv", "--zeros")
