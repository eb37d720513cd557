"""`grade collect`: a download into the store, all of it, once."""

import os
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from grading import collect as collecting
from grading.collect import collect
from grading.intake.submission import read_submission
from grading.register.classes import init_class, open_class
from grading.register.deadlines import due
from grading.register.people import who
from grading.register.problems import problems
from grading.register.submissions import attempts
from labkit.checks.tasks import find_weeks, load_week
from labkit.errors import LabError
from tests.grading.intake.handed_in import MINE, make_week, put, zipped

BERLIN = ZoneInfo("Europe/Berlin")
SHEET = """Identifier,Full name,Email address,Group,Last modified (submission),Status
Participant 501,Jane Doe,jane@x.org,Team 1,"Friday, 20 November 2026, 6:00 PM",Submitted
Participant 502,Li Wei,li@x.org,Team 1,"Friday, 20 November 2026, 6:00 PM",Submitted
Participant 503,Sean O'Brien,sean@x.org,,-,"No submission - Extension granted until: Monday, 23 November 2026, 6:00 PM"
"""
EARLIER = datetime(2026, 11, 20, 20, tzinfo=UTC)
EVENING = datetime(2026, 11, 20, 18, tzinfo=BERLIN)


@pytest.fixture
def course(tmp_path):
    return [load_week(make_week(tmp_path / "course").folder)]


@pytest.fixture
def cls(tmp_path, course):
    """A class of three by Moodle's worksheet, opened."""
    put(tmp_path / "roster.csv", SHEET)
    init_class(tmp_path / "autumn", tmp_path / "roster.csv", "Europe/Berlin", course)
    put(tmp_path / "autumn/course.toml", 'zone = "Europe/Berlin"\n[deadlines]\nweek91 = 2026-11-20T23:59:00+01:00\n')
    with open_class(tmp_path / "autumn", course) as opened:
        yield opened


@pytest.fixture
def gather(cls, tmp_path, course):
    """Collect a download of these files."""

    def run(files, sheet=None, received=None, name="download.zip", **more):
        source = put(tmp_path / name, zipped(files)) if isinstance(files, dict) else files
        sheet = put(tmp_path / "sheet.csv", sheet) if sheet else None
        return collect(cls, course[0], source, sheet, received, **more)

    return run


def folder(name, number, text="x = 1"):
    return {f"{name}_{number}_assignsubmission_file_/ring.py": text}


def kept(cls):
    """{names of the owners: files} of every submission."""
    names = {row["id"]: row["name"] for row in cls.db.execute("SELECT id, name FROM person")}
    week = cls.weeks[0]
    return {
        (one.id, *(names[id] for id in one.members)): read_submission(cls.archive(week, one.id)).files
        for one in attempts(cls, week.name)
    }


def test_with_the_worksheet_everything_is_known(cls, gather):
    report = gather(folder("Jane Doe", 501) | folder("Team 1", 77, "x = 2"), SHEET)
    assert set(kept(cls)) == {(1, "Jane Doe"), (2, "Jane Doe", "Li Wei")}
    assert {one.received for one in attempts(cls, "week91")} == {EVENING}
    assert len(report.new) == 2 and not report.notes
    (sean,) = (row["id"] for row in cls.db.execute("SELECT id FROM person WHERE email = 'sean@x.org'"))
    extended, plain = datetime(2026, 11, 23, 18, tzinfo=BERLIN), datetime(2026, 11, 20, 23, 59, tzinfo=BERLIN)
    assert due(cls, sean, "week91") == extended, "who has handed nothing in, too"
    for words, holds in (("until: no day of 2026", extended), ("", plain)):  # not to be read; taken back in Moodle
        gather(folder("Jane Doe", 501), SHEET.replace(" - Extension granted until: Monday, 23 November 2026, 6:00 PM",
                                                      words and f" - Extension granted {words}"))  # fmt: skip
        assert due(cls, sean, "week91") == holds


def test_a_draft_that_nobody_submitted_counts_and_is_reported(cls, gather):
    report = gather(folder("Jane Doe", 501), SHEET.replace("Submitted", "Draft (not submitted)", 1))
    assert set(kept(cls)) == {(1, "Jane Doe")} and [note for note in report.notes if "Jane Doe left a draft" in note]


def test_the_worksheets_time_holds_for_another_name_once_it_is_said_whose_it_is(cls, gather):
    """Moodle leaves signs of a name away, or somebody has another name by now; the number is theirs."""
    files = folder("Li_Wei", 502) | folder("Jane Roe", 501, "x = 2")
    gather(files, SHEET)
    assert set(kept(cls)) == {(1,), (2, "Li Wei")}
    for mail, new, time in (("li@x.org", "Li Wei", None), ("jane@x.org", "Jane Doe", EVENING)):  # first a slip
        who(cls, "Jane Roe", [mail])
        assert not gather(files, SHEET).new and set(kept(cls)) == {(1, new), (2, "Li Wei")}
        assert [one.received for one in attempts(cls, "week91")] == [time, EVENING]


def test_a_second_collection_only_adds_what_is_new(cls, gather):
    gather(folder("Jane Doe", 501), SHEET)
    assert not gather(folder("Jane Doe", 501), SHEET).new
    later = SHEET.replace('6:00 PM",Sub', '9:00 PM",Sub', 1)
    gather(folder("Jane Doe", 501, "x = 2") | folder("Li Wei", 502), later)
    assert list(kept(cls)) == [(1, "Jane Doe"), (2, "Jane Doe"), (3, "Li Wei")]


def test_a_group_is_one_with_its_worksheet_and_without(cls, gather):
    files = folder("Team 1", 77)
    for sheet, new, owners in ((None, 1, ()), (SHEET, 0, ("Jane Doe", "Li Wei")), (None, 0, ("Jane Doe", "Li Wei"))):
        assert len(gather(files, sheet).new) == new and list(kept(cls)) == [(1, *owners)]
    assert not gather(folder("Team 1-Jane Doe", 501) | folder("Team 1-Li Wei", 502), SHEET).new, "once for each member"
    assert len(gather(folder("Jane Doe", 501), SHEET).new) == 1, "alone it is not what the group did"


def test_who_is_not_known_is_kept_and_named_with_the_command(cls, gather, course):
    report = gather(folder("Sean OBrien", 503) | folder("Eve", 900))
    assert set(kept(cls)) == {(1,), (2,)}
    notes = " ".join(report.notes)
    assert "WORKSHEET.csv" in notes and "--received" in notes
    commands = [one.command for one in problems(cls, course[0]) if one.blocks]
    assert "grade who 'Sean OBrien' = sean@x.org" in commands and len(commands) == 2
    who(cls, report.kept[1][0].label, ["sean@x.org"])
    assert set(kept(cls)) == {(1,), (2, "Sean O'Brien")}


def test_the_given_time_holds_where_nothing_tells_one(cls, gather):
    gather(folder("Jane Doe", 501) | folder("Eve", 900), SHEET, EARLIER)
    jane, eve = sorted(attempts(cls, "week91"), key=lambda one: one.label, reverse=True)
    assert (jane.received, eve.received) == (EVENING, EARLIER)
    assert (jane.timed, eve.timed) == ("platform", "given")


def test_slips_in_times_are_refused_or_reported(cls, gather):
    with pytest.raises(LabError, match="has not come yet"):
        gather(folder("Jane Doe", 501), received=datetime.now(UTC) + timedelta(days=1))
    assert not attempts(cls, "week91")
    report = gather(folder("Jane Doe", 501), received=EARLIER - timedelta(days=365))
    assert any("days before the deadline" in note for note in report.notes)


def test_another_weeks_download_is_refused(gather, cls):
    """All of a download: one student's own slip is collected, and reported to the student."""
    other = next(week for week in find_weeks() if week.name == "week14")
    theirs = {f"{name.split('.')[-1]}.py": "x" for task in other.tasks for name in task.modules if task.kind == "auto"}

    def files(lis):
        both = (("Jane Doe_501", theirs), ("Li Wei_502", lis))
        return {f"{who}_assignsubmission_file_/{name}": "x" for who, own in both for name in own}

    with pytest.raises(LabError, match="submissions of week14.*grade collect week14"):
        gather(files(theirs), SHEET)
    assert not attempts(cls, "week91")
    assert len(gather(files(MINE), SHEET).new) == 2


def test_a_worksheet_of_more_people_is_reported_and_pages_of_feedback_are_refused(gather):
    report = gather(folder("Jane Doe", 501), SHEET + "Participant 504,Neu,neu@x.org,,-,\n")
    assert any("Neu" in note and "--roster" in note for note in report.notes)
    with pytest.raises(LabError, match="feedback pages"):
        gather({f"Jane Doe_501_assignsubmission_file_/{name}": "" for name in ("week13.html", "capstone.html")}, SHEET)


def test_another_assignments_worksheet_is_refused_in_a_later_collection_too(cls, gather):
    gather(folder("Jane Doe", 501), SHEET)
    kept_before = kept(cls), [tuple(row) for row in cls.db.execute("SELECT * FROM alias")]
    with pytest.raises(LabError, match="another number"):
        gather(folder("Jane Doe", 501), SHEET.replace("Participant 50", "Participant 80"))
    assert (kept(cls), [tuple(row) for row in cls.db.execute("SELECT * FROM alias")]) == kept_before


def test_two_at_once_are_refused_and_what_a_killed_one_left_goes(gather, cls):
    put(cls.folder / "submitted/.collecting/unpacked/x", "left")

    def second(what, done, total):
        with pytest.raises(LabError, match="is running"):
            gather(folder("Jane Doe", 501))

    assert len(gather(folder("Jane Doe", 501), SHEET, progress=second).new) == 1
    assert not (cls.folder / "submitted/.collecting").exists()


def test_killed_at_any_moment_the_next_run_completes(tmp_path, cls, gather, course):
    files = folder("Jane Doe", 501) | folder("Li Wei", 502) | folder("Eve", 900)
    steps = 0
    while _killed(lambda: gather(files, SHEET), steps):
        with open_class(cls.folder, course) as again:
            for one in attempts(again, "week91"):
                assert read_submission(again.archive(course[0], one.id)).files, "what is in the store is whole"
        steps += 1
    assert steps > 5
    gather(files, SHEET)
    assert sorted(key[1:] for key in kept(cls)) == [(), ("Jane Doe",), ("Li Wei",)]
    on_disk = {path.stem for path in (cls.folder / "submitted/week91").iterdir()}
    assert {str(one.id) for one in attempts(cls, "week91")} == on_disk


def _killed(work, at):
    """Run it in a child that dies, as by kill -9, before the file or transaction number `at`; whether it died."""
    child = os.fork()
    if not child:
        real, count = os.replace, [0]

        def step(*_):
            if count[0] == at:
                os._exit(9)
            count[0] += 1

        def replace(*places):
            step()
            real(*places)
            step()

        os.replace = replace
        extend, collecting.end_collection = collecting.end_collection, lambda *words: (step(), extend(*words), step())
        collecting.learn = lambda *words, learn=collecting.learn: (step(), learn(*words))
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9
