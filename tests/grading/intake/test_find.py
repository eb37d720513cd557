"""Who handed in, in every layout; nobody is lost, and nobody is there twice without a word."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from grading.intake import find_submissions, load
from grading.intake.names import clean, exchange_name, lms_name, parse_time, shown
from labkit.errors import LabError
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, put, put_all, zipped

UTC = UTC


def who(found):
    return [(entry.student, entry.attempt) for entry in found]


def test_nbgraders_submitted_folder(folder, week):
    put_all(folder / "anna" / "week91", MINE | {"timestamp.txt": "2026-11-20 17:30:00.5 UTC"})
    put_all(folder / "bob" / PACKAGE, MINE)
    put_all(folder / "carl" / "week92", {"other.py": ""})
    (folder / "dora" / "week91").mkdir(parents=True)
    found = find_submissions(folder, week)
    assert who(found) == [("anna", 1), ("bob", 1), ("dora", 1)]
    assert found.without == ["carl"] and found.notes == ["Other weeks, but nothing of week91: carl"]
    assert found[0].path == folder / "anna" / "week91"
    assert found[0].received == datetime(2026, 11, 20, 17, 30, 0, 500_000, UTC)
    assert found[1].received is None
    assert set(load(found[0], week).files) == set(MINE)  # the timestamp is not the student's file


def test_folders_named_after_weeks_in_their_own_way(folder, week):
    put_all(folder / "anna" / "week91_final", MINE)
    put_all(folder / "bob" / "week91", {"notes.txt": "x"})
    put_all(folder / "bob", MINE)
    put_all(folder / "carl" / "Week 92", MINE)
    found = find_submissions(folder, week)
    assert [set(load(entry, week).files) for entry in found] == [
        {f"week91_final/{name}" for name in MINE},
        {*MINE, "week91/notes.txt"},
    ]
    assert found.without == ["carl"]


def test_a_folder_that_may_not_be_read_is_an_entry(folder, week, monkeypatch):
    put_all(folder / "anna", MINE)
    real, real_open = os.scandir, os.open

    def refuse(function):
        def refusing(path, *rest, **more):
            if str(path).endswith("anna"):
                raise PermissionError(13, "Permission denied")
            return function(path, *rest, **more)

        return refusing

    monkeypatch.setattr(os, "scandir", refuse(real))
    monkeypatch.setattr(os, "open", refuse(real_open))
    (entry,) = find_submissions(folder, week)
    assert load(entry, week).notes == ["Not used: anna cannot be read (Permission denied)."]


def test_a_folder_or_a_file_for_each_student(folder, week):
    put_all(folder / "anna", MINE)
    put(folder / "bob.zip", zipped(MINE))
    put(folder / "carl.ipynb", "{}")
    put(folder / "dora.tar.gz", b"x")
    (folder / "empty").mkdir()
    put_all(folder / "__MACOSX", {"._bob.zip": ""})
    put(folder / ".DS_Store", "")
    put(folder / "grades.csv", "")
    found = find_submissions(folder, week)
    assert who(found) == [("anna", 1), ("bob", 1), ("carl", 1), ("dora", 1), ("empty", 1)]
    assert found.notes == ["grades.csv is no folder, archive, notebook or module: passed over"]


def test_names_of_any_script_and_composition(folder, week):
    put_all(folder / 'Jose\u0301, "Pepe" \'O+Brien', MINE)  # as macOS writes it: a letter and an accent
    put_all(folder / "محمد علي", MINE)
    put_all(folder / "100% sure", MINE)
    os.mkdir(os.fsencode(folder) + b"/caf\xe9")
    students = [entry.student for entry in find_submissions(folder, week)]
    assert students == sorted(['José, "Pepe" \'O+Brien', "محمد علي", "100% sure", "caf\\xe9"])
    for student in students:
        student.encode()  # text that a file can hold


def test_canvas_download(folder, week):
    put(folder / "doejane_4567_89012_homework.zip", zipped(MINE))
    put(folder / "garcía_LATE_77_90000_lab.zip", zipped(MINE))
    put(folder / "roe_88_91000_ring.py", RING)
    put(folder / "roe_88_91001_cost-1.py", COST)
    put(folder / "LATE_anon_X9z_92000_work.zip", zipped(MINE))
    put(folder / "poe_99_text.html", "<p>I did it</p>")
    found = find_submissions(folder, week)
    assert who(found) == [("anon_X9z", 1), ("doejane_4567", 1), ("garcía_77", 1), ("poe_99", 1), ("roe_88", 1)]
    assert [entry.late for entry in found] == [True, False, True, False, False]
    assert found[2].notes == ("Canvas marks this attempt as late.",) and found[1].notes == ()
    assert set(load(found[4], week).files) == {"ring.py", "cost.py"}  # several files are one attempt
    assert not found.notes


def test_canvas_hand_ins_of_two_downloads_are_attempts(folder, week):
    put(folder / "doe_LATE_45_300_lab.zip", zipped({"ring.py": "third"}))
    put(folder / "doe_45_200_lab-1.zip", zipped({"ring.py": "second"}))
    put(folder / "doe_45_100_lab.zip", zipped({"ring.py": "first"}))
    found = find_submissions(folder, week)
    assert who(found) == [("doe_45", 1), ("doe_45", 2), ("doe_45", 3)]
    assert [load(entry, week).files["ring.py"] for entry in found] == [b"first", b"second", b"third"]
    assert [entry.late for entry in found] == [False, False, True]
    (note,) = found.notes
    assert "doe_45 is there 3 times" in note and "doe_45_100_lab.zip, doe_45_200_lab-1.zip" in note


def test_moodle_download(folder, week):
    put_all(folder / "Jane O'Doe_1234_assignsubmission_file_", MINE)
    put(folder / "Li Wei_1235_assignsubmission_file_ring.py", RING)
    put(folder / "Li Wei_1235_assignsubmission_file_cost.py", COST)
    put_all(folder / "Ana_B_1236_assignsubmission_file", MINE)
    put_all(folder / "Ana_B_1236_assignsubmission_onlinetext", {"onlinetext.html": ""})
    found = find_submissions(folder, week)
    assert who(found) == [("Ana_B", 1), ("Jane O'Doe", 1), ("Li Wei", 1)]
    assert set(load(found[1], week).files) == set(MINE)
    assert set(load(found[2], week).files) == {"ring.py", "cost.py"}


def test_two_moodle_participants_of_one_name_stay_two(folder, week):
    put_all(folder / "Jane Doe_11_assignsubmission_file_", {"ring.py": "a"})
    put_all(folder / "Jane Doe_22_assignsubmission_file_", {"ring.py": "b"})
    found = find_submissions(folder, week)
    assert who(found) == [("Jane Doe_11", 1), ("Jane Doe_22", 1)]
    assert found.notes == ["Moodle has 2 participants called Jane Doe: they are told apart as Jane Doe_11, Jane Doe_22"]


def test_nbgraders_exchange(folder, week):
    put_all(folder / "a+b+week91+2026-11-20 18:00:00.000001 UTC+AbCdEf_-1234", {"ring.py": "late one"})
    put_all(folder / "a+b+week91+2026-11-20 17:00:00.000001 UTC+zzzzzzzzzzzz", {"ring.py": "early one"})
    put_all(folder / "bob+week91+2026-11-20 17:00:00 +0200", {"ring.py": ""})
    put_all(folder / "bob+week92+2026-11-20 17:00:00.0 UTC+zzzzzzzzzzzz", {"other.py": ""})
    found = find_submissions(folder, week)
    assert who(found) == [("a+b", 1), ("a+b", 2), ("bob", 1)]
    assert [load(entry, week).files["ring.py"] for entry in found[:2]] == [b"early one", b"late one"]
    assert found[2].received == datetime(2026, 11, 20, 15, tzinfo=UTC)
    assert not found.notes


def test_one_student_twice_is_two_attempts_with_a_sentence(folder, week):
    put_all(folder / "anna", {"ring.py": "new"})
    put(folder / "anna.zip", zipped({"ring.py": "old"}))
    os.utime(folder / "anna", (2_000_000_000, 2_000_000_000))
    os.utime(folder / "anna.zip", (1_000_000_000, 1_000_000_000))
    found = find_submissions(folder, week)
    assert who(found) == [("anna", 1), ("anna", 2)]
    assert [load(entry, week).files["ring.py"] for entry in found] == [b"old", b"new"]
    assert "anna is there 2 times" in found.notes[0] and "anna.zip, anna" in found.notes[0]
    assert found[0].attention == tuple(found.notes)


def test_a_students_folder_and_a_download_of_one_id(folder, week):
    put_all(folder / "doe_45", {"ring.py": "a"})
    put(folder / "doe_45_100_ring.py", "b")
    put(folder / "doe_LATE_45_200_other.py", "c")
    found = find_submissions(folder, week)
    assert [load(entry, week).files for entry in found] == [{"ring.py": b"a"}, {"ring.py": b"b"}, {"other.py": b"c"}]
    assert len(found.notes) == 1


def test_a_submission_in_somebody_elses_name_is_told(folder, week, monkeypatch):
    name = "root+week91+2026-11-20 17:00:00 UTC+zzzzzzzzzzzz"
    put_all(folder / name, MINE)

    class Owner:
        st_uid = 4321

    monkeypatch.setattr("grading.intake.find.os.lstat", lambda path: Owner)
    (note,) = find_submissions(folder, week).notes
    assert "says that it is root's" in note and "4321" in note


def test_links_are_entries_that_hold_nothing(folder, week, tmp_path):
    put_all(tmp_path / "elsewhere", {"ring.py": "secret", "timestamp.txt": "2026-11-20 17:30:00 UTC"})
    (folder / "eve").symlink_to(tmp_path / "elsewhere")
    put_all(folder / "mal" / "x", {})
    (folder / "mal" / "week91").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe")
    put_all(folder / "tim" / "week91", MINE)
    (folder / "tim" / "week91" / "timestamp.txt").symlink_to(tmp_path / "elsewhere" / "timestamp.txt")
    found = find_submissions(folder, week)
    assert who(found) == [("eve", 1), ("mal", 1), ("pipe", 1), ("tim", 1)]
    for entry in found[:3]:
        submission = load(entry, week)
        assert not submission.files and "Not used" in submission.notes[0]
    assert found[3].received is None


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda folder: folder.rmdir(), "there is no folder"),
        (lambda folder: (folder.rmdir(), put(folder, "")), "is a file: `grade collect week91 --from"),
        (lambda folder: put_all(folder, MINE), "looks like one submission"),
        (lambda folder: put_all(folder / PACKAGE, MINE), "looks like one submission"),
        (lambda folder: put_all(folder, {f"{PACKAGE}/ring.py": "", "labkit/x": "", "grading/x": ""}), "is a course"),
    ],
)
def test_a_wrong_folder_is_one_sentence(folder, week, make, sentence):
    make(folder)
    with pytest.raises(LabError, match=sentence):
        find_submissions(folder, week)


def test_a_thousand_are_found_without_reading_them(folder, week, monkeypatch):
    for number in range(1000):
        (folder / f"s{number:04}" / "week91").mkdir(parents=True)
        put(folder / f"s{number:04}" / "week91" / "ring.py", "x")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more))
    assert len(find_submissions(folder, week)) == 1000
    assert all(path.endswith("timestamp.txt") for path in opened) and len(opened) == 1000


@pytest.mark.parametrize(
    "text, time",
    [
        ("2026-11-20 17:30:00.123456 UTC", datetime(2026, 11, 20, 17, 30, 0, 123456, UTC)),
        ("2026-11-20 17:30:00 +0530\n", datetime(2026, 11, 20, 12, 0, tzinfo=UTC)),
        ("2026-11-20 17:30:00 -0100", datetime(2026, 11, 20, 18, 30, tzinfo=UTC)),
        ("2026-07-20 17:30:00 Europe/Zurich", datetime(2026, 7, 20, 15, 30, tzinfo=UTC)),
        ("2026-11-20T17:30:00+01:00", datetime(2026, 11, 20, 16, 30, tzinfo=UTC)),
        ("2026-11-20 17:30:00", datetime(2026, 11, 20, 17, 30, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
        ("0001-01-01 00:00:00 +2300", None),
        ("2026-11-20 17:30:00 ../../etc/passwd", None),
        ("2026-11-20 17:30:00 Nowhere", None),
    ],
)
def test_times(text, time):
    assert parse_time(text) == time


def test_names_that_are_not_an_lms():
    for name in (
        "anna",
        "anna_2.zip",
        "jane doe.zip",
        "week91_rings.zip",
        "x_assignsubmission_file_",
        "2026-11-20.zip",
    ):
        assert lms_name(name) is None, name
    assert exchange_name("anna+week91+soon", ("week91",)) is None


def test_a_name_in_a_sentence_cannot_act():
    assert shown("a\nb\x1b[31m\u202egnp.py") == "a\\nb\\x1b[31m\\u202egnp.py"
    assert len(shown("x" * 5000)) < 130
    assert clean("caf\udce9") == "caf\\xe9" and clean("x\ud800") == "x\\xed\\xa0\\x80"
    assert parse_time("2026-11-20 17:30:00 UTC").utcoffset() == timedelta(0)
