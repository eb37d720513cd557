"""What a group hands in through Moodle, which gives one folder for the group."""

from __future__ import annotations

import zipfile
from datetime import UTC, datetime, timedelta

import pytest

from grading import marks
from grading.intake import roster
from grading.intake.collect import collect
from grading.intake.find import find_submissions
from grading.intake.load import load
from grading.intake.names import lms_name
from grading.intake.policy import Rules
from grading.reports.feedback import path_of
from labkit.errors import LabError
from tests.grading.aclassroom import WEEKS, grade
from tests.grading.intake.handed_in import put, zipped
from tests.grading.reports.aclass import mark

SHEET = """Identifier,Full name,Group,Grade
Participant 501,Anna Meier,Group A,
Participant 502,Ben Carter,Group A,
Participant 503,Max Meier,Group A,
Participant 504,Max Meier,Group B,
Participant 505,Cem Öz,Default group,
"""


@pytest.fixture
def sheet(tmp_path):
    (tmp_path / "sheet.csv").write_text(SHEET)
    return tmp_path / "sheet.csv"


def download(to, **files):
    """One of Moodle 4.1 or later: 502 is the group's number in the course, and Ben's in the assignment."""
    names = {"a": "Group A_502", "b": "Group B_78", "none": "Default group", "other": "Group C_79"}
    return put(to, zipped({f"{names[of]}_assignsubmission_file/ring.py": text for of, text in files.items()}))


def kept(tmp_path, week):
    return {(e.student, e.attempt): load(e, week).files["ring.py"] for e in find_submissions(tmp_path / "kept", week)}


def test_each_member_has_handed_in_what_the_group_did(tmp_path, week, sheet):
    first = download(tmp_path / "first.zip", a="A", b="B", none="N", other="C")
    with zipfile.ZipFile(first, "a") as archive:
        archive.writestr("readme.txt", "x")
    report = collect([first], week, tmp_path / "kept", Rules(), worksheet=sheet)
    assert any("readme.txt" in note and "passed over" in note for note in report.notes)
    anna, ben, cem, max_a, max_b = "Anna Meier", "Ben Carter", "Cem Öz", "Max Meier_503", "Max Meier_504"
    first_of = {anna: b"A", ben: b"A", max_a: b"A", max_b: b"B", cem: b"N", "Group C": b"C"}
    assert kept(tmp_path, week) == {(name, 1): text for name, text in first_of.items()}
    assert f"Group A is a group of sheet.csv: what it handed in is kept for {anna}, {ben}, {max_a}" in report.notes
    numbers = {entry.student: entry.participant for entry in find_submissions(tmp_path / "kept", week)}
    assert (numbers[ben], numbers[max_a], numbers[cem]) == ("Ben Carter_502", "Max Meier_503", "Cem Öz_505")
    groups = {entry.student: entry.group for entry in find_submissions(tmp_path / "kept", week)}
    assert (groups[ben], groups[cem], groups["Group C"]) == ("Group A_502", "Default group", "")
    assert not collect([first], week, tmp_path / "kept", Rules(), worksheet=sheet).added
    second = download(tmp_path / "second.zip", a="A2", b="B", none="N", other="C")
    added = collect([second], week, tmp_path / "kept", Rules(), worksheet=sheet).added
    assert sorted((one.student, one.attempt) for one in added) == [(anna, 2), (ben, 2), (max_a, 2)]
    who, rules = roster.read(sheet), Rules().knowing({name: {1: numbers[name]} for name in first_of})
    found = {name: roster.find(name, who, rules)[0] for name in first_of}
    assert {line and line.cells["Identifier"] for line in found.values()} == {
        *(f"Participant {n}" for n in range(501, 506)),
        None,
    }


def test_one_member_is_collected_alone_and_a_worksheet_that_is_not_there_is_refused(tmp_path, week, sheet):
    words = [download(tmp_path / "all.zip", a="A", b="B")], week, tmp_path / "kept", Rules()
    collect(*words, students=["Ben Carter"], worksheet=sheet)
    assert kept(tmp_path, week) == {("Ben Carter", 1): b"A"}
    other = put(tmp_path / "other.csv", "Identifier,Full name,Group\nParticipant 1,Zoe,Group A\n")
    of_other = Rules(roster={"file": str(other)})
    added = collect([tmp_path / "all.zip"], week, tmp_path / "new", of_other, worksheet=sheet).added
    assert "Zoe" not in {one.student for one in added} and len(added) == 4, "this assignment's, not the course's roster"
    with pytest.raises(LabError, match="there is no roster"):
        collect(*words, worksheet=tmp_path / "none.csv")


def test_a_worksheet_that_knows_of_no_hand_in_may_be_another_assignments(tmp_path, week, sheet):
    with_status = (
        SHEET.replace("Group,", "Group,Status,").replace(" A,", " A,No submission,").replace(" B,", " B,Submitted,")
    )
    sheet.write_text(with_status)
    download(tmp_path / "all.zip", a="A", b="B")
    notes = collect([tmp_path / "all.zip"], week, tmp_path / "kept", Rules(), worksheet=sheet).notes
    assert [note for note in notes if "is it this assignment" in note] == [
        "sheet.csv says that nobody of Group A handed in: is it this assignment's?"
    ]


def test_the_command_takes_the_worksheet_and_the_courses_roster_is_another_assignments(tmp_path, sheet):
    deadline = "[deadlines]\nweek13 = 2026-11-13T23:59:00+01:00\n"
    (tmp_path / "course.toml").write_text(f'{deadline}[roster]\nfile = "{sheet}"\n')
    words = ("collect", "week13", "--from", "all.zip", "--received", "2026-11-13T10:00:00+01:00")
    download(tmp_path / "all.zip", a="x = 1")
    said = grade(tmp_path, *words, "--to", "alone")
    assert "Group A handed in and is a group of the roster: `grade withdraw` takes it back" in said
    assert "kept for Anna Meier, Ben Carter, Max Meier_503" in grade(tmp_path, *words, "--roster", "sheet.csv")
    marks.write(tmp_path / "marks", mark("Ben Carter"))
    page = path_of(tmp_path / "feedback", WEEKS["week13"], "Ben Carter")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("page of Ben")
    grade(tmp_path, "pack", "feedback", "week13", "--like", "all.zip", "--to", "up.zip", status=1)
    with zipfile.ZipFile(tmp_path / "up.zip") as archive:
        assert archive.namelist() == ["Ben Carter_502_assignsubmission_file/week13.html"]


def test_who_is_new_in_a_group_has_its_hand_in_since_the_others_have(tmp_path, week, sheet):
    """A member who was moved in Moodle after the deadline was late with what the group had handed in in time."""
    friday, monday = (datetime(2026, 11, day, 20, tzinfo=UTC) for day in (13, 16))
    archive = download(tmp_path / "all.zip", a="A", b="B")
    collect([archive], week, tmp_path / "kept", Rules(), given=friday, worksheet=sheet)
    sheet.write_text(SHEET.replace("Participant 502,Ben Carter,Group A", "Participant 502,Ben Carter,Group B"))
    report = collect([archive], week, tmp_path / "kept", Rules(), given=monday, worksheet=sheet)
    assert [(one.student, one.attempt, one.received) for one in report.added] == [("Ben Carter", 2, friday)]
    other = download(tmp_path / "new.zip", a="A2", b="B")
    added = collect([other], week, tmp_path / "kept", Rules(), given=monday, worksheet=sheet).added
    assert {one.received for one in added} == {monday} and len(added) == 2
    back = download(tmp_path / "back.zip", a="A", b="B", none="N")  # the group put its first files back, late
    tuesday = monday + timedelta(days=1)
    added = collect([back], week, tmp_path / "kept", Rules(), given=tuesday, worksheet=sheet).added
    assert {one.received for one in added} == {tuesday} and len(added) == 3


def test_what_was_kept_under_the_groups_own_name_is_told(tmp_path, week, sheet):
    archive = download(tmp_path / "all.zip", a="A", none="N")
    assert not [n for n in collect([archive], week, tmp_path / "kept", Rules()).notes if "takes that back" in n]
    notes = collect([archive], week, tmp_path / "kept", Rules(), worksheet=sheet).notes
    told = [note for note in notes if "takes that back" in note]
    assert [note.partition(" was collected before")[0] for note in told] == ["Default group", "Group A"]
    assert "`grade withdraw week91 'Group A'`" in told[1]


def test_a_groups_page_is_not_packed_under_the_groups_number(tmp_path, sheet):
    deadline = "[deadlines]\nweek13 = 2026-11-13T23:59:00+01:00\n"
    (tmp_path / "course.toml").write_text(f'{deadline}[roster]\nfile = "{sheet}"\n')
    words = ("collect", "week13", "--from", "all.zip", "--received", "2026-11-13T10:00:00+01:00")
    download(tmp_path / "all.zip", a="x = 1", b="x = 2")
    grade(tmp_path, *words)
    grade(tmp_path, *words, "--roster", "sheet.csv")
    for name in ("Group A", "Ben Carter"):
        marks.write(tmp_path / "marks", mark(name))
        page = path_of(tmp_path / "feedback", WEEKS["week13"], name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"page of {name}")
    said = grade(tmp_path, "pack", "feedback", "week13", "--like", "all.zip", "--to", "up.zip", status=1)
    with zipfile.ZipFile(tmp_path / "up.zip") as archive:
        assert archive.namelist() == ["Ben Carter_502_assignsubmission_file/week13.html"]
    assert "Group A is not in the roster: whose page it is in Moodle is not known, and it is left out" in said


def test_without_a_worksheet_it_is_kept_under_the_groups_name(tmp_path, week):
    collect([download(tmp_path / "all.zip", a="A", none="N")], week, tmp_path / "kept", Rules())
    assert kept(tmp_path, week) == {("Group A", 1): b"A", ("Default group", 1): b"N"}


def test_a_canvas_students_file_of_such_a_name_is_canvas_still():
    named = lms_name("roemax_66_92_x_assignsubmission_file_ring.py")
    assert (named.system, named.student, named.number) == ("Canvas", "roemax_66", "66")


def test_names_are_as_moodle_writes_them_in_its_downloads(tmp_path, week):
    """So that one student is one, alone in a week and in a group in another; and so that the upload is understood."""
    sheet = tmp_path / "sheet.csv"
    rows = [
        (501, "Kate O'Brien", "G: 1"),
        (502, "Anna_Maria / Meier", "G: 1"),
        (503, "Cem O\u0308z", "G 2"),
        (504, "X", "G_2"),
        (505, "Di", "Mo & Di"),
    ]
    sheet.write_text("Identifier,Full name,Group\n" + "".join(f"Participant {n},{name},{g}\n" for n, name, g in rows))
    archive = zipped({f"{name}_assignsubmission_file/ring.py": name for name in ("G 1_70", "G 2_71", "Mo amp; Di_72")})
    report = collect([put(tmp_path / "a.zip", archive)], week, tmp_path / "kept", Rules(), worksheet=sheet)
    found = {one.student: one.participant for one in report.added}
    assert found == {
        "Kate OBrien": "Kate OBrien_501",
        "Anna Maria  Meier": "Anna Maria  Meier_502",
        "G 2": "G 2_71",
        "Di": "Di_505",
    }, "G 2 may be either of two groups"
    who = roster.read(sheet)
    rules = Rules().knowing({name: {1: participant} for name, participant in found.items()})
    for name, number in (
        ("Kate OBrien", 501),
        ("Kate O'Brien", 501),
        ("Anna Maria  Meier", 502),
        ("C\u00eam", None),
        ("Cem \u00d6z", 503),
    ):
        line = roster.find(name, who, rules)[0]
        assert (line and line.cells["Identifier"]) == (number and f"Participant {number}"), name


@pytest.mark.parametrize(
    "name, student, number, participant",
    [
        ("Group A_77_assignsubmission_file", "Group A", "77", "Group A_77"),
        ("Default group_assignsubmission_file", "Default group", "", ""),
        ("Default group_assignsubmission_file_lab.ipynb", "Default group", "", ""),
        ("Jane Doe_12_assignsubmission_file_", "Jane Doe", "12", "Jane Doe_12"),
    ],
)
def test_moodles_names_with_and_without_a_number(name, student, number, participant):
    named = lms_name(name)
    assert (named.system, named.student, named.number, named.participant) == ("Moodle", student, number, participant)
