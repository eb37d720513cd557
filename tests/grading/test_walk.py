"""A term as an instructor types it, on files of Moodle and of Canvas: init, collect, mark, who, publish. Judging alone is
left out: marks are put where `grade run` would put them. Every total that leaves is compared."""

import csv
import io
import shutil
import sqlite3
import zipfile

import pytest

from grading.marking import course as courses
from grading.marking.typed import typed
from grading.register.classes import open_class
from grading.register.marks import add_mark, newest_marks
from grading.register.people import resolve
from grading.register.submissions import attempts
from tests.grading.aclassroom import grade
from tests.grading.publish.aclass import WEEK, mark, zipped

pytestmark = pytest.mark.thorough  # each walks through whole commands

RULES = """zone = "Europe/Berlin"
[deadlines]
week13 = 2025-11-20T23:59:00+01:00
[late]
per_day = 0.1
closes_after_days = 5
[extensions."Anna Müller"]
week13 = 2025-11-22T23:59:00+01:00
[excused]
week13 = ["jonas@x.org"]
"""
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Week 13 (4711)
    Points Possible,,,,,100
"Müller, Anna",101,u101,anna@x.org,A,
"O'Brien, Sean",102,u102,sean@x.org,A,
"Meier, Max",103,u103,max1@x.org,A,
"Meier, Max",104,u104,max2@x.org,A,
"Joiner, Jonas",105,u105,jonas@x.org,A,
"Nobody, Nina",106,u106,nina@x.org,A,
"""
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (submission)
Participant 501,Anna Müller,anna@x.org,Submitted,,100,"Friday, 21 November 2025, 6:00 PM"
Participant 502,Sean O'Brien,sean@x.org,Submitted,,100,"Friday, 21 November 2025, 6:00 PM"
Participant 503,Max Meier,max1@x.org,Submitted,,100,"Thursday, 20 November 2025, 6:00 PM"
Participant 504,Max Meier,max2@x.org,Submitted,,100,"Thursday, 20 November 2025, 6:00 PM"
Participant 505,Jonas Joiner,jonas@x.org,No submission,,100,-
Participant 506,Nina Nobody,nina@x.org,No submission,,100,-
"""
AUTO = mark("13.5 GB/s").points
PEOPLE = ("anna@x.org", "sean@x.org", "max1@x.org", "max2@x.org")


def download(system, extra=()):
    """What the platform gives for all four who handed in, Anna and Sean late."""
    files = {}
    for n, name in enumerate(("mulleranna_LATE", "obriensean_LATE", "meiermax", "meiermax")):
        text = f"# of {n}\n".encode()
        if system == "canvas":
            files[f"{name}_{101 + n}_{7001 + n}_collectives.py"] = text
        else:
            full = ("Anna Müller", "Sean OBrien", "Max Meier", "Max Meier")[n]
            files[f"{full}_{501 + n}_assignsubmission_file_/collectives.py"] = text
    return zipped({**files, **dict(extra)})


def judged(folder):
    """What `grade run` does, without a judge: everybody has made one mistake."""
    with open_class(folder, [WEEK]) as cls:
        known = newest_marks(cls, "week13")
        for one in attempts(cls, "week13"):
            if one.id not in known:
                new = mark("13.5 GB/s", submission=one.id)
                add_mark(cls, new)


@pytest.fixture(scope="module")
def gradebook(tmp_path_factory):
    """A course directory of the week, made once."""
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install '.[grading]'")
    root = tmp_path_factory.mktemp("gradebook") / "gradebook"
    courses.make(root, [WEEK])
    return root


@pytest.fixture(params=["canvas", "moodle"])
def term(request, tmp_path, gradebook):
    """(the class's folder, whose platform): collected, judged, nothing marked."""
    system = request.param
    (tmp_path / "roster.csv").write_text(CANVAS if system == "canvas" else MOODLE)
    (tmp_path / "download.zip").write_bytes(download(system))
    grade(tmp_path, "init", "autumn", "--roster", "roster.csv", "--zone", "Europe/Berlin")
    folder = tmp_path / "autumn"
    shutil.copytree(gradebook, folder / "gradebook")
    (folder / "course.toml").write_text(RULES)
    if system == "canvas":
        times = ("--received", "2025-11-21T18:00+01:00")
        grade(folder, "collect", "week13", tmp_path / "download.zip", *times)
    else:
        grade(folder, "collect", "week13", tmp_path / "download.zip", tmp_path / "roster.csv")
    judged(folder)
    return folder, system


def submission(folder, mail):
    """The number of somebody's last submission."""
    with open_class(folder, [WEEK]) as cls:
        return max(one.id for one in attempts(cls, "week13") if resolve(cls, mail).id in one.members)


def type_points(folder, points):
    """What people type into formgrader: e-mail -> points of 13.7 for the last submission."""
    numbers = {submission(folder, mail): given for mail, given in points.items()}
    with sqlite3.connect(folder / "gradebook" / "gradebook.db") as book:
        for (number, task), row in typed(folder, WEEK).items():
            if task == "13.7" and number in numbers:
                query = "update grade set manual_score = ?, needs_manual_grade = 0 where id = ?"
                book.execute(query, (numbers[number], row.row))


def exported(folder, system):
    """e-mail -> what leaves for the platform."""
    path = folder / "published" / "week13" / f"{system}.csv"
    rows = list(csv.reader(io.StringIO(path.read_text(), newline="")))
    mail, grade_ = (
        rows[0].index("SIS Login ID" if system == "canvas" else "Email address"),
        rows[0].index("Week 13 (4711)" if system == "canvas" else "Grade"),
    )
    return {row[mail]: row[grade_] for row in rows[1:] if row[grade_] and row[mail]}


def test_a_week_from_the_roster_to_the_platform(term):
    folder, system = term
    assert "4 submitted, 4 graded, 4 to be marked by a person" in grade(folder, "status", "week13")
    grade(folder, "mark", "week13")
    type_points(folder, dict(zip(PEOPLE, (20, 20, 10, 0))))
    grade(folder, "publish", "week13", "--zeros", status=0 if system == "canvas" else 1)
    want = {
        "anna@x.org": AUTO + 20,  # late by a day, within her extension
        "sean@x.org": 0.9 * (AUTO + 20),
        "max1@x.org": AUTO + 10,
        "max2@x.org": AUTO,
        "nina@x.org": 0,
    }
    found = exported(folder, system)
    excused = {"jonas@x.org": "EX"} if system == "canvas" else {}
    assert {name: float(grade) for name, grade in found.items() if grade != "EX"} == pytest.approx(want)
    assert {name: grade for name, grade in found.items() if grade == "EX"} == excused
    with zipfile.ZipFile(folder / "published" / "week13" / "upload.zip") as archive:
        numbers = {part for name in archive.namelist() for part in name.split("_") if part.isdigit()}
    first = {"101", "102", "103", "104"} if system == "canvas" else {"501", "502", "503", "504"}
    assert first <= numbers
    term_table = list(csv.DictReader(io.StringIO((folder / "published/term.csv").read_bytes().decode("utf-8-sig"))))
    totals = {row["student"]: row["total"] for row in term_table}
    assert float(totals["sean@x.org"]) == pytest.approx(0.9 * (AUTO + 20)) and totals["jonas@x.org"] == ""


def test_a_later_attempt_leaves_the_points_with_the_earlier_one(term, tmp_path):
    folder, system = term
    grade(folder, "mark", "week13")
    type_points(folder, dict.fromkeys(PEOPLE, 10))
    grade(folder, "publish", "week13", status=None)
    later = {"meiermax_103_8001_collectives.py": b"# better\n"}
    if system == "moodle":
        later = {"Max Meier_503_assignsubmission_file_/collectives.py": b"# better\n"}
        sheet = MOODLE.replace('max1@x.org,Submitted,,100,"Thursday, 20 November 2025, 6:00 PM"',
                               'max1@x.org,Submitted,,100,"Thursday, 20 November 2025, 7:00 PM"')  # fmt: skip
        (tmp_path / "roster.csv").write_text(sheet)
        grade(folder, "collect", "week13", _zip(tmp_path / "later.zip", later), tmp_path / "roster.csv")
    else:
        grade(folder, "collect", "week13", _zip(tmp_path / "later.zip", later), "--received", "2025-11-22T19:00+01:00")
    assert "not graded" in grade(folder, "status", "week13")
    judged(folder)
    said = grade(folder, "publish", "week13", status=None)
    assert "Max" in said.partition("changed since it was published last")[2] and "-> none" in said
    assert "max1@x.org" not in exported(folder, system)
    grade(folder, "mark", "week13")
    type_points(folder, {"max1@x.org": 20})
    grade(folder, "publish", "week13", status=None)
    assert float(exported(folder, system)["max1@x.org"]) == pytest.approx(AUTO + 20)
    grade(folder, "submission", submission(folder, "max1@x.org"), "withdraw")
    grade(folder, "publish", "week13", status=None)
    assert float(exported(folder, system)["max1@x.org"]) == pytest.approx(AUTO + 10)


def _zip(path, files):
    path.write_bytes(zipped(files))
    return path


def test_somebody_whom_nobody_knows_blocks_until_it_is_said_whose_it_is(term, tmp_path):
    folder, system = term
    stranger = {"ninaalias_999_9001_collectives.py": b"# nina\n"}
    if system == "moodle":
        stranger = {"Nina N_599_assignsubmission_file_/collectives.py": b"# nina\n"}
    path = _zip(tmp_path / "more.zip", {**dict(_members(download(system))), **stranger})
    words = ("collect", "week13", path, "--received", "2025-11-20T18:00+01:00")
    said = grade(folder, *words, status=1)
    assert "blocks publishing" in said
    judged(folder)
    assert "grade who" in grade(folder, "publish", "week13", status=2)
    assert not (folder / "published").exists()
    with open_class(folder, [WEEK]) as cls:
        (label,) = {label for one in attempts(cls, "week13") for label in one.labels}
    grade(folder, "who", label, "=", "nina@x.org")
    grade(folder, "publish", "week13", status=None)
    grade(folder, "collect", "week13", path, "--received", "2025-11-20T18:00+01:00")
    assert "5 submitted" in grade(folder, "status", "week13"), "the next download needs no word"


def _members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def test_a_name_in_course_toml_that_is_nobodys_stops_every_command_with_the_right_line(term):
    folder, _ = term
    (folder / "course.toml").write_text(RULES.replace("Anna Müller", "Anna Müler"))
    for words in (("status", "week13"), ("publish", "week13"), ("why", "week13", "anna@x.org"), ("mark", "week13")):
        assert '[extensions."anna@x.org"]' in grade(folder, *words, status=2)
