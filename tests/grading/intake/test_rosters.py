"""Rosters as platforms write them, and everything that Moodle's worksheet says of a submission."""

import csv
import io
import re
import unicodedata
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grading.intake.rosters import CANVAS, LIST, MOODLE, moodle_time, read_roster
from grading.register.classes import init_class
from labkit.errors import LabError
from tests.grading.intake.handed_in import put

BERLIN = ZoneInfo("Europe/Berlin")
CANVAS_FILE = """Student,ID,SIS User ID,SIS Login ID,Section,Week 13 (113)
,,,,,Manual Posting
    Points Possible,,,,,100.00
"Doe, Jane",4501,S001,jdoe,Section A,
"शर्मा, प्रिया",4502,S002,priya@x.org,"A, B",
"Student, Test",4599,,abcdef,Section A,
"""
SPLIT = """LastName,FirstName,ID,SIS User ID,SIS Login ID
    Points Possible,,,,
Doe,Jane,4501,S001,jdoe
Prince,,4502,S002,
Student,Test,4599,,abc
"""
ENGLISH = """Identifier,Full name,Username,ID number,Email address,Status,Group,Grade,Last modified (submission)
Participant 501,Jane Doe,jdoe,M1,jane@x.org,Submitted,Team 1,,"Friday, 20 November 2026, 6:00 PM"
Participant 502,Li Wei,lwei,M2,li@x.org,"Draft - Extension granted until: Monday, 23 November 2026, 11:59 PM",,,-
"""
GERMAN = """ID;Vollständiger Name;E-Mail-Adresse;Status;Zuletzt geändert (Abgabe)
Teilnehmer/in501;Jane Doe;jane@x.org;Zur Bewertung abgegeben - ;Freitag, 20. November 2026, 18:00
"""


STATUSES = (
    "Submitted for grading - Graded - Extension granted until: Monday, 23 November 2026, 11:59 PM",
    "Zur Bewertung abgegeben - Verlängertes Abgabeende bis: Montag, 23. November 2026, 23:59 - ",
    "Keine Abgabe - Verlängerung zugelassen bis: Montag, 23. November 2026, 23:59",
)


@pytest.fixture
def read(tmp_path):
    def run(text, zone=BERLIN):
        (tmp_path / "roster.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_roster(tmp_path / "roster.csv", zone)

    return run


def keys(line):
    return {(key.platform, key.value) for key in line.keys}


@pytest.mark.parametrize("text, second", [(CANVAS_FILE, "शर्मा, प्रिया"), (SPLIT, "Prince")])
def test_canvas_gradebook(read, text, second):
    roster = read(text)
    assert roster.system == CANVAS and [line.name for line in roster.lines] == ["Doe, Jane", second]
    assert keys(roster.lines[0]) == {("canvas", "4501"), ("id", "S001"), ("id", "jdoe")}
    email = "priya@x.org" if text == CANVAS_FILE else ""
    assert roster.lines[1].email == email and (("email", email) in keys(roster.lines[1])) == bool(email)


def test_moodles_worksheet_with_all_it_says(read):
    roster = read(ENGLISH)
    jane, li = roster.lines
    assert roster.system == MOODLE and not roster.problems
    assert keys(jane) == {("id", "jdoe"), ("id", "M1"), ("email", "jane@x.org")}
    assert (jane.participant, jane.group) == ("501", "Team 1")
    assert jane.submitted == datetime(2026, 11, 20, 18, tzinfo=BERLIN) and jane.due is None
    assert li.submitted is None and li.due == datetime(2026, 11, 23, 23, 59, tzinfo=BERLIN)
    assert read(ENGLISH, None).lines[0].submitted is None


def test_what_else_a_worksheet_may_say(read):
    """In German; an own column for extensions; a time that nobody understands; under blind marking numbers alone."""
    (jane,) = read(GERMAN).lines
    assert (jane.name, jane.email, jane.participant) == ("Jane Doe", "jane@x.org", "501")
    assert jane.submitted == datetime(2026, 11, 20, 18, tzinfo=BERLIN)
    (line,) = read('Identifier,Full name,Extension granted until\nParticipant 7,A,"1 March 2026, 12:05 AM"\n').lines
    assert line.due == datetime(2026, 3, 1, 0, 5, tzinfo=BERLIN)
    roster = read("Identifier,Full name,Last modified (submission)\nParticipant 7,A,vendredi 20 novembre 2026 18:00\n")
    assert roster.lines[0].submitted is None and "vendredi" in roster.problems[0]
    roster = read("Identifier,Status,Grade\nParticipant 501,Submitted,\n")
    assert roster.system == MOODLE and roster.lines[0].participant == "501" and not roster.lines[0].keys


@pytest.mark.parametrize("status", STATUSES)
def test_an_extension_is_the_time_in_a_status_whatever_it_is_called(read, status):
    roster = read(
        f'Identifier,Full name,Status\nParticipant 1,A,"{status}"\nParticipant 2,B,Submitted - Overdue by: 3 days\n'
    )
    assert [line.due for line in roster.lines] == [datetime(2026, 11, 23, 23, 59, tzinfo=BERLIN), None]
    assert not roster.problems


@pytest.mark.parametrize(
    "text, name, email, ids",
    [
        ("anna\n", "anna", "", {"anna"}),
        ("\ufeffstudent\r\nanna\r\n\r\n", "anna", "", {"anna"}),
        ("id,first_name,last_name,email\n501,Anna,Meier,a@x.org\n", "Anna Meier", "a@x.org", {"501"}),  # nbgrader's
        ("OrgDefinedId,Username,Last Name,First Name,\n#01,#p.lee,_,PING LEE,\n", "PING LEE", "", {"01", "p.lee"}),
        ("Username,Quiz 1 Points Grade,\n#doej,75.00,\n", "doej", "", {"doej"}),  # Brightspace's, too
        ("identifier,github_username,name\ni@x.org,jd,Jane\n", "Jane", "i@x.org", {"i@x.org", "jd"}),
        ("semester,email,last_name,first_name\nf26,i@x.org,Doe,Jane\n", "Jane Doe", "i@x.org", set()),  # Autolab's
    ],
)
def test_lists(read, text, name, email, ids):
    roster = read(text)
    (line,) = roster.lines
    assert (roster.system, line.name, line.email) == (LIST, name, email)
    exact = {("id", id) for id in ids} | ({("email", email)} if email else set())
    assert keys(line) == exact | ({("name", name)} if name in ids else set()), "an id that is alone may be a name"


def test_gradescopes_roster_says_who_teaches(read):
    roster = read("First Name,Last Name,SID,Role\nJohn,Doe,1,Student\nAlice,Brown,2,TA\nDavid,Lee,3,Instructor\n")
    assert [line.name for line in roster.lines] == ["John Doe"] and roster.staff == ["Alice Brown", "David Lee"]


COLUMNS = {"student": "d7", "first name": "Jane", "last name": "Doe", "e-mail": "j@x.org", "org defined id": "42"}


@given(
    st.permutations(list(COLUMNS)),
    st.sampled_from(("", " ", "-", "_")),
    st.sampled_from((str.lower, str.title, str.upper)),
)
def test_a_list_is_read_whatever_the_order_and_spelling_of_its_columns(read, order, sign, case):
    head = [case(re.sub("[ -]", sign, name)) for name in order]
    (line,) = read(table([head, [COLUMNS[name] for name in order]], ",")).lines
    assert (line.name, line.email) == ("Jane Doe", "j@x.org")
    assert keys(line) == {("id", "d7"), ("id", "42"), ("email", "j@x.org")}


@pytest.mark.parametrize("head", ["", "student\n", "name\n", "Last, First\n", "Nachname;Vorname\n"])
def test_names_last_first_keep_both_parts(read, head):
    names = ["Müller, Anna", "O'Brien, Siân", "Müller, Ben"]
    split = head[:4] in ("Last", "Nach")
    text = head + "\n".join(names).replace(", ", ";" if ";" in head else ", ") + "\n"
    want = ["Anna Müller", "Siân O'Brien", "Ben Müller"] if split else names
    assert [line.name for line in read(text).lines] == want


@pytest.mark.parametrize("ids", [["anna@x.org", "b@x.org", "c@x.org"], ["m1", "m2", "m3"], ["701", "702"]])
def test_a_heading_is_nobody(read, ids):
    """Of one column: one that is known is passed over; one that only looks like it is asked about."""
    assert [line.name for line in read("\n".join(["Student ID", *ids])).lines] == ids
    with pytest.raises(LabError, match="a heading, or somebody's id"):
        read("\n".join(["Kürzel", *ids]))
    assert [line.name for line in read("\n".join(["student", "Kürzel", *ids])).lines] == ["Kürzel", *ids]


def test_lines_without_an_id_are_nobody_where_the_others_have_one(tmp_path):
    """Google Classroom writes a line of dates and one of points above its students."""
    put(tmp_path / "r.csv", "First Name,Last Name,Email Address\nJane,Doe,j@x.org\n,Date,\n,Points,\n")
    made = init_class(tmp_path / "class", tmp_path / "r.csv", "Europe/Berlin")
    assert [one.name for one in made.new] == ["Jane Doe"] and made.staff == ["Date", "Points"]


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "is empty"),
        ("student\n", "names nobody"),
        ("Nom complet,Adresse de courriel,Statut\nA,a@x,B\n", "Set your language in Moodle to English"),
        ("a,b\n1,2\n", "is no roster"),
        ("Müller".encode("latin-1"), "is not in UTF-8"),
        ('"a\nb', "cannot be read as CSV"),
    ],
)
def test_what_is_no_roster_is_one_sentence(read, text, sentence):
    with pytest.raises(LabError, match=sentence):
        read(text)


@pytest.mark.parametrize(
    "text, time",
    [
        ("Friday, 20 November 2026, 6:00 PM", datetime(2026, 11, 20, 18, 0, tzinfo=BERLIN)),
        ("Friday, November 20, 2026, 6:00 PM", datetime(2026, 11, 20, 18, 0, tzinfo=BERLIN)),
        ("Friday, 20 November 2026, 6:00\u202fPM", datetime(2026, 11, 20, 18, 0, tzinfo=BERLIN)),
        ("20 November 2026, 12:30 AM", datetime(2026, 11, 20, 0, 30, tzinfo=BERLIN)),
        ("Montag, 2. März 2026, 07:05", datetime(2026, 3, 2, 7, 5, tzinfo=BERLIN)),
        ("31 February 2026, 6:00 PM", None),
        ("20 novembre 2026, 18:00", None),
        ("tomorrow", None),
    ],
)
def test_moodles_times(text, time):
    assert moodle_time(text, BERLIN) == time


# -- any tables -------------------------------------------------------------------------------------------------------
CELL = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
HEADS = [
    "Student", "LastName", "FirstName", "ID", "SIS User ID", "SIS Login ID", "Identifier", "Full name",
    "Email address", "Username", "SID", "OrgDefinedId", "First Name", "Role", "End-of-Line Indicator",
    "ID number", "Group", "Status", "Last modified (submission)", "student", "name", "email", "Section",
]  # fmt: skip


def table(rows, sign):
    text = io.StringIO()
    csv.writer(text, delimiter=sign).writerows(rows)
    return text.getvalue()


@given(
    st.lists(st.sampled_from(HEADS), min_size=1, max_size=8),
    st.lists(st.lists(CELL, max_size=9)),
    st.sampled_from(",;\t"),
)
def test_no_table_breaks_the_reader(read, head, rows, sign):
    try:
        roster = read(table([head, *rows], sign))
    except LabError:
        return
    for line in roster.lines:
        assert all(key.value and key.platform in ("canvas", "id", "email", "name") for key in line.keys)


@given(st.lists(st.tuples(CELL, st.integers(1, 10**9), CELL, CELL), min_size=1), st.booleans())
def test_every_student_of_canvas_is_there_whatever_the_name(read, students, split):
    head = [*(("LastName", "FirstName") if split else ("Student",)), "ID", "SIS Login ID"]
    rows = [[*((last, first) if split else (f"{last}, {first}",)), str(id), "x"] for last, id, first, _ in students]
    names = (", ".join(filter(None, row[: split + 1])) for row in rows)
    real = [name for name in names if "Points Possible" not in name and name != "Student, Test"]
    try:
        found = read(table([head, *rows], ",")).lines
    except LabError:
        assert not real
        return
    assert [key.value for line in found for key in line.keys if key.platform == "canvas"] == [
        str(s[1]) for s in students
    ]
    assert all(line.name and unicodedata.is_normalized("NFC", line.name) for line in found)
