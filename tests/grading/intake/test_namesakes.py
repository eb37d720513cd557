"""Two students of one name, in Moodle's downloads that come one after the other: nobody has the other one's attempts,
times, points or page, whatever comes first."""

from __future__ import annotations

import csv
import itertools
import json
import zipfile

import pytest

from grading import marks
from grading.intake.find import find_submissions
from grading.intake.receipts import read_receipts
from grading.reports.feedback import path_of
from tests.grading.aclassroom import WEEKS, grade
from tests.grading.reports.aclass import mark

FRIDAY, SATURDAY, SUNDAY = (f"2026-11-{day}T10:00:00+01:00" for day in (13, 14, 15))
DUE = "2026-11-13T23:59:00+01:00"
ROSTER = """Identifier,Full name,Email address,Grade
Participant 500,Max Meier,,
Participant 501,Max Meier,,
"""


def download(path, *people, week="week13"):
    """A download of Moodle's. Of each ("Max Meier_500", text) one module."""
    name = {"week13": "collectives.py", "week14": "memory.py"}[week]
    with zipfile.ZipFile(path, "w") as archive:
        for participant, text in people:
            archive.writestr(f"{participant}_assignsubmission_file_/{name}", text)
    return path


FIRST, SECOND = ("Max Meier_500", "x = 1\n"), ("Max Meier_501", "x = 2\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A class's folder with three downloads: of the one, of the other, of both."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "course.toml").write_text(f"[deadlines]\nweek13 = {DUE}\n")
    download(tmp_path / "one.zip", FIRST)
    download(tmp_path / "other.zip", SECOND)
    download(tmp_path / "both.zip", FIRST, SECOND)
    return tmp_path


@pytest.fixture
def collect(folder):
    def run(source, *words, week="week13", status=0):
        return grade(folder, "collect", week, "--from", source, *words, status=status)

    return run


@pytest.fixture
def here(folder):
    """(student, attempt) -> (what they handed in, when)."""

    def read(week="week13"):
        found = {}
        for one in read_receipts(folder / "submitted" / week, week):
            with zipfile.ZipFile(one.path) as archive:
                text = archive.read(archive.namelist()[0]).decode()
            found[one.student, one.attempt] = text, one.received and one.received.isoformat()
        return found

    return read


@pytest.fixture
def old(folder):
    """The receipts as they were before Moodle's number was kept."""

    def forget(week="week13"):
        for path in (folder / "submitted" / week).glob("*/*.json"):
            data = json.loads(path.read_text())
            del data["participant"]
            path.write_text(json.dumps(data))

    return forget


def test_another_number_under_the_same_name_is_another_student(folder, collect, here):
    """The second one's late points replaced the first one's."""
    collect("one.zip", "--received", FRIDAY)
    said = collect("other.zip", "--received", SATURDAY)
    assert here() == {("Max Meier", 1): ("x = 1\n", FRIDAY), ("Max Meier_501", 1): ("x = 2\n", SATURDAY)}
    told = "Moodle has 2 participants called Max Meier in week13: 500 is Max Meier, 501 is Max Meier_501"
    assert told in said and said.count("Moodle has") == 1
    assert "Max Meier 2" not in said and "1 student, 1 attempt, 1 new" in collect("one.zip", "--to", "elsewhere")


def test_what_is_known_keeps_its_time_when_both_come(collect, here):
    """There were three of them, and the first one was late."""
    collect("one.zip", "--received", FRIDAY)
    said = collect("both.zip", "--received", SATURDAY)
    assert here() == {("Max Meier", 1): ("x = 1\n", FRIDAY), ("Max Meier_501", 1): ("x = 2\n", SATURDAY)}
    assert "500 is Max Meier, 501 is Max Meier_501" in said and "told apart as Max Meier_500" not in said
    assert "2 students, 2 attempts, 1 new" in said


@pytest.mark.thorough
@pytest.mark.parametrize("order", list(itertools.permutations(["one.zip", "other.zip", "both.zip"])))
def test_ids_are_stable_whatever_comes_first(order, folder, collect, here):
    for source in order:
        collect(source, "--received", FRIDAY)
    first, then = here(), {}
    names = {student: text for (student, _), (text, _) in first.items()}
    alone = {"one.zip": "x = 1\n", "other.zip": "x = 2\n", "both.zip": ""}[order[0]]
    assert len(first) == 2 and sorted(names.values()) == ["x = 1\n", "x = 2\n"]
    assert names.get("Max Meier", "") == alone, "who came alone keeps the name"
    for student, text in names.items():
        assert student in ("Max Meier", "Max Meier_500" if text == "x = 1\n" else "Max Meier_501")
    files = {path: path.read_bytes() for path in folder.glob("submitted/week13/*/*")}
    for source in order:
        then = collect(source, "--received", SATURDAY)
        assert ", 0 new" in then
    assert here() == first and files == {path: path.read_bytes() for path in folder.glob("submitted/week13/*/*")}


def test_what_each_hands_in_later_is_theirs(folder, collect, here):
    collect("one.zip", "--received", FRIDAY)
    collect("other.zip", "--received", FRIDAY)
    collect(download(folder / "more.zip", ("Max Meier_501", "x = 4\n")), "--received", SATURDAY)
    collect(download(folder / "most.zip", ("Max Meier_500", "x = 3\n"), SECOND), "--received", SUNDAY)
    assert here()["Max Meier_501", 2] == ("x = 4\n", SATURDAY)
    assert here()["Max Meier", 2] == ("x = 3\n", SUNDAY)
    assert here()["Max Meier_501", 3] == ("x = 2\n", SUNDAY), "a student who goes back to an older text"


def test_who_came_with_the_other_one_keeps_the_number_when_alone(folder, collect, here):
    collect("both.zip")
    collect(download(folder / "more.zip", ("Max Meier_500", "x = 3\n")))
    assert sorted(here()) == [("Max Meier_500", 1), ("Max Meier_500", 2), ("Max Meier_501", 1)]
    collect(download(folder / "third.zip", ("Max Meier_502", "x = 5\n")))
    assert ("Max Meier_502", 1) in here(), "the name alone would be anybody's of them"


def test_a_withdrawn_attempt_still_has_its_name(folder, collect, here):
    collect("one.zip")
    grade(folder, "withdraw", "week13", "Max Meier")
    collect("other.zip")
    grade(folder, "withdraw", "week13", "Max Meier", "--undo")
    assert {student: text for (student, _), (text, _) in here().items()} == {
        "Max Meier": "x = 1\n",
        "Max Meier_501": "x = 2\n",
    }


def test_one_of_them_is_named_by_id_or_number(folder, collect, here):
    collect("one.zip", "--received", FRIDAY)
    collect("both.zip", "--received", SATURDAY, "--student", "Max Meier_501")
    assert here()["Max Meier_501", 1] == ("x = 2\n", SATURDAY)
    collect("both.zip", "--received", SUNDAY, "--student", "Max Meier")
    times = {student: when for (student, _), (_, when) in here().items()}
    assert times == {"Max Meier": SUNDAY, "Max Meier_501": SATURDAY}
    collect("both.zip", "--received", FRIDAY, "--student", "Max Meier_500")
    assert here()["Max Meier", 1] == ("x = 1\n", FRIDAY)
    assert "did you mean 'Max Meier_501'" in collect("other.zip", "--student", "Max Meier", status=2)


def test_a_number_says_something_within_its_week_only(folder, collect, here):
    """Moodle's numbers are the assignment's: the same student has another one in the next week."""
    collect("one.zip")
    download(folder / "next.zip", ("Max Meier_700", "x = 1\n"), week="week14")
    said = collect("next.zip", week="week14")
    assert list(here("week14")) == [("Max Meier", 1)] and "Moodle has" not in said and "may be" not in said
    (folder / "submitted/week14").rename(folder / "elsewhere")
    collect("other.zip")
    told = "Max Meier may be any of Max Meier, Max Meier_501 of week13, and Moodle's numbers change from week"
    said = collect("next.zip", week="week14")
    assert told in said and 'into [ids], "Max Meier_700" = "..."' in said
    assert told not in collect("next.zip", week="week14"), "told when they come"
    ids(folder, '"Max Meier_700" = "Max Meier_501"')
    grade(folder, "withdraw", "week14", "Max Meier")
    assert told not in collect("next.zip", week="week14") and list(here("week14")) == [("Max Meier_501", 1)]


# ---- receipts of before


def test_an_old_receipt_is_the_one_with_its_text(folder, collect, here, old):
    collect("one.zip", "--received", FRIDAY)
    old()
    collect("both.zip", "--received", SATURDAY)
    assert here() == {("Max Meier", 1): ("x = 1\n", FRIDAY), ("Max Meier_501", 1): ("x = 2\n", SATURDAY)}
    collect(download(folder / "more.zip", ("Max Meier_500", "x = 3\n")))
    assert ("Max Meier", 2) in here(), "its number is known now"


def test_an_old_receipt_without_rival_is_the_student_of_its_name(folder, collect, here, old):
    collect("one.zip", "--received", FRIDAY)
    old()
    collect(download(folder / "more.zip", ("Max Meier_500", "x = 3\n")), "--received", SATURDAY)
    assert sorted(here()) == [("Max Meier", 1), ("Max Meier", 2)]
    collect("other.zip", "--received", SUNDAY)
    assert here()["Max Meier_501", 1] == ("x = 2\n", SUNDAY)


def test_an_old_receipt_that_may_be_eithers_is_told(folder, collect, here, old):
    collect("one.zip", "--received", FRIDAY)
    old()
    download(folder / "both.zip", ("Max Meier_500", "x = 3\n"), SECOND)
    said = collect("both.zip", "--received", SATURDAY)
    assert sorted(here()) == [("Max Meier", 1), ("Max Meier_500", 1), ("Max Meier_501", 1)]
    assert "Max Meier was collected before numbers were kept, and may be Max Meier_500 or Max Meier_501" in said
    assert "`grade withdraw week13 'Max Meier'` takes the old one back" in said
    assert "may be" not in collect("both.zip", "--received", SATURDAY), "told when they come"
    collect("one.zip")
    assert ("Max Meier", 2) not in here()


@pytest.mark.thorough
def test_old_receipts_of_both_are_found_by_the_id(folder, collect, here, old):
    collect("both.zip")
    old()
    collect(download(folder / "more.zip", ("Max Meier_500", "x = 3\n")))
    assert sorted(here()) == [("Max Meier_500", 1), ("Max Meier_500", 2), ("Max Meier_501", 1)]


# ---- who is who elsewhere


def ids(folder, *lines):
    head = (folder / "course.toml").read_text().partition("[ids]")[0]
    (folder / "course.toml").write_text("\n".join([head, "[ids]", *lines, ""]))


def test_ids_may_name_each_by_number(folder, collect, here):
    ids(folder, '"Max Meier_500" = "max1"', '"Max Meier_501" = "max2"')
    for source in ("one.zip", "other.zip", "both.zip"):
        collect(source)
    assert {student: text for (student, _), (text, _) in here().items()} == {"max1": "x = 1\n", "max2": "x = 2\n"}


@pytest.mark.thorough
def test_ids_of_the_bare_name_are_those_of_who_came_first(folder, collect, here):
    ids(folder, '"Max Meier" = "max"')
    for source in ("one.zip", "other.zip", "both.zip"):
        collect(source)
    assert {student: text for (student, _), (text, _) in here().items()} == {
        "max": "x = 1\n",
        "Max Meier_501": "x = 2\n",
    }


def test_the_name_that_ids_give_another_number_is_not_this_ones(folder, collect, here):
    ids(folder, '"Max Meier" = "Max Meier_500"')
    collect("other.zip")
    collect("both.zip")
    assert {student: text for (student, _), (text, _) in here().items()} == {
        "Max Meier_500": "x = 1\n",
        "Max Meier_501": "x = 2\n",
    }


@pytest.mark.thorough
def test_two_numbers_of_one_student_are_one_where_ids_say_so(folder, collect, here):
    collect("one.zip")
    ids(folder, '"Max Meier_501" = "Max Meier"')
    said = collect("other.zip")
    assert sorted(here()) == [("Max Meier", 1), ("Max Meier", 2)] and "Moodle has" not in said


@pytest.mark.thorough
def test_ids_that_come_after_the_hand_in_say_how_they_hold(folder, collect, here):
    collect("one.zip")
    ids(folder, '"Max Meier_500" = "max1"')
    (folder / "roster.csv").write_text(ROSTER)
    said = grade(folder, "status", "week13", "--roster", "roster.csv")
    assert "1 missing" in said and "several of the roster" not in said
    said = collect("both.zip")
    assert "Max Meier was collected before [ids] called Max Meier_500 max1, and keeps that name" in said
    assert "`grade withdraw week13 'Max Meier'`, and collected again it is max1" in said
    grade(folder, "withdraw", "week13", "Max Meier")
    said = collect("both.zip")
    assert sorted(here()) == [("Max Meier_501", 1), ("max1", 1)] and "keeps that name" not in said


def graded(folder, **points):
    """Marks of both, and their pages."""
    for student, lost in points.items():
        student = student.replace("__", " ")
        marks.write(folder / "marks", mark(student, blank=lost, unanswered=["13.7"]))
        page = path_of(folder / "feedback", WEEKS["week13"], student)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"page of {student}")


BOTH = {"Max__Meier": (), "Max__Meier_501": ("13.4",)}


@pytest.mark.parametrize("source", ["one.zip", "other.zip", "both.zip"])
def test_feedback_reaches_who_it_is_of(source, folder, collect):
    """The page of the one lay in the other one's folder, if the download held only that one."""
    collect("one.zip")
    collect("other.zip")
    graded(folder, **BOTH)
    said = grade(folder, "pack", "feedback", "week13", "--like", source, "--to", "up.zip", status=1)
    with zipfile.ZipFile(folder / "up.zip") as archive:
        pages = {name: archive.read(name).decode() for name in archive.namelist()}
    all_ = {
        "Max Meier_500_assignsubmission_file_/week13.html": "page of Max Meier",
        "Max Meier_501_assignsubmission_file_/week13.html": "page of Max Meier_501",
    }
    own = {"one.zip": ["500"], "other.zip": ["501"], "both.zip": ["500", "501"]}[source]
    assert pages == {name: text for name, text in all_.items() if name[10:13] in own}
    assert ("Max Meier is not in the download" in said) == (source == "other.zip")
    assert ("Max Meier_501 is not in the download" in said) == (source == "one.zip")


@pytest.mark.thorough
def test_feedback_of_two_numbers_of_one_student_goes_where_the_attempt_came_from(folder, collect):
    collect("one.zip")
    ids(folder, '"Max Meier_501" = "Max Meier"')
    collect("other.zip")
    graded(folder, Max__Meier=())
    words = ("pack", "feedback", "week13", "--like", "one.zip", "--like", "other.zip", "--to", "up.zip")
    for attempt, number in ((1, 500), (2, 501)):
        marks.write(folder / "marks", mark("Max Meier", attempt=attempt))
        grade(folder, *words, status=1)
        with zipfile.ZipFile(folder / "up.zip") as archive:
            assert archive.namelist() == [f"Max Meier_{number}_assignsubmission_file_/week13.html"]


def rows(path):
    return {row["Identifier"]: row for row in csv.DictReader(path.read_text("utf-8-sig").splitlines())}


def test_moodle_gets_each_ones_points(folder, collect):
    (folder / "roster.csv").write_text(ROSTER)
    collect("one.zip", "--received", FRIDAY)
    collect("other.zip", "--received", FRIDAY)
    graded(folder, **BOTH)
    words = ("export", "week13", "--to", "m.csv", "--format", "moodle", "--roster", "roster.csv")
    assert "2 of 2 students are in m.csv" in grade(folder, *words)
    grades = {name: row["Grade"] for name, row in rows(folder / "m.csv").items()}
    assert grades == {"Participant 500": "80", "Participant 501": grades["Participant 501"]}
    assert 0 < float(grades["Participant 501"]) < 80


@pytest.mark.thorough
def test_a_line_of_the_other_one_is_not_taken_by_name(folder, collect):
    """Who left the course has no line, and the only one of this name is another's."""
    (folder / "roster.csv").write_text(ROSTER.replace("Participant 500,Max Meier,,\n", ""))
    collect("one.zip", "--received", FRIDAY)
    collect("other.zip", "--received", FRIDAY)
    graded(folder, **BOTH)
    words = ("export", "week13", "--to", "m.csv", "--format", "moodle", "--roster", "roster.csv")
    assert "1 student left out (not in the roster): Max Meier" in grade(folder, *words)
    assert float(rows(folder / "m.csv")["Participant 501"]["Grade"]) < 80


@pytest.mark.thorough
def test_a_zero_goes_to_the_one_who_handed_nothing_in(folder, collect):
    with (folder / "course.toml").open("a") as file:
        file.write('[roster]\nfile = "roster.csv"\n')
    (folder / "roster.csv").write_text(ROSTER)
    said = collect("one.zip", "--received", FRIDAY)
    assert "roster" not in said, "it is known which of the two it is"
    graded(folder, Max__Meier=())
    said = grade(folder, "status", "week13")
    assert "1 missing" in said and "Max Meier_501" in said and "several of the roster" not in said
    words = ("export", "week13", "--to", "m.csv", "--format", "moodle", "--zeros")
    assert "1 student handed nothing in, 0 points: Max Meier_501 (Max Meier)" in grade(folder, *words)
    assert {name: row["Grade"] for name, row in rows(folder / "m.csv").items()} == {
        "Participant 500": "80",
        "Participant 501": "0",
    }
    grade(folder, "export", "--to", "term.csv", "--zeros")
    assert {name: row["total"] for name, row in rows(folder / "term.csv").items()} == {
        "Participant 500": "80",
        "Participant 501": "0",
    }


@pytest.mark.thorough
def test_the_hint_to_write_ids_ends_in_no_refusal(folder, collect, old):
    """`"Max Meier" = "Max Meier_500"` was called a slip, after the page had asked for it."""
    with (folder / "course.toml").open("a") as file:
        file.write('[roster]\nfile = "roster.csv"\n')
    (folder / "roster.csv").write_text(ROSTER)
    collect("one.zip", "--received", FRIDAY)
    old()
    assert "Max Meier handed in and is several" not in grade(folder, "collect", "week13", "--from", "one.zip")
    old()
    assert "Max Meier handed in and is several of the roster" in grade(folder, "status", "week13")
    ids(folder, '"Max Meier" = "Max Meier_500"')
    said = grade(folder, "status", "week13")
    assert "a slip" not in said and "several of the roster" not in said and "1 missing" in said
    ids(folder, '"Max Meier" = "max"')
    assert "calls Max Meier, Max Meier of roster.csv all max: a slip?" in grade(folder, "status", "week13")


@pytest.mark.thorough
def test_a_number_of_another_weeks_roster_is_nobodys(folder, collect):
    """The roster is the worksheet of one assignment, and in another one the number may be another student's."""
    with (folder / "course.toml").open("a") as file:
        file.write('[roster]\nfile = "roster.csv"\n')
    (folder / "roster.csv").write_text(
        "Identifier,Full name,Email address,Grade\nParticipant 500,Eva Poe,,\nParticipant 499,Max Meier,,\n"
    )
    collect("one.zip", "--received", FRIDAY)
    said = grade(folder, "status", "week13")
    assert "1 missing" in said and "Eva Poe" in said


@pytest.mark.thorough
def test_who_was_collected_before_ids_spoke_of_them_is_found_by_both_names(folder, collect):
    (folder / "roster.csv").write_text(ROSTER.replace("Participant 501,Max Meier,,\n", ""))
    collect("one.zip", "--received", FRIDAY)
    with (folder / "course.toml").open("a") as file:
        file.write('[roster]\nfile = "roster.csv"\n')
    ids(folder, '"Max Meier" = "max"')
    said = grade(folder, "status", "week13")
    assert "0 missing" in said and "roster" not in said
    (folder / "submitted").rename(folder / "elsewhere")
    collect("one.zip", "--received", FRIDAY)
    with (folder / "course.toml").open("a") as file:
        file.write('[extensions."Max Meier"]\nweek13 = 2026-11-20T23:59:00+01:00\n')
    said = grade(folder, "status", "week13")
    assert "max " in said and "0 missing" in said and "roster" not in said


@pytest.mark.thorough
def test_what_is_copied_out_of_a_collection_keeps_ids_and_numbers(folder, collect, here):
    collect("one.zip", "--received", FRIDAY)
    collect("other.zip", "--received", FRIDAY)
    grade(folder, "collect", "week13", "--from", "submitted", "--to", "again")
    found = find_submissions(folder / "again", WEEKS["week13"])
    assert [(one.student, one.participant) for one in found] == [
        ("Max Meier", "Max Meier_500"),
        ("Max Meier_501", "Max Meier_501"),
    ]
    assert "2 students" in collect("both.zip", "--to", "again")


@pytest.mark.thorough
def test_an_id_out_of_another_collection_stays_unless_the_student_is_here(folder, collect):
    ids(folder, '"Max Meier" = "max"', '"Max Meier_501" = "maxi"')
    collect("one.zip")
    collect("other.zip")
    ids(folder)
    collect("one.zip", "--to", "again")
    grade(folder, "collect", "week13", "--from", "submitted", "--to", "again")
    found = find_submissions(folder / "again", WEEKS["week13"])
    assert {(one.student, one.participant) for one in found} == {
        ("Max Meier", "Max Meier_500"),
        ("maxi", "Max Meier_501"),
    }


def test_a_name_with_an_underscore_is_no_namesake(folder, collect, here):
    collect(download(folder / "a.zip", ("Ana_7", "x = 1\n"), ("Ana_B_8", "x = 2\n")))
    collect(download(folder / "b.zip", ("Ana_B_8", "x = 3\n")))
    assert sorted(here()) == [("Ana", 1), ("Ana_B", 1), ("Ana_B", 2)]
