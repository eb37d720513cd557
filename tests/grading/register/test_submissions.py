"""What arrives: known or new, whose, and when; and what a kill leaves."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from grading.intake.arrival import GIVEN, Key
from grading.mark import Mark
from grading.register import schema
from grading.register.classes import open_class
from grading.register.counting import counting, current_marks
from grading.register.marks import add_mark, changes, marks_of
from grading.register.people import everybody, resolve
from grading.register.standing import standings
from grading.register.submissions import attempt, attempts, end_collection, leave_out, rename, retime, withdraw
from labkit.errors import LabError
from tests.grading.register.storing import (
    AFTER,
    BEFORE,
    DEADLINE,
    ROOT,
    WEEK,
    WEEKS,
    canvas,
    give_mark,
    hand_in,
    opened,
)

ANNA = canvas("mülleranna", "4501")
HOUR = timedelta(hours=1)


@pytest.fixture
def cls(tmp_path):
    with opened(tmp_path / "c", rules=DEADLINE) as cls:
        yield cls


def test_the_archive_is_kept_as_it_came_under_its_number(cls, tmp_path):
    file = tmp_path / "own.zip"
    file.write_bytes(b"a zip of hers")
    number = hand_in(cls, "a", ANNA, file).id
    assert cls.archive(WEEK, number).read_bytes() == b"a zip of hers"
    assert cls.archive(WEEK, number).stat().st_mode & 0o077 == 0
    one = attempt(cls, number)
    assert (one.label, one.how, one.source, one.received) == ("a", "canvas", "download.zip", BEFORE)
    with pytest.raises(LabError, match="no submission 99"):
        attempt(cls, 99)


def test_the_same_download_again_is_nothing_new_and_equal_files_of_two_people_are_two_submissions(cls):
    first = hand_in(cls, "a", ANNA)
    again = hand_in(cls, "a", ANNA)
    assert first.new and not again.new and again.id == first.id and len(attempts(cls, "week13")) == 1
    changed = hand_in(cls, "a", ANNA, b"changed")
    assert changed.new and [one.id for one in attempts(cls, "week13")] == [first.id, changed.id]
    one, other = (hand_in(cls, "max", [Key("name", "Max Meier"), Key("moodle", n, "week13")]) for n in "12")
    assert other.new and other.id != one.id


def test_the_platforms_own_time_tells_attempts_of_equal_content_apart(cls):
    first = hand_in(cls, "a", ANNA, b"A", BEFORE - HOUR)
    between = hand_in(cls, "a", ANNA, b"B", BEFORE - HOUR / 2)
    back = hand_in(cls, "a", ANNA, b"A", BEFORE)
    assert len({first.id, between.id, back.id}) == 3
    assert not hand_in(cls, "a", ANNA, b"A", BEFORE).new and not hand_in(cls, "a", ANNA, b"A", BEFORE - HOUR).new
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))  # in an hour that the clock repeats
    assert [hand_in(cls, "a", ANNA, received=twice.replace(fold=fold)).new for fold in (0, 0, 1)] == [True, False, True]


def test_content_without_a_time_is_known_where_it_is_the_last_or_the_download_was_read_before(cls):
    def arrives(content, download):
        return hand_in(cls, "a", ANNA, content, None, download=download)

    first = arrives(b"A", "one")
    end_collection(cls, WEEK, "one")
    second = arrives(b"B", "two")
    assert arrives(b"A", "one").id == first.id, "an old download, read again"
    third = arrives(b"A", "three")
    assert third.new and third.id > second.id, "somebody put earlier files back"
    assert arrives(b"A", "three").id == third.id, "the same collection, cut off and run again"


def test_to_know_an_attempt_costs_the_same_in_a_class_of_any_size(tmp_path):
    def steps(people):
        count = [0]
        with opened(tmp_path / str(people), rules=DEADLINE) as cls:
            for _ in range(2):  # the second collection, in which all are known
                cls.db.set_progress_handler(lambda: count.__setitem__(0, count[0] + 1), 10)
                count[0] = 0
                known = [hand_in(cls, f"a{n}", canvas(f"a{n}", str(n)), b"all the same", None) for n in range(people)]
            assert not any(one.new for one in known)
        return count[0] / people

    assert steps(80) < 1.5 * steps(20)


def test_a_store_of_an_earlier_version_knows_its_attempts(tmp_path, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(schema, "UPGRADES", schema.UPGRADES[:2])
        with opened(tmp_path / "c") as cls:
            cls.db.execute(
                "INSERT INTO submission (assignment, digest, timed, how, source, label, keys, collected) "
                "VALUES ('week13', ?, '', 'canvas', 'download.zip', 'old name', ?, '2026-11-20T12:00:00Z')",
                (hashlib.sha256(b"A").hexdigest(), '[["canvas", "4501", ""], ["name", "old name", ""]]'),
            )
    with opened(tmp_path / "c") as cls:
        assert not hand_in(cls, "new name", canvas("new name", "4501"), b"A", None).new
        assert hand_in(cls, "old name", canvas("old name", "4502"), b"A", None).new


def test_the_same_files_once_more_after_the_deadline_take_nothing_from_those_in_time(cls):
    def arrives(late):
        return hand_in(cls, "a", ANNA, b"A", None, late=late)

    first, second = arrives(False), arrives(True)
    assert second.new and not arrives(True).new
    assert [one.late for one in attempts(cls, "week13")] == [False, True]
    again = arrives(False)
    assert again.id == second.id and attempt(cls, second.id).late is False, "the platform takes the mark back"
    assert first.id < second.id
    file = [Key("canvas", "4501"), Key("canvas", "90001", "week13")]
    once, again = (hand_in(cls, "b", file, b"B", None, late=late) for late in (False, True))
    assert again.id == once.id, "its number says that only the deadline is another one"


def test_an_instructors_time_stays_and_a_download_s_changes_nothing_that_is_known(cls):
    number = hand_in(cls, "a", ANNA, received=None).id
    hand_in(cls, "a", ANNA, received=BEFORE, timed=GIVEN)
    assert attempt(cls, number).received == BEFORE
    hand_in(cls, "a", ANNA, received=AFTER, timed=GIVEN)
    assert attempt(cls, number).received == BEFORE, "of a later collection, in which it was known"
    retime(cls, number, AFTER)
    assert not hand_in(cls, "a", ANNA, received=BEFORE).new and attempt(cls, number).received == AFTER


def test_withdrawn_stays_withdrawn_when_it_comes_again(cls):
    number = hand_in(cls, "a", ANNA).id
    withdraw(cls, [number])
    again = hand_in(cls, "a", ANNA)
    assert again.id == number and again.withdrawn and not attempts(cls, "week13")
    withdraw(cls, [number], undo=True)
    assert [one.id for one in attempts(cls, "week13")] == [number]


def arrives(cls, *emails):
    """A group's answer, by the worksheet."""
    members = [[Key("email", email)] for email in emails]
    return hand_in(cls, "Team 1", [Key("moodle", "9", "week13")], how="moodle", group="Team 1", members=members)


def test_a_newer_worksheet_says_who_is_in_a_group(cls):
    first = arrives(cls, "anna@x.org", "sean@x.org", "stranger@x.org")
    assert [one.email for one in first.members] == ["anna@x.org", "sean@x.org"]
    assert attempt(cls, first.id).labels == ("stranger@x.org",)
    again = arrives(cls, "sean@x.org", "jane@x.org")
    assert again.id == first.id and [one.email for one in again.members] == ["sean@x.org", "jane@x.org"]
    assert any("Müller, Anna" in sentence for sentence in attempt(cls, first.id).attention)
    arrives(cls, "sean@x.org", "jane@x.org")
    assert len(attempt(cls, first.id).attention) == 1
    arrives(cls, "anna@x.org", "sean@x.org", "jane@x.org")
    assert not attempt(cls, first.id).attention, "hers again"


def test_who_is_taken_out_of_a_group_stays_out_when_it_comes_again(cls):
    number, sean = arrives(cls, "anna@x.org", "sean@x.org").id, resolve(cls, "sean@x.org")
    leave_out(cls, number, sean)
    assert arrives(cls, "anna@x.org", "sean@x.org").id == number
    assert attempt(cls, number).members == (resolve(cls, "anna@x.org").id,)
    assert sean.id not in counting(cls, "week13") and not attempt(cls, number).labels
    for nobody in ("sean@x.org", "jane@x.org", "anna@x.org"):  # out already, none of it, the last of it
        with pytest.raises(LabError):
            leave_out(cls, number, resolve(cls, nobody))
    leave_out(cls, number, sean, undo=True)
    assert sean.id in counting(cls, "week13")


def test_marks_are_only_added_and_tell_what_changed(cls):
    number = hand_in(cls, "a", ANNA).id
    give_mark(cls, number, 60, finished="2026-11-21")
    add_mark(cls, Mark(number, "week13", "k2", tests="t2", points=70, finished="2026-11-22"), "a test was wrong")
    assert [one.mark.points for one in marks_of(cls, number)] == [60, 70]
    (change,) = changes(cls, number)
    assert change.why == "a test was wrong; what was handed in is read otherwise; the week's tests or files changed"
    assert change.points == (60, 70) and current_marks(cls, "week13")[number].points == 70
    assert rename(cls, number, "a.py", "b.py").renamed == (("a.py", "b.py"),)
    assert number not in current_marks(cls, "week13"), "its mark is of other files"
    assert not rename(cls, number, "a.py", "").renamed and number in current_marks(cls, "week13")


def test_a_store_of_a_newer_course_and_a_folder_without_one_are_refused(tmp_path):
    with pytest.raises(LabError, match="grade init"), open_class(tmp_path, WEEKS):
        pass
    with opened(tmp_path / "c") as cls:
        cls.db.execute(f"PRAGMA user_version = {len(schema.UPGRADES) + 1}")
    with pytest.raises(LabError, match="newer course"), open_class(tmp_path / "c", WEEKS):
        pass
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "class.db").write_bytes(b"no database" * 1000)
    with pytest.raises(LabError, match="cannot be read"), open_class(tmp_path / "d", WEEKS):
        pass


def test_what_the_machine_is_to_blame_for_is_one_sentence(cls, monkeypatch):
    monkeypatch.setattr(schema, "BUSY", 0.05)
    with opened(cls.folder) as other, cls.writing(), pytest.raises(LabError, match="another command"), other.writing():
        pass
    cls.db.execute(f"PRAGMA max_page_count = {cls.db.execute('PRAGMA page_count').fetchone()[0] + 1}")
    many = (hand_in(cls, "a", ANNA, f"{n}".encode()) for n in range(2000))
    with pytest.raises(LabError, match="disk is full"):
        list(many)
    kept = attempts(cls, "week13")
    assert kept and all(cls.archive(WEEK, one.id).is_file() for one in kept)
    with pytest.raises(LabError, match=f"--class {cls.folder}"), open_class(cls.folder / "submitted", WEEKS):
        pass


def test_one_transaction_holds_whole_or_not_at_all(cls):
    def breaks():
        with cls.writing():
            give_mark(cls, number, 99)
            give_mark(cls, number + 1)

    number = hand_in(cls, "a", ANNA).id
    with pytest.raises(sqlite3.IntegrityError):
        breaks()
    assert not marks_of(cls, number)


WRITER = """
import sys
from tests.grading.register.storing import *
with open_class(sys.argv[1], WEEKS) as cls:
    print("open", flush=True)
    for n in range(10_000):
        number = hand_in(cls, "a", canvas("a", "4501"), f"{n}".encode()).id
        give_mark(cls, number, n % 100)
        print(number, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_reported(tmp_path):
    with opened(tmp_path / "c"):
        pass
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "c"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert writer.stdout.readline() == "open\n"
    time.sleep(0.15)
    os.kill(writer.pid, signal.SIGKILL)
    reported = [int(line) for line in writer.stdout.read().splitlines()]
    writer.wait()
    with opened(tmp_path / "c") as cls:
        here = attempts(cls, "week13")
        assert set(reported) <= set(current_marks(cls, "week13")) and len(here) - len(reported) in (0, 1)
        assert all(cls.archive(WEEK, one.id).is_file() for one in here)
        assert cls.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        hand_in(cls, "b", canvas("b", "4502"), b"goes on")


class Store(RuleBasedStateMachine):
    """Whatever is done in whatever order: everybody has at most one attempt that counts, it is theirs, and the store
    opened again answers the same."""

    @initialize()
    def begin(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.enter()

    def enter(self):
        roster = "student,name,email\n" + "".join(f"s{n},Name {n},s{n}@x.org\n" for n in range(3))
        self.opened = opened(Path(self.scratch.name) / "c", roster, DEADLINE)
        self.cls = self.opened.__enter__()

    def teardown(self):
        if hasattr(self, "opened"):
            self.opened.__exit__(None, None, None)
            self.scratch.cleanup()

    NUMBER, CONTENT = st.integers(0, 3), st.sampled_from([b"A", b"B"])
    TIME = st.sampled_from([None, BEFORE - HOUR, BEFORE, AFTER])

    @rule(who=NUMBER, content=CONTENT, time=TIME, keyed=st.booleans())
    def collect(self, who, content, time, keyed):
        keys = [Key("moodle", str(500 + who), "week13"), Key("name", f"Name {who}")]
        keys += [Key("email", f"s{who}@x.org")] if keyed else []
        before = {one.id: one for one in attempts(self.cls, "week13", withdrawn=True)}
        added = hand_in(self.cls, f"Name {who}", keys, content, time)
        assert added.new == (added.id not in before)
        assert [one.name for one in added.members] in ([], [f"Name {who}"])
        assert not hand_in(self.cls, f"Name {who}", keys, content, time).new, "at once again: known"

    @rule(members=st.sets(st.integers(0, 2), min_size=1), content=CONTENT)
    def collect_a_groups(self, members, content):
        keys = [[Key("email", f"s{n}@x.org")] for n in sorted(members)]
        added = hand_in(self.cls, "Team", [Key("moodle", "900", "week13")], content, None, group="Team", members=keys)
        assert {one.name for one in added.members} == {f"Name {n}" for n in members}

    @rule(pick=st.integers(0, 50), undo=st.booleans())
    def withdraw(self, pick, undo):
        here = attempts(self.cls, "week13", withdrawn=True)
        if here:
            one = here[pick % len(here)]
            withdraw(self.cls, [one.id], undo)
            assert (attempt(self.cls, one.id).withdrawn is None) == undo

    @rule(pick=st.integers(0, 50), time=TIME)
    def retime(self, pick, time):
        here = attempts(self.cls, "week13")
        if here:
            assert retime(self.cls, here[pick % len(here)].id, time).received == time

    @rule(pick=st.integers(0, 50), points=st.integers(0, 100))
    def grade(self, pick, points):
        here = attempts(self.cls, "week13")
        if here:
            give_mark(self.cls, here[pick % len(here)].id, points)

    @rule()
    def open_again(self):
        before = standings(self.cls, WEEK, AFTER)
        self.opened.__exit__(None, None, None)
        self.enter()
        assert standings(self.cls, WEEK, AFTER) == before

    @invariant()
    def everybody_has_their_own(self):
        if not hasattr(self, "cls"):
            return
        counted, here = counting(self.cls, "week13"), {one.id: one for one in attempts(self.cls, "week13")}
        for person, one in counted.items():
            assert one.submission.id in here and person in one.submission.members
            assert set(one.attempts) == {each.id for each in here.values() if person in each.members}
        assert {one.person for one in standings(self.cls, WEEK)} == set(everybody(self.cls))
        assert all(resolve(self.cls, f"s{n}").name == f"Name {n}" for n in range(3))


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=15)
