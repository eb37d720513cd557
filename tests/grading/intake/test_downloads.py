"""What arrives in downloads, folders and exchanges: nobody is lost, and nothing becomes a student that is none."""

import io
import os
import shutil
import zipfile
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grading.intake import stamps
from grading.intake.arrival import Key
from grading.intake.downloads import Known, read_download
from grading.intake.names import same_letters
from grading.intake.rosters import read_roster
from grading.intake.submission import read_submission
from labkit.errors import LabError
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, put, put_all, zipped

BERLIN = ZoneInfo("Europe/Berlin")
OF_A_NAME = st.characters(categories=["L", "M", "Nd"])  # what Canvas leaves of a name, but for signs that join words
# Who is in the class: their number, name, and exact keys.
CLASS = [
    ("Doe, Jane", "canvas 4501", "id jdoe", "email jane@x.org", "moodle 501 week91"),
    ("Wei, Li", "canvas 4507", "id l_wei", "email li@x.org", "moodle 502 week91"),
    ("Anna Meier", "id anna", "moodle 503 week91"),
    ("Bela Bartók", "id bela"),
]
SHEET = """Identifier,Full name,Email address,Group,Last modified (submission),Status
Participant 501,Jane Doe,jane@x.org,Team 1,"Friday, 20 November 2026, 6:00 PM",Submitted
Participant 502,Li Wei,li@x.org,Team 1,"Friday, 20 November 2026, 7:30 PM",Submitted
Participant 503,Anna Meier,anna@x.org,Mo & Di,"Friday, 20 November 2026, 8:00 PM",Submitted
Participant 504,Max Meier,max1@x.org,,-,"Draft - Extension granted until: Monday, 23 November 2026, 6:00 PM"
Participant 505,Max Meier,max2@x.org,,"Saturday, 21 November 2026, 1:00 AM",Submitted
"""


def exact(keys):
    return {" ".join(filter(None, (key.platform, key.value, key.assignment))) for key in keys if key.platform != "name"}


def owner(keys):
    for number, (name, *theirs) in enumerate(CLASS):
        mine = exact(keys)
        if mine & set(theirs) or {f"id {k.value}" for k in keys if k.platform == "nbgrader"} & set(theirs):
            return number, name
    return None


def proposed(text):
    return any(same_letters(text, name) for name, *_ in CLASS)


@pytest.fixture
def read(tmp_path, week):
    """Read a download; {label: files} of each attempt are in `read.files`."""
    scratches = iter(range(100))

    def run(source, sheet=None):
        scratch = tmp_path / f"scratch{next(scratches)}"
        scratch.mkdir()
        if sheet:
            sheet = read_roster(put(tmp_path / "sheet.csv", sheet), BERLIN)
        found = read_download(source, Known(week, owner, proposed, BERLIN, sheet), scratch)
        run.files = [(one.label, read_submission(one.files).files) for one in found.arrivals]
        return found

    return run


@pytest.fixture
def download(tmp_path):
    return lambda files, name="download.zip", **more: put(tmp_path / name, zipped(files, **more))


def who(found):
    """{label: name of the owner, "" for nobody}."""
    return {one.label: (owner(one.keys) or (0, ""))[1] for one in found.arrivals}


def test_canvas_own_test_student_is_nobody_and_reported_once(read, download):
    names = ("doejane_4501_901_ring.py", "studenttest_999_902_ring.py", "studenttest_LATE_999_903_cost.py")
    found = read(download(dict.fromkeys((*names, "doejane_4501_904_cost-1.py"), RING)))
    assert [one.label for one in found.arrivals] == ["doejane_4501"] and len(found.notes) == 1
    assert set(dict(read.files)["doejane_4501"]) == {"ring.py", "cost.py"}
    assert "studenttest_999_902_ring.py" in found.notes[0]


def test_canvas_attempts_of_two_downloads_in_order(read, folder):
    put(folder / "doe_LATE_4501_300_again.zip", zipped({"ring.py": "third"}))
    put(folder / "doe_4501_200_lab-1.zip", zipped({"ring.py": "second"}))
    put(folder / "doe_4501_100_lab.zip", zipped({"ring.py": "first"}))
    found = read(folder)
    assert [files["ring.py"] for _, files in read.files] == [b"first", b"second", b"third"]
    assert [one.late for one in found.arrivals] == [False, False, True]
    assert [[key.value for key in one.keys if key.assignment] for one in found.arrivals] == [["100"], ["200"], ["300"]]
    assert not any(one.notes for one in found.arrivals), "the standing says what lateness costs, by the own deadline"


@pytest.mark.parametrize("name", ["x_4501_4507_9_ring.py", "li_4507_9_x_4501_1_ring.py", "x_4501_4999_9_ring.py"])
def test_nobody_joins_anothers_attempt_by_a_name_in_canvas(read, download, name):
    found = read(download({name: "stolen", "doe_4501_100_ring.py": RING}))
    assert who(found) == {name: "", "doe_4501": "Doe, Jane"} and found.arrivals[-1].attention
    assert not exact(found.arrivals[-1].keys), "nor by the number of a file of hers"
    found = read(download({"weili_4507_9_13_hw_2026_11_20.py": RING, "doe_4501_100_ring.py": RING}))
    assert who(found) == {"weili_4507": "Wei, Li", "doe_4501": "Doe, Jane"}, "numbers in a file's name are no user's"


# -- Moodle -----------------------------------------------------------------------------------------------------------
def test_moodle_with_its_worksheet_needs_no_time_and_no_name(read, download):
    files = {
        "Jane Doe_501_assignsubmission_file_/ring.py": RING,
        "Jane Doe_501_assignsubmission_onlinetext_/onlinetext.html": "x",
        "Max Meier_505_assignsubmission_file_/ring.py": "five",
        "Max Meier_504_assignsubmission_file_/work.zip": zipped({"ring.py": "four"}),
    }
    found = read(download(files), SHEET)
    four, five = (one for one in found.arrivals if one.label.startswith("Max"))
    assert exact(four.keys) == {"email max1@x.org", "moodle 504 week91"} and four.received is None
    assert exact(five.keys) == {"email max2@x.org", "moodle 505 week91"}
    assert five.received == datetime(2026, 11, 21, 1, tzinfo=BERLIN)
    assert who(found)["Jane Doe"] == "Doe, Jane" and len(found.arrivals) == 3
    assert dict(read.files)["Max Meier_504"] == {"ring.py": b"four"}
    assert len(dict(read.files)["Jane Doe"]) == 2


def test_moodle_groups_are_their_members(read, download):
    """501 is the group's number in the course, and Jane's in the assignment."""
    files = {
        "Team 1_501_assignsubmission_file/ring.py": RING,
        "Mo amp; Di_78_assignsubmission_file/ring.py": COST,
        "Team 9_79_assignsubmission_file/ring.py": "x",
    }
    found = {one.label: one for one in read(download(files), SHEET).arrivals}
    team = found["Team 1"]
    assert [exact(keys) for keys in team.members] == [
        {"email jane@x.org", "moodle 501 week91"},
        {"email li@x.org", "moodle 502 week91"},
    ]
    assert team.group and not team.keys and team.received == datetime(2026, 11, 20, 19, 30, tzinfo=BERLIN)
    assert len(found["Mo amp; Di"].members) == 1
    assert not exact(found["Team 9"].keys) and found["Team 9"].attention
    for name, sheet in (
        ("Team 1", SHEET.replace("li@x.org,Team 1", "li@x.org,Team_1")),
        ("Max Meier", SHEET.replace("Team 1", "Max Meier")),
    ):
        files = {f"{who}_assignsubmission_file/ring.py": RING for who in ("Jane Doe_501", f"{name}_77")}
        one = next(one for one in read(download(files), sheet).arrivals if one.label == name)
        assert not one.members and one.attention, "two groups, or a group and a person, have this folder's name"
    files = {f"{name}_501_assignsubmission_file/ring.py": RING for name in ("Team 1", "Jane Doe")}
    assert who(read(download(files))) == {"Team 1": "", "Jane Doe": "Doe, Jane"}, "without the worksheet either"


def test_under_blind_marking_the_number_is_all_there_is(read, download):
    sheet = 'Identifier,Status,Last modified (submission)\nParticipant 501,Submitted,"20 November 2026, 6:00 PM"\n'
    files = {f"Participant_{number}_assignsubmission_file_/ring.py": RING for number in (501, 502)}
    known, strange = read(download(files), sheet).arrivals
    assert exact(known.keys) == {"moodle 501 week91"} and known.received and known.label == "Participant_501"
    assert not strange.keys and strange.label == "Participant_502", "no name that all of them have"


def test_another_assignments_worksheet_is_refused(read, download):
    with pytest.raises(LabError, match="another assignment's worksheet"):
        read(download({"Jane Doe_900_assignsubmission_file_/ring.py": RING}), SHEET)


@pytest.mark.parametrize("name", ["{}_99_assignsubmission_file_", "Eve_99_assignsubmission_file_{}ring.py"])
def test_nobody_joins_anothers_attempt_by_a_name_in_moodle(read, download, name):
    janes = "Jane Doe_501_assignsubmission_file_"
    name = name.format(janes)
    found = read(download({f"{janes}/ring.py": RING, name if name.endswith(".py") else f"{name}/ring.py": "stolen"}))
    assert who(found) == {"Jane Doe": "Doe, Jane", name: ""}
    assert dict(read.files)["Jane Doe"]["ring.py"] == RING.encode()


# -- folders and other platforms --------------------------------------------------------------------------------------
STUDENTS = {f"{who}/{name}": text for who in ("anna", "bela", "jdoe") for name, text in MINE.items()}


@pytest.mark.parametrize("wrap", ["", "students/", "a/b/"])
def test_a_zip_of_a_folder_of_students(read, download, wrap):
    files = {f"{wrap}{name}": text for name, text in STUDENTS.items()}
    found = read(download(files | {"__MACOSX/anna/._ring.py": "x", f"{wrap}anna/.DS_Store": "x"}))
    assert who(found) == {"anna": "Anna Meier", "bela": "Bela Bartók", "jdoe": "Doe, Jane"} and not found.notes
    assert all(set(files) == set(MINE) for _, files in read.files)


def test_a_folder_on_the_disk_with_all_that_lies_about(read, folder):
    put_all(folder / "anna" / "week91", MINE)
    put(folder / "bela.zip", zipped(MINE))
    put(folder / "jane@x.org.ipynb", "{}")
    put(folder / "zoe/deep/ring.py", RING)
    put_all(folder / "Meier, Anna", MINE)
    put_all(folder / ".eve", MINE)
    put(folder / "photos/cat.png", "")
    put(folder / "grades.csv", "")
    (folder / "empty").mkdir()
    found = read(folder)
    assert who(found) == {
        "anna": "Anna Meier", "bela": "Bela Bartók", "jane@x.org": "Doe, Jane", "zoe": "", "Meier, Anna": "",
    }  # fmt: skip
    notes = " ".join(found.notes)
    assert ".eve" in notes and "3 of 8 names are not" in notes and "empty, grades.csv, photos" in notes


def test_downloads_in_which_few_names_or_none_are_known(read, download):
    found = read(download({"submissions/roe_88_1_ring.py": RING, "submissions/poe_LATE_99_2_ring.py": RING}))
    assert who(found) == {"poe_99": "", "roe_88": ""}, "a platform's names are read all the same"
    with pytest.raises(LabError, match="karl"):
        read(download({"karl/ring.py": RING, "karla/ring.py": RING}))
    files = {"doe_4501_1_ring.py": RING, "li_4507_2_ring.py": RING, "readme.txt": "", "stray/ring.py": RING}
    found = read(download(files))
    assert len(found.arrivals) == 2 and "readme.txt, stray" in found.notes[0]


def test_gradescopes_export(read, download):
    metadata = (
        "---\nsubmission_1:\n  :submitters:\n  - :name: Jane Doe\n    :email: jane@x.org\n"
        "  :created_at: 2026-11-20 17:30:00.123456789 Z\n  :score: 3.0\n  :results:\n    :name: no\n"
        "submission_2:\n  :submitters:\n  - :name: 'Li O''Wei'\n    :sid: l_wei\n  - :name: \"M\\xFCller\"\n    :sid: 'anna'\n"
        "  :history:\n  - :created_at: 2026-11-19 17:30:00.0 Z\n"
    )
    files = {f"assignment_5_export/submission_{n}/ring.py": RING for n in (1, 2, 3)}
    found = read(download({**files, "assignment_5_export/submission_metadata.yml": metadata}))
    jane, group = found.arrivals
    assert who(found)["Jane Doe"] == "Doe, Jane" and jane.received == datetime(2026, 11, 20, 17, 30, 0, 123456, UTC)
    assert [owner(keys)[1] for keys in group.members] == ["Wei, Li", "Anna Meier"]
    assert group.label == "Li O'Wei, Müller" and group.received is None
    assert "submission_3" in found.notes[0]


def test_ilias_export(read, download):
    files = {
        "Abgaben/Doe_Jane_jdoe_312/ring.py": RING,
        "Abgaben/Wei_Li_l_wei_313/Late Submission - ring.py": RING,
        "Abgaben/Neu_Nina_nneu_314/ring.py": RING,
    }
    found = read(download(files))
    assert list(who(found).values()) == ["Doe, Jane", "", "Wei, Li"]
    late = found.arrivals[-1]
    assert late.late and dict(read.files)[late.label] == {"ring.py": RING.encode()}


def test_blackboards_flat_names(read, download):
    files = {f"Week 13_{who}_attempt_2026-11-20-1{n}-30-00{end}": "x" for who, n, end in (
        ("jdoe", 1, "_ring.py"), ("jdoe", 1, ".txt"), ("jdoe", 2, "_ring.py"), ("l_wei", 3, "_ring.py"),
    )}  # fmt: skip
    found = read(download(files))
    assert [one.received for one in found.arrivals] == [
        datetime(2026, 11, 20, h, 30, tzinfo=BERLIN) for h in (11, 12, 13)
    ]
    assert [(owner(one.keys) or "?")[1] for one in found.arrivals] == ["Doe, Jane", "Doe, Jane", "Wei, Li"]
    assert len(read.files[0][1]) == 2


# -- nbgrader's exchange ----------------------------------------------------------------------------------------------
@pytest.fixture
def inbound(tmp_path):
    """An exchange as nbgrader makes it: everybody may write into it. And who hands in there now."""
    root = tmp_path / "exchange" / "dist101" / "inbound"
    root.mkdir(parents=True)
    root.chmod(0o733)

    def hand_in(student, files, ago=timedelta(), stamp=""):
        stamp = stamp or f"{datetime.now(UTC) - ago:%Y-%m-%d %H:%M:%S.%f} UTC"
        return put_all(root / f"{student}+week91+{stamp}+abcdefghijkl", files | {"timestamp.txt": stamp})

    hand_in.root = root
    return hand_in


@pytest.mark.parametrize("named", ["exchange", "exchange/dist101", "exchange/dist101/inbound"])
def test_the_exchange_with_its_history(tmp_path, inbound, read, named):
    inbound.root.chmod(0o755)
    inbound("anna", {"ring.py": "first"}, stamp="2026-06-22 09:00:00.0 CEST")
    inbound("anna", {"ring.py": "second"}, stamp="2026-06-22 07:00:01.0 UTC")
    inbound("bela", {"ring.py": "odd"}, stamp="2026-06-22 09:00:00.0 IST")
    put_all(inbound.root / "bela+week92+2026-06-22 07:00:00.0 UTC", {"other.py": ""})
    found = read(tmp_path / named)
    times = {files["ring.py"]: one.received for one, (_, files) in zip(found.arrivals, read.files)}
    morning = datetime(2026, 6, 22, 7, tzinfo=UTC)
    assert times == {b"first": morning, b"second": morning + timedelta(seconds=1), b"odd": None}
    odd = next(one for one in found.arrivals if one.received is None)
    assert "IST" in odd.attention[0] and len(found.arrivals) == 3 and not found.notes


@pytest.mark.parametrize("mode", [0o733, 0o755])  # the exchange, or an instructor's copy of it
def test_what_a_student_plants_in_an_exchange_hides_nobody_and_has_no_owner(tmp_path, inbound, read, mode):
    inbound("anna", MINE)
    put(inbound.root / "submission_metadata.yml", "submission_1:\n  :submitters:\n  - :sid: bela\n")
    put_all(inbound.root / "submission_1", {"ring.py": "forged"})
    put_all(inbound.root / "bela", {"ring.py": "forged"})
    inbound.root.chmod(mode)
    found = read(tmp_path / "exchange")
    assert who(found) == {"anna": "Anna Meier"} and "bela, submission_1, submission_metadata.yml" in found.notes[0]


def test_a_time_of_ones_own_making_does_not_count(tmp_path, inbound, read, monkeypatch):
    """The name and the file say yesterday; the files were written now, and no tool of a student's can change that."""
    now, day = datetime.now(UTC), timedelta(days=1)
    place = inbound("anna", MINE, ago=day)
    inbound("bela", MINE)
    for path in (*place.iterdir(), place):
        os.utime(path, ((now - day).timestamp(),) * 2)
    anna, bela = read(tmp_path / "exchange").arrivals
    assert all(abs(one.received - now) < timedelta(minutes=5) for one in (anna, bela))
    assert anna.attention and not bela.attention
    monkeypatch.setattr(stamps, "SLACK", 2 * day)
    assert now - read(tmp_path / "exchange").arrivals[0].received > day / 2, "in time, a day ago"


def test_a_change_does_not_hide_behind_many_files(tmp_path, monkeypatch):
    put_all(tmp_path / "in", {f"{n}.py": "" for n in range(12)})
    early = stamps.changed(tmp_path / "in")
    assert stamps.changed(tmp_path / "in") == early, "of what nobody touches it stays"
    monkeypatch.setattr(stamps, "MOST", 10)
    assert stamps.changed(tmp_path / "in") > early


def test_nor_behind_a_path_that_is_too_long(tmp_path, monkeypatch):
    inside = tmp_path / "in"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for _ in range(20):
        os.mkdir("n" * 250)
        os.chdir("n" * 250)
    begun = datetime.now(UTC)
    found = [stamps.changed(inside), stamps.changed(tmp_path / "missing")]
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(inside)  # nobody else who walks through the tests' folders could
    assert min(found) >= begun


def test_a_submission_in_somebody_elses_name_is_reported(tmp_path, inbound, read, monkeypatch):
    inbound("anna", MINE)

    class Account:
        pw_uid = os.getuid() + 1

    monkeypatch.setattr("grading.intake.attempts.pwd.getpwnam", lambda name: Account)
    assert not read(tmp_path / "exchange").arrivals[0].attention, "the instructor's own copy"
    monkeypatch.setattr("grading.intake.attempts.os.getuid", lambda: 4321)
    assert any("another account" in sentence for sentence in read(tmp_path / "exchange").arrivals[0].attention)


# -- hostile ones -----------------------------------------------------------------------------------------------------
def test_a_download_may_hold_anything(tmp_path, read, download):
    files = {
        "anna/ring.py": RING, "../../evil_1_assignsubmission_file_x.py": "x", "/abs/x.py": "x", "bela/a": "x",
        "bela/a/ring.py": RING,
    }  # fmt: skip
    found = read(download(files, links={"bela/link.py": "/etc/passwd"}))
    assert set(who(found)) == {"anna", "bela"} and len(found.notes) == 4
    assert not list(tmp_path.rglob("evil*")) and not list(tmp_path.rglob("*abs*"))


def test_links_and_hard_links_in_a_folder_are_not_read(tmp_path, read, folder):
    secret = put(tmp_path / "secret.py", "secret")
    put_all(folder / "anna", MINE)
    (folder / "anna" / "linked.py").symlink_to(secret)
    os.link(secret, folder / "anna" / "hard.py")
    (folder / "bela").symlink_to(tmp_path)
    os.link(secret, folder / "jdoe.py")
    (folder / "l_wei").mkdir()
    (folder / "l_wei" / "week91").symlink_to(tmp_path)
    found = read(folder)
    assert dict(read.files) == {
        "anna": {name: text.encode() for name, text in MINE.items()}, "bela": {}, "jdoe": {}, "l_wei": {},
    }  # fmt: skip
    assert sum(len(one.notes) for one in found.arrivals) == 5


def test_what_is_too_much_is_not_collected_and_the_rest_is(read, folder, monkeypatch):
    put_all(folder / "anna", MINE)
    put_all(folder / "bela", {"ring.py": "x" * 2500, "cost.py": "x" * 2500})
    put(folder / "jdoe.zip", b"x" * 5000)
    put_all(folder / "l_wei", {f"f{n}.py": "" for n in range(20)})
    monkeypatch.setattr("grading.intake.attempts.MAX_ATTEMPT", 4000)
    monkeypatch.setattr("grading.intake.attempts.MAX_FILES", 10)
    found = read(folder)
    assert set(who(found)) == {"anna"} and len(found.notes) == 3


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda at: at / "nothing", "there is no"),
        (lambda at: put(at / "x.zip", b"no zip"), "download it again, as a .zip"),
        (lambda at: put(at / "anna.zip", zipped({f"{PACKAGE}/ring.py": "x"})), "looks like one submission"),
        (lambda at: put_all(at / "anna", MINE), "looks like one submission"),
        (lambda at: put(at / "c" / "class.db", "").parent, "holds class.db"),
        (lambda at: (at / "void").mkdir() or at / "void", "it is empty"),
        (lambda at: (put(at / "a/inbound/x", ""), put(at / "b/inbound/x", ""), at)[2], "several courses"),
    ],
)
def test_what_is_no_download_is_one_sentence(tmp_path, read, make, sentence):
    with pytest.raises(LabError, match=sentence):
        read(make(tmp_path / "src" if (tmp_path / "src").mkdir() is None else tmp_path))


def test_the_same_files_make_the_same_archive(read, folder, download):
    put_all(folder / "anna", MINE)
    whole = put(folder / "bela.zip", zipped(MINE)).read_bytes()
    anna, bela = (one.files.read_bytes() for one in read(folder).arrivals)
    assert read(download(STUDENTS)).arrivals[0].files.read_bytes() == anna
    assert bela == whole, "a student's own is kept as it came"


# -- any names --------------------------------------------------------------------------------------------------------
PIECES = ["anna", "jdoe", "_4501_", "_LATE", "_501_assignsubmission_file_", "+week91+2026-11-20 17:00:00 UTC", ".zip"]
PIECES += [
    "_attempt_2026-11-20-17-30-00", ".py", "/", "..", ".", "__MACOSX", "week91", "week92", "submission_metadata.yml",
]  # fmt: skip
PARTS = st.one_of(st.text(min_size=1, max_size=12), st.sampled_from(PIECES))


@given(st.lists(st.tuples(st.text(OF_A_NAME, min_size=1, max_size=12), st.booleans()), min_size=1, max_size=6))
def test_whatever_names_canvas_packs_its_students_arrive(tmp_path_factory, week_of_all, students):
    """Letters, combining marks and digits of any script, as Canvas' zip leaves them: each student once, and nobody else."""
    at = tmp_path_factory.mktemp("canvas")
    (at / "scratch").mkdir()
    with zipfile.ZipFile(at / "d.zip", "w") as archive:
        for number, (name, late) in enumerate(students):
            archive.writestr(f"{name}{'_LATE' * late}_{4500 + number}_{90000 + number}_cost_model.py", COST)

    def of_canvas(keys):
        users = [int(key.value) - 4500 for key in keys if key.platform == "canvas"]
        return next(((user, str(user)) for user in users if user in range(len(students))), None)

    found = read_download(at / "d.zip", Known(week_of_all, of_canvas, lambda text: False, BERLIN), at / "scratch")
    assert sorted(of_canvas(one.keys)[0] for one in found.arrivals) == [*range(len(students))]


@given(st.lists(st.lists(PARTS, min_size=1, max_size=5).map("".join), min_size=1, max_size=8, unique=True))
def test_any_names_arrive_or_are_reported(tmp_path_factory, week_of_all, names):
    """Whatever a zip holds: no exception but one sentence, nothing outside of the scratch folder, nobody invented."""
    at = tmp_path_factory.mktemp("any")
    (at / "scratch").mkdir()
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name.replace("\0", "0").encode("utf-8", "replace").decode(), "x = 1")
    (at / "d.zip").write_bytes(data.getvalue())
    try:
        found = read_download(at / "d.zip", Known(week_of_all, owner, proposed, BERLIN), at / "scratch")
    except LabError:
        return
    finally:
        assert {path.name for path in at.iterdir()} == {"scratch", "d.zip"}
    for one in found.arrivals:
        read_submission(one.files)
        assert owner(one.keys) or one.how != "folder" or len(found.arrivals) > 1 or proposed(one.label)
        assert Key("name", "") not in one.keys
