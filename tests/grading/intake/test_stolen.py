"""Hand-ins of others: made to vanish, forged, backdated. Each works where its defence is missing."""

from __future__ import annotations

import io
import json
import os
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from grading import run as running
from grading.intake import find_submissions, load, times
from grading.intake.collect import collect
from grading.intake.names import printable
from grading.intake.policy import Rules
from grading.judge import Settings
from grading.marks import MAX_NAME, BadId, Mark, quoted
from grading.table import class_table
from labkit.errors import LabError
from tests.grading.intake.handed_in import MINE, put, put_all, zipped

LONG = "Щ" * 120  # 240 bytes
EVIL = "an\x1b[2Jna\u202e"


@pytest.fixture
def inbound(tmp_path):
    """An exchange as nbgrader makes it: everybody may write into it, nobody may list it. And who hands in there now."""
    root = tmp_path / "exchange" / "dist101" / "inbound"
    root.mkdir(parents=True)
    root.chmod(0o733)

    def hand_in(student, files, ago=timedelta()):
        stamp = f"{datetime.now(UTC) - ago:%Y-%m-%d %H:%M:%S.%f} UTC"
        return put_all(root / f"{student}+week91+{stamp}+abcdefghijkl", files | {"timestamp.txt": stamp})

    hand_in.root = root
    return hand_in


def planted(root, student, ring):
    """What a student lays there: a folder that `grade collect` seems to have made, with one attempt of somebody's."""
    receipt = {"student": student, "attempt": 1, "received": "", "timed": "", "digest": "", "format": 1}
    put(root / "collected.json", json.dumps({"assignment": "week91", "ended": []}))
    put(root / student / "1.json", json.dumps(receipt))
    put(root / student / "1.zip", zipped({"ring.py": ring}))


def taken(report):
    return {(r.student, r.attempt) for r in report.added}


@pytest.mark.parametrize("place", [".", "week91"])
@pytest.mark.parametrize("copied", [False, True])
def test_a_planted_marker_hides_nobody(tmp_path, inbound, week, monkeypatch, place, copied):
    inbound("anna", MINE)
    inbound("bob", MINE)
    planted(inbound.root / place, "anna", "forged")
    if copied:  # by the instructor, for whose folder's mode nothing tells of an exchange
        inbound.root.chmod(0o755)
    report = collect([tmp_path / "exchange"], week, tmp_path / "kept", Rules())
    assert {("anna", 1), ("bob", 1)} <= taken(report)
    assert any("collected.json is not believed" in note for note in report.notes)
    files = {(e.student, e.attempt): load(e, week).files for e in find_submissions(tmp_path / "kept", week)}
    assert files["anna", 1]["ring.py"] == MINE["ring.py"].encode() and b"forged" not in files["bob", 1].values()
    assert {e.student for e in find_submissions(inbound.root, week)} >= {"anna", "bob"}  # `grade run` on it

    monkeypatch.setattr("grading.intake.find._students_write", lambda folder: False)
    report = collect([tmp_path / "exchange"], week, tmp_path / "fooled", Rules())
    assert taken(report) == {("anna", 1)}, "where it is believed, bob is gone"
    (entry,) = find_submissions(tmp_path / "fooled", week)
    assert load(entry, week).files == {"ring.py": b"forged"}


def test_what_was_collected_is_still_read(tmp_path, inbound, week):
    inbound("anna", MINE)
    collect([tmp_path / "exchange"], week, tmp_path / "kept", Rules())
    again = collect([tmp_path / "kept"], week, tmp_path / "twice", Rules())
    assert taken(again) == {("anna", 1)} and not again.notes


def test_a_time_of_ones_own_making(tmp_path, inbound, week, monkeypatch):
    """The name and the file say yesterday; the files were written now, and no tool of a student's can change that."""
    now, day = datetime.now(UTC), timedelta(days=1)
    place = inbound("anna", MINE, ago=day)
    inbound("bob", MINE)
    for path in (*place.iterdir(), place):
        os.utime(path, ((now - day).timestamp(),) * 2)
    rules = Rules(deadlines={"week91": now - day / 2})
    report = collect([tmp_path / "exchange"], week, tmp_path / "kept", rules)
    times_of = {r.student: r.received for r in report.added}
    assert all(abs(time - now) < timedelta(minutes=5) for time in times_of.values()), times_of
    assert any("anna" in note and "which counts" in note for note in report.notes) and report.claims == 0
    # Its keeper touches the whole exchange: no new attempts.
    os.chmod(place / "ring.py", 0o600)
    assert not collect([tmp_path / "exchange"], week, tmp_path / "kept", rules).added
    # The instructor knows better: all were there by then.
    report = collect([tmp_path / "exchange"], week, tmp_path / "told", rules, given=now - day / 2)
    assert {r.student: r.received for r in report.added}["anna"] == now - day / 2

    monkeypatch.setattr(times, "settled", lambda claim, put: (claim, times.CHECKED))
    report = collect([tmp_path / "exchange"], week, tmp_path / "fooled", rules)
    assert {r.student: r.received for r in report.added}["anna"] < now - day / 2, "in time, a day ago"


def test_a_change_does_not_hide_behind_many_files(tmp_path, monkeypatch):
    put_all(tmp_path / "in", {f"{n}.py": "" for n in range(12)})
    early = times.changed(tmp_path / "in")
    assert times.changed(tmp_path / "in") == early, "of what nobody touches it stays"
    monkeypatch.setattr(times, "MOST", 10)
    assert times.changed(tmp_path / "in") > early and times.changed(tmp_path / "none") is None


def test_what_only_a_claim_tells_is_told(tmp_path, week):
    """In a copy nothing checks a student's word: it is counted, and told; --received weighs more."""
    stamp = "2026-11-19 10:00:00 UTC"
    put_all(tmp_path / "in" / "anna", MINE | {"timestamp.txt": stamp})
    report = collect([tmp_path / "in"], week, tmp_path / "kept", Rules())
    assert report.claims == 1 and report.added[0].received == datetime(2026, 11, 19, 10, tzinfo=UTC)
    given = datetime(2026, 11, 20, tzinfo=UTC)
    report = collect([tmp_path / "in"], week, tmp_path / "told", Rules(), given=given)
    assert report.added[0].received == given and "holds" in report.notes[0]


def test_a_name_too_long_stops_nobody(tmp_path, folder, week):
    put_all(folder / LONG, MINE)
    put_all(folder / "zoe", MINE)
    with pytest.raises(BadId, match="120 characters"):
        quoted(LONG)
    report = collect([folder], week, tmp_path / "kept", Rules())
    assert taken(report) == {("zoe", 1)} and len(report.refused) == 1 and "shorter id" in report.refused[0]
    report = collect([folder], week, tmp_path / "mapped", Rules(ids={LONG: "schtsch"}))
    assert taken(report) == {("zoe", 1), ("schtsch", 1)}
    graded = running.Report(1)
    todo = list(running._changed(find_submissions(folder, week), week, tmp_path, Settings(1), graded, {}))
    assert [item.entry.student for item in todo] == ["zoe"]
    assert graded.unreadable[0][0] == LONG and len(quoted("Щ" * (MAX_NAME // 2))) <= MAX_NAME


BOBS, EVES = "Bob Smith_17_assignsubmission_file_", "Eve_99_assignsubmission_file_"


@pytest.mark.parametrize(
    "name",
    [
        f"{BOBS}_99_assignsubmission_file_",  # Eve's name in Moodle is all but the end
        f"{BOBS}_{EVES}",
        "Bob Smith_17_assignsubmission_99_assignsubmission_file_",
        f"{EVES}{BOBS}ring.py",  # the name of her file
    ],
)
def test_nobody_joins_anothers_hand_in_by_a_name(tmp_path, folder, week, monkeypatch, name):
    """Moodle puts full names and file names side by side, and both are chosen by students."""
    put_all(folder / BOBS, MINE)
    put_all(folder / "Zoe_18_assignsubmission_file_", MINE)
    if name.endswith(".py"):
        put(folder / name, "stolen")
    else:
        put_all(folder / name, {"ring.py": "stolen"})
    report = collect([folder], week, tmp_path / "kept", Rules())
    assert taken(report) == {("Bob Smith", 1), ("Zoe", 1)}
    assert any("Moodle's mark stands in it twice" in note for note in report.notes)
    (bobs, _) = find_submissions(tmp_path / "kept", week)
    assert load(bobs, week).files["ring.py"] == MINE["ring.py"].encode()

    monkeypatch.setattr("grading.intake.names.ambiguous", lambda name: False)
    monkeypatch.setattr("grading.intake.find.ambiguous", lambda name: False)
    found = find_submissions(folder, week)
    assert {e.student for e in found} != {"Bob Smith", "Zoe"} or len(found[0].parts) == 2


def test_names_that_hide_or_look_alike_are_told(folder, week):
    for name in (".anna", unicodedata.normalize("NFD", "josé"), "fiona", "ﬁona", "FIONA"):
        put_all(folder / name, MINE)
    put_all(folder / "josé", MINE)
    notes = " ".join(find_submissions(folder, week).notes)
    assert ".anna has a hidden name" in notes
    assert "josé is there in two forms" in notes
    assert "FIONA (FIONA) and fiona (fiona) and ﬁona (\\ufb01ona) differ by the form" in notes


def test_no_name_commands_a_terminal():
    mark = Mark(EVIL, "week91", notes=[f"there is {EVIL}.py"], complete=False, attention=[f"look at {EVIL}"])
    report = running.Report(1, made=[mark], unreadable=[(EVIL, f"no {EVIL}")])
    out = io.StringIO()
    class_table(report, Console(file=out, width=200))
    assert "\x1b" not in out.getvalue() and "\u202e" not in out.getvalue() and "\\x1b[2J" in out.getvalue()
    assert printable(f"a\n{EVIL}") == "a\nan\\x1b[2Jna\\u202e"


# -- who may still hand in --------------------------------------------------------------------------------------------
DUE = datetime(2026, 11, 20, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rules", "until"),
    [
        ({}, DUE),
        ({"late": {"grace_minutes": 10}}, DUE + timedelta(minutes=10)),
        ({"late": {"closes_after_days": 3}}, DUE + timedelta(days=3)),
        ({"extensions": {"anna": {"week91": DUE + timedelta(days=7)}}}, DUE + timedelta(days=7)),
        (
            {"extensions": {"anna": {"week91": DUE + timedelta(days=7)}}, "late": {"closes_after_days": 3}},
            DUE + timedelta(days=10),
        ),
    ],
)
def test_nothing_is_told_while_somebody_may_hand_in(rules, until):
    from grading.intake.policy import refuse_while_open

    made = Rules(deadlines={"week91": DUE}, **rules)
    with pytest.raises(LabError, match="wait, or say --anyway"):
        refuse_while_open(made, "week91", "the seed", False, until)
    refuse_while_open(made, "week91", "the seed", False, until + timedelta(seconds=1))
    refuse_while_open(made, "week91", "the seed", True, DUE)
    refuse_while_open(Rules(), "week91", "the seed", False, DUE)
