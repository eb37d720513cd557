"""Collecting: every attempt is kept for good, twice is as once, and a kill loses nothing."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from grading.files import locked
from grading.intake import find_submissions, load
from grading.intake.collect import collect
from grading.intake.policy import Rules
from grading.intake.receipts import read_receipts
from grading.intake.withdraw import Move, left, withdraw
from grading.marks import LOCK
from labkit.errors import LabError
from tests.grading.intake.handed_in import MINE, PACKAGE, RING, put, put_all, zipped

DUE = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
RULES = Rules(deadlines={"week91": DUE})


@pytest.fixture
def gather(tmp_path, week):
    def run(*sources, rules=RULES, to="kept", **more):
        return collect(sources, week, tmp_path / to, rules, **more)

    return run


@pytest.fixture
def kept(tmp_path, week):
    """The collected attempts: {(student, attempt): files}."""

    def read(to="kept"):
        return {(e.student, e.attempt): load(e, week).files for e in find_submissions(tmp_path / to, week)}

    return read


@pytest.fixture
def inbound(tmp_path):
    """nbgrader's exchange with one course in it; a function that hands something in there."""
    root = tmp_path / "exchange" / "dist101" / "inbound"
    root.mkdir(parents=True)

    def hand_in(student, hour, files, assignment="week91"):
        stamp = f"2026-11-20 {hour:02}:00:00.000000 UTC"
        return put_all(
            root / f"{student}+{assignment}+{stamp}+abcdefghij{hour:02}",
            files | {"timestamp.txt": stamp, "submission_secret.txt": "s3cret"},
        )

    return hand_in


def snapshot(root):
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_exchange_with_its_history(tmp_path, inbound, gather, kept, week):
    inbound("anna", 17, {"ring.py": "first"})
    inbound("anna", 19, {"ring.py": "second"})
    inbound("bob", 18, MINE)
    inbound("bob", 18, {"other.py": ""}, "week92")
    report = gather(tmp_path / "exchange")
    assert [(r.student, r.attempt) for r in report.added] == [("anna", 1), ("anna", 2), ("bob", 1)]
    assert kept() == {
        ("anna", 1): {"ring.py": b"first"},
        ("anna", 2): {"ring.py": b"second"},
        ("bob", 1): {name: text.encode() for name, text in MINE.items()},
    }
    times = [entry.received for entry in find_submissions(tmp_path / "kept", week)]
    assert times == [DUE - timedelta(hours=hours) for hours in (6, 4, 5)]
    assert not any("s3cret" in path.read_text(errors="replace") for path in (tmp_path / "kept").rglob("*.json"))


@pytest.mark.parametrize("named", ["exchange", "exchange/dist101", "exchange/dist101/inbound"])
def test_a_second_run_only_adds(tmp_path, inbound, gather, kept, named):
    inbound("anna", 17, {"ring.py": "first"})
    gather(tmp_path / named)
    before = snapshot(tmp_path / "kept")
    report = gather(tmp_path / named)
    assert report.known == 1 and not report.added and snapshot(tmp_path / "kept") == before
    inbound("anna", 12, {"ring.py": "an older one, synchronised later"})
    inbound("carl", 20, {"ring.py": "new"})
    report = gather(tmp_path / named)
    assert [(r.student, r.attempt) for r in report.added] == [("anna", 2), ("carl", 1)] and report.known == 1
    after = snapshot(tmp_path / "kept")
    assert {path: after[path] for path in before if path.name != "collected.json"} == {
        path: data for path, data in before.items() if path.name != "collected.json"
    }
    assert kept()["anna", 1] == {"ring.py": b"first"}


def test_the_same_text_handed_in_twice_is_two_attempts(tmp_path, inbound, gather, kept):
    inbound("anna", 17, {"ring.py": "same"})
    inbound("anna", 19, {"ring.py": "same"})
    assert [r.received.hour for r in gather(tmp_path / "exchange").added] == [17, 19]
    assert gather(tmp_path / "exchange").known == 2


def test_what_is_changed_in_the_exchange_after_collecting_is_a_new_attempt_of_a_later_time(
    tmp_path, inbound, gather, kept, week
):
    place = inbound("anna", 17, {"ring.py": "in time"})
    (first,) = gather(tmp_path / "exchange").added
    put(place / "ring.py", "under the old time")
    report = gather(tmp_path / "exchange")
    (second,) = report.added
    assert kept() == {("anna", 1): {"ring.py": b"in time"}, ("anna", 2): {"ring.py": b"under the old time"}}
    assert second.received == datetime.fromisoformat(first.collected) != first.received
    (note,) = report.notes
    assert "was changed in the exchange after it was collected: what it was is attempt 1" in note
    assert find_submissions(tmp_path / "kept", week)[1].attention == (note,)
    again = gather(tmp_path / "exchange")
    assert again.known == 1 and not again.added and not again.notes


def test_outside_the_exchange_a_mended_file_keeps_its_time(tmp_path, folder, gather):
    """There it was the instructor who changed it."""
    put_all(folder / "anna" / "week91", {"ring (1).py": RING, "timestamp.txt": "2026-11-20 17:00:00 UTC"})
    (first,) = gather(folder).added
    (folder / "anna" / "week91" / "ring (1).py").rename(folder / "anna" / "week91" / "ring.py")
    report = gather(folder)
    assert report.added[0].attempt == 2 and report.added[0].received == first.received and not report.notes


def test_what_was_left_out_stays_told_through_a_second_collection(tmp_path, folder, gather, week):
    put_all(folder / "anna", MINE)
    (folder / "anna" / "link.py").symlink_to("/etc/passwd")
    gather(folder)
    gather(tmp_path / "kept", to="again")
    (entry,) = find_submissions(tmp_path / "again", week)
    assert load(entry, week).left_out == {"link.py": "is a link, and links are not followed"}


def test_nbgrader_itself_hands_in(tmp_path, gather, kept, week):
    pytest.importorskip("nbgrader")
    from nbgrader.auth import Authenticator
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.exchange.default import ExchangeSubmit
    from traitlets.config import Config

    root = tmp_path / "exchange"
    (root / "dist101" / "inbound").mkdir(parents=True)
    (root / "dist101" / "outbound" / "week91").mkdir(parents=True)
    put_all(tmp_path / "home" / "week91", MINE | {"lab.ipynb": "{}"})
    config = Config()
    config.CourseDirectory.update(course_id="dist101", assignment_id="week91", student_id="anna b")
    config.Exchange.update(root=str(root), assignment_dir=str(tmp_path / "home"), cache=str(tmp_path / "cache"))
    course = CourseDirectory(config=config)
    before = datetime.now(UTC)
    ExchangeSubmit(coursedir=course, authenticator=Authenticator(config=config), config=config).start()
    (receipt,) = gather(root).added
    assert receipt.student == "anna b" and receipt.attempt == 1
    assert before <= receipt.received <= datetime.now(UTC)
    assert set(kept()["anna b", 1]) == {*MINE, "lab.ipynb"}


def times(tmp_path, week):
    return {(e.student, e.attempt): e.received for e in find_submissions(tmp_path / "kept", week)}


def test_a_time_that_is_told_later_is_taken_for_the_student_who_is_named(tmp_path, folder, gather, week):
    """Moodle's download holds no times: whoever collected it without --received has to tell them afterwards."""
    early, late = DUE - timedelta(hours=1), DUE + timedelta(days=2)
    for student in ("Anna M", "bob"):
        put_all(folder / student, MINE)
    gather(folder)
    report = gather(folder, given=late)
    assert report.known == 2 and not report.timed and set(times(tmp_path, week).values()) == {None}, "nobody is named"
    rules = Rules(deadlines={"week91": DUE}, ids={"Anna M": "anna"})
    (told,) = gather(folder, given=late, students=["Anna M"], rules=rules).timed
    assert (told.student, told.attempt) == ("Anna M", 1)
    assert times(tmp_path, week) == {("Anna M", 1): late, ("bob", 1): None}
    assert gather(folder, given=early, students=["anna"], rules=rules).timed, "a slip is mended under either name"
    assert not gather(folder, given=early, students=["anna"], rules=rules).timed, "twice is as once"
    assert not gather(folder, students=["anna"], rules=rules).timed, "without a time nothing is taken back"
    assert times(tmp_path, week)["Anna M", 1] == early
    with pytest.raises(LabError, match="nothing of 'bobb' is in .*did you mean 'bob'"):
        gather(folder, given=late, students=["bobb"])


def test_of_one_student_only_their_attempts_are_taken(tmp_path, folder, gather, kept, week):
    for student in ("anna", "bob"):
        put_all(folder / student, {"ring.py": "old"})
    gather(folder)
    for student in ("anna", "bob"):
        put_all(folder / student, {"ring.py": "new"})
    assert [(r.student, r.attempt) for r in gather(folder, given=DUE, students=["anna"]).added] == [("anna", 2)]
    assert [(r.student, r.attempt) for r in gather(folder).added] == [("bob", 2)], "the rest is not known by then"
    for student in ("anna", "bob"):
        put_all(folder / student, {"ring.py": "old"})
    gather(folder, given=DUE - timedelta(days=1), students=["anna"])
    assert times(tmp_path, week)["anna", 1] == DUE - timedelta(days=1) and len(kept()) == 4
    put(folder / "anna" / "ring.py", "third")
    gather(folder, students=["anna"])
    assert [(r.student, r.attempt) for r in gather(folder).added] == [("bob", 3)], "he went back to his old text"


def test_what_a_hand_in_itself_tells_is_not_told_otherwise(tmp_path, inbound, gather, week):
    """nbgrader's own time, which its files bear out: only the exchange may say something else."""
    inbound("anna", 17, {"ring.py": "first"})
    gather(tmp_path / "exchange")
    before = times(tmp_path, week)
    gather(tmp_path / "exchange", given=DUE - timedelta(days=9), students=["anna"])
    assert times(tmp_path, week) == before


def test_canvas_late_mark_gets_the_time_that_the_instructor_tells(tmp_path, gather, week):
    put(tmp_path / "in.zip", zipped({"doe_LATE_4_5_x.zip": zipped(MINE)}))
    gather(tmp_path / "in.zip")
    late = DUE + timedelta(days=3)
    (told,) = gather(tmp_path / "in.zip", given=late, students=["doe_4"]).timed
    assert told.received == late and told.notes == ["Canvas marks this attempt as late."], "and now by how much"
    assert times(tmp_path, week) == {("doe_4", 1): late}


def test_a_students_zip_is_kept_byte_for_byte(tmp_path, folder, gather):
    data = zipped({"../evil.py": "x", "ring.py": RING})
    put(folder / "anna.zip", data)
    put(folder / "bob.zip", b"not a zip")
    gather(folder)
    assert (tmp_path / "kept" / "week91" / "anna" / "1.zip").read_bytes() == data
    assert (tmp_path / "kept" / "week91" / "bob" / "1.zip").read_bytes() == b"not a zip"


def test_what_is_kept_reads_like_what_was_handed_in(tmp_path, folder, gather, week):
    put_all(
        folder / "anna" / "week91", MINE | {"w.zip": zipped({"cost.py": "x"}), "محمد/ünï.py": "x", "__MACOSX/x": ""}
    )
    (folder / "anna" / "week91" / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(folder / "anna" / "week91" / "pipe.py")
    put(folder / "bob.ipynb", "{}")
    put_all(folder / "carl", {})
    (folder / "eve").symlink_to(tmp_path)
    (folder / "mal.zip").symlink_to(put(tmp_path / "other.zip", zipped(MINE)))
    put(folder / "doe_45_1_ring.py", RING)
    put(folder / "doe_45_2_more.zip", zipped({"cost.py": "x"}))
    put(folder / 'José, "Pepe".zip', zipped(MINE))
    put_all(folder / "Li Wei_12_assignsubmission_file_", MINE)
    put_all(folder / "Li Wei_12_assignsubmission_onlinetext_", {"onlinetext.html": "x"})
    assert not gather(folder).refused
    direct, through = find_submissions(folder, week), find_submissions(tmp_path / "kept", week)
    assert [(e.student, e.attempt) for e in direct] == [(e.student, e.attempt) for e in through]
    for a, b in zip(direct, through, strict=True):
        a, b = load(a, week), load(b, week)
        assert (a.files, a.left_out, a.digest, sorted(a.notes)) == (b.files, b.left_out, b.digest, sorted(b.notes))


def test_canvas_late_marks(tmp_path, gather, week):
    download = put(
        tmp_path / "download.zip",
        zipped(
            {"doe_45_1_lab.zip": zipped(MINE), "roe_LATE_46_2_lab.zip": zipped(MINE), "poe_LATE_47_3_lab.zip": b"x"}
        ),
    )
    with pytest.raises(LabError, match="marks 2 as late and tells no time .* write the deadline of week91"):
        gather(download, rules=Rules())
    assert not list(read_receipts(tmp_path / "kept" / "week91", "week91"))
    rules = Rules(deadlines={"week91": DUE}, late={"grace_minutes": 10, "per_day": 0.1}, ids={"poe_47": "poe"})
    gather(download, rules=rules)
    found = find_submissions(tmp_path / "kept", week)
    assert [(e.student, e.received, e.late) for e in found] == [
        ("doe_45", None, False),
        ("poe", DUE + timedelta(minutes=10, seconds=1), True),
        ("roe_46", DUE + timedelta(minutes=10, seconds=1), True),
    ]
    assert found[2].notes == (
        "Canvas marks this attempt as late.",
        "It does not tell by how much, so this counts as handed in right after the deadline.",
    )
    assert not list((tmp_path / "kept").glob(".collect*"))


def test_a_given_time_holds_for_what_tells_none(tmp_path, gather, folder, week):
    put(folder / "doe_45_1_lab.zip", zipped(MINE))
    put(folder / "roe_LATE_46_2_lab.zip", zipped(MINE))
    put_all(folder / "anna", MINE)
    put_all(folder / "bob", MINE | {"timestamp.txt": "2026-11-19 10:00:00 UTC"})
    after = DUE + timedelta(days=3)
    report = gather(folder, given=after)
    assert "bob says 2026-11-19 10:00+00:00, which its student can write" in report.notes[0]
    assert {e.student: e.received for e in find_submissions(tmp_path / "kept", week)} == {
        "anna": after,
        "bob": after,  # his own file says something else: what he can write weighs less than what was told
        "doe_45": DUE,
        "roe_46": after,
    }


def test_downloads_that_tell_no_time(tmp_path, gather, kept):
    """The same download twice adds nothing; a new one adds what is new, also an old text that came back."""

    def download(name, ring):
        return put(
            tmp_path / name,
            zipped(
                {
                    "Jane Doe_12_assignsubmission_file_/ring.py": ring,
                    "Li Wei_13_assignsubmission_file_/ring.py": "the same",
                }
            ),
        )

    monday, tuesday = download("monday.zip", "A"), download("tuesday.zip", "B")
    wednesday = download("wednesday.zip", "C")
    assert len(gather(monday).added) == 2
    assert [r.student for r in gather(tuesday).added] == ["Jane Doe"]
    assert not gather(monday).added and not gather(tuesday, monday).added
    gather(wednesday)
    again = put(tmp_path / "thursday.zip", zipped({"Jane Doe_12_assignsubmission_file_/ring.py": "B"}))
    assert [(r.student, r.attempt) for r in gather(again).added] == [("Jane Doe", 4)]
    assert not gather(again).added
    assert [files["ring.py"] for files in kept().values()] == [b"A", b"B", b"C", b"B", b"the same"]


def test_whose_newer_attempt_stays_the_last_when_an_old_download_is_read_again_is_told(tmp_path, gather, week):
    """Earlier files that were put back look the same as an old download that is read by mistake."""
    names = [f"{name}_{n}_assignsubmission_file_/ring.py" for n, name in enumerate(("Jane Doe", "Li Wei"))]
    first = put(tmp_path / "first.zip", zipped(dict.fromkeys(names, "A")))
    second = put(tmp_path / "second.zip", zipped({names[0]: "B", names[1]: "A"}))
    later = [DUE + timedelta(days=days) for days in range(3)]
    assert not any(
        "put their earlier" in n for n in (*gather(first, given=later[0]).notes, *gather(second, given=later[1]).notes)
    )
    (told,) = (note for note in gather(first, given=later[2]).notes if "put their earlier" in note)
    assert "newer attempts of Jane Doe stay" in told and "Li Wei" not in told
    assert f"--from {first} --student 'Jane Doe' --received {later[2].isoformat()}`" in told
    for given in (later[0], later[1]):  # no later than what came since: an old download, for certain
        assert not any("put their earlier" in note for note in gather(first, given=given).notes)
    report = gather(first, given=later[2], students=["Jane Doe"])
    assert not any("put their earlier" in note for note in report.notes) and report.timed
    own = tmp_path / "marks" / week.name
    own.mkdir(parents=True)
    with locked(own / LOCK, "busy"), pytest.raises(LabError, match="a `grade run` is writing to"):
        withdraw(tmp_path / "kept", tmp_path / "marks", week, RULES, student="Jane Doe", attempt=1)
    withdraw(tmp_path / "kept", tmp_path / "marks", week, RULES, student="Jane Doe", attempt=1)
    told = gather(first, given=later[2]).notes
    assert any("withdrawn before" in note for note in told), "what was withdrawn is told as such, and once"
    assert not any("put their earlier" in note for note in told)
    hers = [one for one in read_receipts(tmp_path / "kept" / week.name, week.name) if one.student == "Jane Doe"]
    assert [one.attempt for one in hers] == [2], "the other one counts now, and it is told"
    (said,) = left(tmp_path / "kept", week, [Move(one, False) for one in hers])
    assert said.endswith(f"still has attempt 2: `grade withdraw {week.name} 'Jane Doe' --all` takes back every one")
    withdraw(tmp_path / "kept", tmp_path / "marks", week, RULES, student="Jane Doe", undo=True)
    every = withdraw(tmp_path / "kept", tmp_path / "marks", week, RULES, student="Jane Doe", every=True)
    assert [one.receipt.attempt for one in every] == [1, 2] and left(tmp_path / "kept", week, every) == []
    (live := tmp_path / "live").mkdir()
    live.chmod(0o777)
    for text in "ABA":  # put there by students themselves: when, the folder tells
        put_all(live / "anna", {"ring.py": text})
        report = gather(live, given=datetime.now(UTC) + timedelta(days=9), to="other")
        assert not any("put their earlier" in note for note in report.notes)
    assert report.known == 1


@pytest.mark.parametrize(
    "student, name, other",
    [
        ("Jane Doe", "Jane Doe_12_assignsubmission_file_/ring.py", "Li Wei_13_assignsubmission_file_/ring.py"),
        ("doe_45", "doe_45_1_ring.py", "wei_46_2_ring.py"),
    ],
)
def test_what_lies_on_a_platform_is_not_handed_in_anew_by_every_download(tmp_path, gather, kept, student, name, other):
    """Each download holds all that lies there. What came by e-mail meanwhile was replaced by the older file, late."""

    def download(to, **files):
        return put(tmp_path / to, zipped({{"own": name, "other": other}[key]: ring for key, ring in files.items()}))

    gather(download("first.zip", own="A"))
    put_all(tmp_path / "mail" / student, {"ring.py": "B"})
    assert [(r.student, r.attempt) for r in gather(tmp_path / "mail").added] == [(student, 2)]
    added = gather(download("second.zip", own="A", other="X")).added
    assert len(added) == 1 and added[0].student != student
    assert not gather(download("third.zip", own="B", other="X")).added, "now what was mailed lies there as well"
    put_all(tmp_path / "mail" / student, {"ring.py": "A"})
    put_all(tmp_path / "mail" / "zoe", {"ring.py": "Z"})
    assert (student, 3) in [(r.student, r.attempt) for r in gather(tmp_path / "mail").added], "back by e-mail"
    assert [(r.student, r.attempt) for r in gather(download("last.zip", own="C", other="X")).added] == [(student, 4)]


def test_ids_that_come_after_the_first_collection_make_nobody_two(tmp_path, gather, kept):
    """Marks and gradebook know them by the first name: they keep it, and that is told."""
    first, second = (zipped({f"doejane_45_{n}_ring.py": f"x = {n}"}) for n in (1, 2))
    gather(put(tmp_path / "a.zip", first))
    rules = Rules(ids={"doejane_45": "anna", "roemax_46": "max"})
    report = gather(put(tmp_path / "a.zip", first), rules=rules)
    assert report.added == [] and "doejane_45 was collected before [ids] called them anna" in report.notes[0]
    report = gather(
        put(tmp_path / "b.zip", second), put(tmp_path / "c.zip", zipped({"roemax_46_9_ring.py": "y"})), rules=rules
    )
    assert [(r.student, r.attempt) for r in report.added] == [("doejane_45", 2), ("max", 1)]
    assert {student for student, _ in kept()} == {"doejane_45", "max"}


def test_canvas_folder_in_the_download(tmp_path, gather):
    download = put(tmp_path / "d.zip", zipped({"submissions/doe_45_1_lab.zip": zipped(MINE)}))
    assert [r.student for r in gather(download).added] == ["doe_45"]


def test_a_download_may_hold_anything(tmp_path, gather, kept):
    download = put(
        tmp_path / "d.zip",
        zipped(
            {
                "Jane Doe_12_assignsubmission_file_/ring.py": RING,
                "../../evil_1_assignsubmission_file_x.py": "x",
                "/abs_1_assignsubmission_file_x.py": "x",
                "Li_13_assignsubmission_file_/a": "x",
                "Li_13_assignsubmission_file_/a/ring.py": RING,
                "__MACOSX/._x": "",
            },
            links={"Li_13_assignsubmission_file_/link.py": "/etc/passwd"},
        ),
    )
    report = gather(download)
    assert {student for student, _ in kept()} == {"Jane Doe", "Li"}
    assert len(report.notes) == 4 and all(note.endswith("it was not collected") for note in report.notes)
    assert not list(tmp_path.rglob("evil*"))


def test_killed_at_any_moment_the_next_run_completes(tmp_path, inbound, gather, kept):
    for hour, student in enumerate(("anna", "anna", "bob", "carl")):
        inbound(student, hour, {"ring.py": f"{hour}"})
    gather(tmp_path / "exchange", to="whole")
    steps = 0
    while True:
        to = f"kept{steps}"
        if not _killed(partial(gather, tmp_path / "exchange", to=to), steps):
            break
        found = kept(to) if (tmp_path / to / "week91" / "collected.json").exists() else {}
        assert found.items() <= kept("whole").items()  # what is there is whole
        gather(tmp_path / "exchange", to=to)
        assert kept(to) == kept("whole")
        assert not list((tmp_path / to).rglob(".*"))
        steps += 1
    assert steps == 20  # two of each: the marker, four attempts, four receipts, the marker again


def _killed(work, at):
    """Run it in a child that dies, as by kill -9, before or after putting the file number at // 2 in place."""
    child = os.fork()
    if not child:
        real, count = os.replace, [0]

        def replace(*places):
            if count[0] == at:
                os._exit(9)
            real(*places)
            if count[0] + 1 == at:
                os._exit(9)
            count[0] += 2

        os.replace = replace
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_what_cannot_be_read_is_refused_and_the_rest_is_kept(tmp_path, folder, gather, kept, monkeypatch):
    put_all(folder / "anna", MINE)
    put_all(folder / "bob", {"ring.py": "x" * 2500, "cost.py": "x" * 2500})
    put(folder / "carl.zip", b"x" * 5000)
    put_all(folder / "dora", {f"f{n}.py": "" for n in range(20)})
    monkeypatch.setattr("grading.intake.pack.MAX_ATTEMPT", 4000)
    monkeypatch.setattr("grading.intake.pack.MAX_FILES", 10)
    report = gather(folder)
    assert {student for student, _ in kept()} == {"anna"}
    assert report.refused == [
        "bob: bob has more than 0 MiB: it was not collected",
        "carl: carl.zip has more than 0 MiB: it was not collected",
        "dora: dora has more than 10 files: it was not collected",
    ]
    monkeypatch.undo()
    assert [r.student for r in gather(folder).added] == ["bob", "carl", "dora"]


def test_a_hand_in_that_is_still_being_copied_waits(tmp_path, inbound, gather):
    place = inbound("anna", 17, {"ring.py": "ha"})
    (place / "timestamp.txt").unlink()
    report = gather(tmp_path / "exchange")
    assert not report.added and "is being handed in right now: collect again" in report.notes[0]
    put(place / "ring.py", "half no more")
    put(place / "timestamp.txt", "2026-11-20 17:00:00 UTC")
    assert len(gather(tmp_path / "exchange").added) == 1
    old = inbound("bob", 18, MINE)
    (old / "timestamp.txt").unlink()
    os.utime(old, (time.time() - 3600,) * 2)
    assert [r.student for r in gather(tmp_path / "exchange").added] == ["bob"]


@pytest.mark.parametrize("id", ["collected.json", "Collected.JSON"])
def test_a_student_called_like_the_marker_stands_in_nobodys_way(id, tmp_path, inbound, gather, kept):
    inbound(id, 17, {"ring.py": "odd"})
    inbound("zoe", 18, {"ring.py": "hers"})
    report = gather(tmp_path / "exchange")
    assert sorted(r.student for r in report.added) == sorted([id, "zoe"]) and not report.refused
    assert kept() == {(id, 1): {"ring.py": b"odd"}, ("zoe", 1): {"ring.py": b"hers"}}
    assert gather(tmp_path / "exchange").known == 2


def test_ids_join_what_a_student_is_called(tmp_path, folder, inbound, gather, kept):
    inbound("anna", 17, {"ring.py": "one"})
    put(folder / "doe_45_1_ring.py", "two")
    gather(tmp_path / "exchange", folder, rules=Rules(ids={"doe_45": "anna"}))
    assert kept() == {("anna", 1): {"ring.py": b"one"}, ("anna", 2): {"ring.py": b"two"}}


def test_an_extension_for_nobody_is_told(folder, gather):
    put_all(folder / "anna", MINE)
    later = DUE + timedelta(days=1)
    report = gather(
        folder, rules=Rules(deadlines={"week91": DUE}, extensions={"ana": {"week91": later}, "anna": {"week91": later}})
    )
    assert report.notes == ["course.toml extends the deadline of ana, from whom nothing is here; did you mean anna?"]


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda at: at / "nothing", "there is no folder"),
        (lambda at: put(at / "x.zip", b"no zip"), "x.zip is damaged or no zip .*: download it again, as a .zip"),
        (lambda at: put(at / "anna.zip", zipped({f"{PACKAGE}/ring.py": "x"})), "anna.zip is one student's hand-in"),
        (lambda at: put(at / "kept" / "x", "").parent, "is where attempts are kept"),
        (
            lambda at: (put(at / "a" / "inbound" / "x", ""), put(at / "b" / "inbound" / "x", ""), at)[2],
            "is an exchange of several courses: name one of them",
        ),
    ],
)
def test_wrong_sources(tmp_path, gather, make, sentence):
    with pytest.raises(LabError, match=sentence):
        gather(make(tmp_path))
    assert not list((tmp_path / "kept").glob(".collect*"))


def test_wrong_targets(tmp_path, folder, gather, week):
    put_all(folder / "anna", MINE)
    put(tmp_path / "kept" / "week91" / "anna" / "week91" / "ring.py", "nbgrader's own")
    with pytest.raises(LabError, match="holds something else already: name an empty folder"):
        gather(folder)
    put(tmp_path / "file" / "week91", "")
    with pytest.raises(LabError, match="File exists: mend that and collect again"):
        gather(folder, to="file")
    gather(folder, to="good")
    marker = tmp_path / "good" / "week91" / "collected.json"
    marker.write_text(json.dumps({"assignment": "week92", "ended": []}))
    with pytest.raises(LabError, match="for week92, not for week91"):
        gather(folder, to="good")
    marker.write_text("{")
    with pytest.raises(LabError, match="is damaged"):
        find_submissions(tmp_path / "good", week)


def test_a_broken_receipt_is_told_and_nothing_is_overwritten(tmp_path, folder, gather, week):
    put_all(folder / "anna", MINE)
    gather(folder)
    receipt = tmp_path / "kept" / "week91" / "anna" / "1.json"
    receipt.write_text(receipt.read_text()[:-20])
    before = snapshot(tmp_path / "kept")
    for act in (lambda: gather(folder), lambda: find_submissions(tmp_path / "kept", week)):
        with pytest.raises(LabError, match="1.json is not a receipt .*: move it and its .zip away"):
            act()
    assert snapshot(tmp_path / "kept") == before


def test_a_receipt_in_anothers_place_is_told(tmp_path, folder, gather, week):
    put_all(folder / "anna", MINE)
    gather(folder)
    first = tmp_path / "kept" / "week91" / "anna" / "1.json"
    put(first.with_name("2.json"), first.read_bytes())
    with pytest.raises(LabError, match="2.json is not a receipt .*names another attempt"):
        find_submissions(tmp_path / "kept", week)


def test_an_archive_that_grows_while_it_is_collected(tmp_path, folder, gather, monkeypatch):
    put(folder / "anna.zip", b"x" * 3000)
    monkeypatch.setattr("grading.intake.pack.MAX_ATTEMPT", 4000)

    def grow(what, done, total):
        if (what, done) == ("keeping", 0):
            put(folder / "anna.zip", b"x" * 5000)

    report = gather(folder, progress=grow)
    assert report.refused == ["anna: anna.zip has more than 0 MiB: it was not collected"] and not report.added
    assert not list((tmp_path / "kept" / "week91" / "anna").iterdir())


def test_two_at_once_are_refused(tmp_path, folder, gather):
    put_all(folder / "anna", MINE)

    def second(what, done, total):
        with pytest.raises(LabError, match="another `grade collect` into"):
            gather(folder)

    assert len(gather(folder, progress=second).added) == 1


def test_progress_counts_to_the_end(folder, gather):
    for number in range(3):
        put_all(folder / f"s{number}", {"ring.py": f"{number}"})
    seen = []
    gather(folder, progress=lambda *what: seen.append(what))
    assert seen == [("reading", n, 3) for n in range(3)] + [("keeping", n, 3) for n in range(4)]
