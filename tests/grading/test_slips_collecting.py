"""What an instructor collects that is not what was meant: another week's, another folder's, with a wrong date, of
somebody who is somebody else. Refused in one sentence that says what to type instead, or understood. Each of these cost
a new instructor up to half an hour in a walked term."""

from __future__ import annotations

import re
import shlex
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from grading import marks
from grading.intake.collect import collect
from grading.intake.find import find_submissions
from grading.intake.policy import DEFAULTS, Rules
from grading.intake.rename import rename
from labkit.errors import LabError
from tests.grading.aclassroom import FAR_OFF, LONG_AGO, NOON, ROOT, WEEKS, download, grade, modules
from tests.grading.reports.aclass import mark

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
    assert "nothing is withdrawn here" in grade(classroom, "withdraw", "week13", "anna", "--undo", status=2)
    grade(classroom, "withdraw", "week13", "anna", "--all")
    said = grade(classroom, "withdraw", "week13", "anna", "--undo")
    stays = "attempt 1, 2 of anna stays withdrawn: `grade withdraw week13 anna --undo --all` brings back every one"
    assert "1 attempt brought back: anna, attempt 3" in said and stays in said
    assert "stays" not in grade(classroom, "withdraw", "week13", "anna", "--undo", "--all")
    assert here() == [*whole[:2], ("anna", 3), *whole[2:], ("hugo", 1)]
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


def test_who_is_not_in_the_roster_is_told_when_the_hand_in_comes(classroom):
    download(classroom / "x.zip", WEEKS["week13"], "anna", "Ben Carter", "anya")
    said = grade(classroom, "collect", "week13", "--from", "x.zip")
    assert "anya handed in and is not in the roster: [ids] in course.toml says who it is" in said
    assert said.count("handed in and is") == 1
    assert "anya" not in grade(classroom, "collect", "week13", "--from", "x.zip").partition("attempt")[0], "told once"


@pytest.mark.parametrize("names", [("anna_100_assignsubmission_file_/week13.html",), ("doejane_4567_88_week13.html",)])
def test_packed_feedback_is_no_hand_in(names, tmp_path):
    """It is called as the platform calls hand-ins, and lies beside them: everybody would have an empty attempt."""
    with zipfile.ZipFile(tmp_path / "up.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "<!DOCTYPE html>")
    with pytest.raises(LabError, match="up.zip holds feedback pages"):
        collect([tmp_path / "up.zip"], WEEKS["week13"], tmp_path / "submitted", DEFAULTS)


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
    assert (plain, late) == (due, NOON) and any(
        "For 1 of them the platform's own mark decides" in note for note in notes
    )
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


def test_a_correction_that_counts_less_than_what_it_corrects_is_told(classroom, monkeypatch):
    """The class's times were told by the deadline, "by when", and a correction that came at eleven was older."""
    monkeypatch.setenv("COLUMNS", "200")
    (classroom / "course.toml").write_text("[deadlines]\nweek13 = 2026-01-10T23:59:00+01:00\n")
    words = ("collect", "week13", "--from")

    def hand_in(name, text, *more):
        folder = classroom / name / "paul"
        folder.mkdir(parents=True)
        (folder / "topology.py").write_text(text)
        return grade(classroom, *words, name, "--received", *more)

    assert "still counts" not in hand_in("class", "x = 1\n", "2026-01-10T23:59+01:00")
    said = hand_in("mail", "x = 2\n", "2026-01-10T23:00+01:00")
    assert "1 of the new attempts has an earlier time than an attempt before it, which still counts" in said
    assert "(attempt 2 of paul, by attempt 1): --student ID --received TIME puts it right" in said
    assert "paul 2 2026-01-10 23:59+01:00" in said and "+01:00 new" not in said, "the table has the one that counts"
    said = grade(classroom, *words, "class", "--student", "paul", "--received", "2026-01-10T20:00+01:00")
    assert "paul 2 2026-01-10 23:00+01:00" in said
    said = hand_in("again", "x = 3\n", "2026-01-10T23:30+01:00")
    assert "still counts" not in said and "paul 3 2026-01-10 23:30+01:00 new" in said
    own = classroom / "own" / "paul+week13+2026-01-10 21:00:00.000000 UTC+abcdefghijkl"
    own.mkdir(parents=True)
    (own / "topology.py").write_text("x = 6\n")
    (own / "timestamp.txt").write_text("2026-01-10 21:00:00.000000 UTC")
    assert "(attempt 4 of paul, by attempt 3)" in grade(classroom, *words, "own"), "a time of its own"
    (classroom / "untimed" / "paul").mkdir(parents=True)
    (classroom / "untimed" / "paul" / "topology.py").write_text("x = 5\n")
    said = grade(classroom, *words, "untimed")
    assert "paul 5 unknown new" in said, "where a time is not known, the number decides"
    (classroom / "course.toml").write_text('[attempts]\npolicy = "best"\n')
    assert "still counts" not in hand_in("best", "x = 4\n", "2026-01-10T22:00+01:00"), "the best is the best"


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


def test_a_forgotten_time_is_told_for_everybody_at_once(tmp_path):
    download(tmp_path / "x.zip", WEEKS["week13"], "anna", "ben")
    words = ("collect", "week13", "--from", "x.zip")
    assert "of 2 nothing tells when" in grade(tmp_path, *words)
    said = grade(tmp_path, *words, "--received", "2026-11-20T12:00+00:00", "--student", "*")
    assert "nothing tells when" not in said
    for student in ("anna", "ben"):
        assert f"{student}, attempt 1: handed in 2026-11-20 12:00+00:00, by --received" in said


def test_what_is_known_keeps_its_time_and_it_is_said(tmp_path):
    download(tmp_path / "x.zip", WEEKS["week13"], "anna")
    words = ("collect", "week13", "--from", "x.zip", "--received")
    grade(tmp_path, *words, "2026-11-20T12:00+00:00")
    said = grade(tmp_path, *words, "2026-11-21T12:00+00:00")
    assert "1 attempt known before: the time stays (--received with --student ID" in said
    assert "known before" not in grade(tmp_path, *words, "2026-11-21T12:00+00:00", "--student", "anna")


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


def test_a_week_in_two_words_and_a_download_without_from_are_put_right(tmp_path):
    for command in ("run", "collect", "status"):
        assert "a week's name is one word: week13" in grade(tmp_path, command, "week", "13", status=2)
    said = grade(tmp_path, "collect", "week13", "x.zip", status=2)
    assert "grade collect week13 --from x.zip" in said
    assert "Missing option '--from'" in grade(tmp_path, "collect", "week13", status=2)
