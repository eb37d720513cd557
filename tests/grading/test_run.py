"""`grade run` on a small week: marks in files, reruns, kills, faults, refusals. The sandbox's own tests are beside."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from grading import judge, marks, pool, table
from grading import run as running
from grading.intake import find_submissions, load, released
from grading.intake.arrange import arrange
from grading.intake.receipts import NO_TIME
from labkit.checks.markers import strip
from labkit.checks.tasks import load_week
from labkit.errors import LabError
from tests import warm
from tests.checks.miniweek import OPS, make_week

ROOT = Path(__file__).resolve().parents[2]
needs_sandbox = pytest.mark.usefixtures("sandbox")
SOLVED = OPS
BLANK = strip(OPS)
WRONG = OPS.replace("return group.all_reduce(x)", "return x")
TWICE_WRONG = OPS.replace("return 2 * total(x, group)", "return 3 * total(x, group)")


@pytest.fixture
def course(tmp_path):
    """(week, submissions, marks) of a course of one small week, and `hand_in(student, text)`."""
    week = load_week(make_week(tmp_path / "course"))

    def hand_in(student, text, name="ops.py"):
        folder = tmp_path / "submitted" / student / "week91"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return week, tmp_path / "submitted", tmp_path / "marks", hand_in


def points(report):
    return {mark.student: mark.points for mark in report.all}


def graded(course, **more):
    """A run in a process of its own: a grader forks its judges, and must not have computed."""
    week, submissions, folder, _ = course
    done = warm.run("tests.grading.test_run:told_run", [week.folder, submissions, folder, json.dumps(more)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def told_run(words):
    """What `graded` runs: the report as JSON."""
    week, submissions, folder, more = words
    report = running.run(load_week(week), Path(submissions), Path(folder), **json.loads(more))
    print(
        json.dumps(
            {"seed": report.seed, "made": [m.student for m in report.made], "kept": [m.student for m in report.kept]}
        )
    )


def grade(course, *more, env=None):
    """`grade run` as one types it."""
    week, submissions, folder, _ = course
    return warm.run(
        "grading.cli:main",
        ["run", "week91", "--submissions", submissions, "--marks", folder, *more],
        cwd=week.folder.parent,
        env=env,
    )


def mark(course, student, attempt=1):
    return marks.read(marks.path_of(course[2], "week91", student, attempt))


def verdicts(one):
    return {case["test"].rpartition("::")[2]: case["verdict"] for case in one.cases}


def test_a_mark_that_is_kept_takes_over_when_it_was_handed_in(course, tmp_path):
    """`grade collect --received` may tell that after the first run; else lateness would never reach a mark."""
    week, submissions, folder, hand_in = course
    hand_in("anna", SOLVED)
    settings = judge.Settings(7, marks.SANDBOXED, work=tmp_path / "work")
    (entry,) = find_submissions(submissions, week)
    digest = load(entry, week).digest
    marks.write(
        folder,
        marks.Mark(
            "anna",
            "week91",
            key=judge.key(digest, week, settings),
            submission=digest,
            points=3,
            notes=["Late.", NO_TIME],
        ),
    )
    late = datetime(2026, 11, 22, 10, tzinfo=UTC)

    def rerun(one):
        report = running.Report(7)
        assert not list(running._changed([one], week, folder, settings, report, {}))
        return report

    assert not rerun(entry).told
    report = rerun(replace(entry, received=late))
    assert [m.received for m in report.kept] == [late.isoformat()] and len(report.told) == 1
    assert "anna, attempt 1: handed in 2026-11-22T10:00:00+00:00, not unknown" in report.told[0]
    assert mark(course, "anna").received == late.isoformat() and mark(course, "anna").points == 3
    assert mark(course, "anna").notes == ["Late."], "by how much is known now"
    assert not rerun(replace(entry, received=late)).told


@needs_sandbox
def test_each_gets_what_it_earned_and_a_rerun_does_only_what_changed(course):
    week, _, folder, hand_in = course
    for student, text in {"good": SOLVED, "blank": BLANK, "wrong": WRONG, 'third, "O\'Neil" é': TWICE_WRONG}.items():
        hand_in(student, text)
    hand_in("empty", "nothing", name="readme.txt")
    hand_in("renamed", SOLVED, name="ops (1).py")
    (course[1] / "renamed" / "week91" / "runs" / "mine").mkdir(parents=True)
    (course[1] / "renamed" / "week91" / "runs" / "mine" / "run.json").write_text("{}")
    first = graded(course, jobs=2)
    assert first["kept"] == [] and len(first["made"]) == 6
    assert {s: mark(course, s).points for s in first["made"]} == {
        "good": 15,
        "blank": 0,
        "wrong": 9,
        'third, "O\'Neil" é': 10,
        "empty": 0,
        "renamed": 0,
    }
    # 91.2 stands on 91.1, and is judged with the reference's: one mistake counts once.
    assert verdicts(mark(course, "wrong"))["test_twice"] == "passed"
    for student, sentence in (("empty", "no ops.py"), ("renamed", "ops (1).py")):
        one = mark(course, student)
        assert any(sentence in note for note in one.notes), one.notes  # under the class's table
        assert {case["verdict"] for case in one.cases} == {"no result"} and one.complete
        assert all(sentence in case["text"] for case in one.cases), one.cases[0]["text"]
    assert not any(".py" in note or "record of a run" in note for note in mark(course, "good").notes)
    page = "Handed in with the record of a run: runs/mine. It is read with the written task."
    assert page in mark(course, "renamed").notes, "which formgrader's first cell shows"
    assert all(m.isolation == marks.SANDBOXED and m.possible == 15 for m in marks.all_marks(folder, "week91"))

    assert graded(course, jobs=1)["made"] == []
    hand_in("blank", SOLVED)
    again = graded(course, jobs=1)
    assert again["made"] == ["blank"] and len(again["kept"]) == 5 and mark(course, "blank").points == 15
    assert again["seed"] == first["seed"] == mark(course, "good").seed
    # Other tests: everybody anew.
    test = week.folder / "test_week91.py"
    test.write_text(test.read_text().replace('== "ops"', '== "ops" != ""'))
    assert len(graded(course, jobs=2)["made"]) == 6


@needs_sandbox
def test_what_a_test_file_finds_once_is_found_with_the_reference(course):
    week, _, folder, hand_in = course
    test = week.folder / "test_week91.py"
    found = "@once\ndef by(N):\n    return os.getpid()\n\n\n"
    text = test.read_text().replace("import pytest,", "import os, pytest,").replace("call,", "once, call,", 1)
    test.write_text(text.replace("@task", found + "@task", 1).replace("rank=r,", 'what=f"by {by(N)}, x", rank=r,'))
    for student in ("a", "b"):
        hand_in(student, WRONG)
    graded(course, jobs=2)
    (finder,) = set(json.loads((folder / "week91/.reference.json").read_text())["expected"].values())
    told = {
        case["text"].partition(" of rank")[0]
        for student in ("a", "b")
        for case in mark(course, student).cases
        if case["verdict"] == "wrong"
    }
    assert told == {f"by {finder}, x"}


@needs_sandbox
def test_marks_do_not_depend_on_jobs_or_order(course):
    _, _, folder, hand_in = course
    for student, text in {"a": SOLVED, "b": WRONG, "c": BLANK, "d": TWICE_WRONG}.items():
        hand_in(student, text)

    def told():
        return {
            m.student: [(c["test"], c["verdict"], c["text"], c["points"]) for c in m.cases]
            for m in marks.all_marks(folder, "week91")
        }

    seed = graded(course, jobs=1)["seed"]
    alone = told()
    for path in folder.glob("week91/*/*.json"):
        path.unlink()
    assert graded(course, jobs=4)["seed"] == seed
    assert told() == alone


@pytest.mark.thorough
@needs_sandbox
def test_killed_at_any_moment_it_goes_on_and_leaves_no_process(course):
    week, submissions, folder, hand_in = course
    for number in range(5):
        hand_in(f"s{number}", SOLVED if number % 2 else WRONG)
    command = [
        sys.executable,
        "-m",
        "grading.cli",
        "run",
        "week91",
        "--submissions",
        str(submissions),
        "--marks",
        str(folder),
        "--jobs",
        "2",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for written in (0, 1, 3):  # killed before the first mark, after the first, after the third
        process = subprocess.Popen(
            command, cwd=week.folder.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 150
        while len(list(folder.glob("week91/*/1.json"))) < written or not (folder / "week91" / ".lock").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in folder.glob("week91/*/1.json"):
            marks.read(path)  # whole
    before = {path: path.stat().st_mtime_ns for path in folder.glob("week91/*/1.json")}
    gone = time.monotonic() + 20
    while (left := _processes(str(folder))) and time.monotonic() < gone:
        time.sleep(0.1)
    assert not left, left
    done = graded(course, jobs=2)
    assert len(done["made"]) + len(done["kept"]) == 5 and len(done["kept"]) == len(before) >= 3
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {s: mark(course, s).points for s in ("s0", "s1", "s4")} == {"s0": 9, "s1": 15, "s4": 9}
    assert not (folder / "week91" / ".work").exists()


def _processes(word):
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found


@needs_sandbox
def test_an_appeal_repeats_one_verdict_and_writes_nothing(course):
    _, _, folder, hand_in = course
    hand_in("anna", WRONG)
    hand_in("bert", SOLVED)
    seed = graded(course)["seed"]
    before = marks.path_of(folder, "week91", "anna", 1).read_bytes()
    done = grade(course, "--student", "anna", "--seed", seed)
    assert done.returncode == 0, done.stderr
    assert f"anna, attempt 1: 9 of 15, seed {seed}" in done.stdout and "bert" not in done.stdout
    wrong = next(case for case in mark(course, "anna").cases if case["verdict"] == "wrong")
    assert wrong["text"].splitlines()[0] in done.stdout  # the same numbers
    assert marks.path_of(folder, "week91", "anna", 1).read_bytes() == before


def test_a_judge_that_dies_is_no_zero_but_a_matter_for_a_human(course, monkeypatch):
    week, submissions, folder, hand_in = course
    hand_in("good", SOLVED)
    monkeypatch.setattr(running, "_timed", lambda week, settings, *rest: settings)
    tries = folder / "tries"

    def dies(entry, week, settings, submission, box):
        folder.mkdir(exist_ok=True)
        with open(tries, "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(judge, "grade", dies)
    report = running.run(week, submissions, folder, isolation=marks.UNSANDBOXED)
    assert len(tries.read_text()) == 1 + pool.RETRIES
    assert [m.complete for m in report.made] == [False] and "judge ended" in report.made[0].attention[0]
    assert mark(course, "good").possible == 15
    # An incomplete mark is not kept: the next run tries again.
    monkeypatch.setattr(
        judge, "grade", lambda entry, week, settings, submission, box: judge.failed(entry, "x", week, settings, "still")
    )
    report = running.run(week, submissions, folder, isolation=marks.UNSANDBOXED)
    assert [m.student for m in report.made] == ["good"]


def test_what_goes_while_the_class_is_graded_is_no_zero(course, monkeypatch):
    """A group's attempt was withdrawn between the listing and its turn: it had 0 points, and they counted."""
    week, submissions, folder, hand_in = course
    hand_in("gone", SOLVED)

    def goes(week, settings, *rest):
        (submissions / "gone" / "week91" / "ops.py").unlink()
        return settings

    monkeypatch.setattr(running, "_timed", goes)
    report = running.run(week, submissions, folder, isolation=marks.UNSANDBOXED)
    assert [m.complete for m in report.made] == [False]
    assert "has changed since this run began, or is gone" in report.made[0].attention[0]


def test_a_fault_in_a_case_is_tried_again_alone(course, monkeypatch):
    week, submissions, folder, hand_in = course
    for student in ("a", "b"):
        hand_in(student, SOLVED)
    monkeypatch.setattr(running, "_timed", lambda week, settings, *rest: settings)
    folder.mkdir()
    log = folder / "log"

    def overloaded(entry, week, settings, submission, box):
        with open(log, "a") as file:
            file.write(entry.student)
        one = judge.failed(entry, "x", week, settings, "the machine is overloaded")
        one.complete = entry.student == "b" or log.read_text().count("a") == 2
        return one

    monkeypatch.setattr(judge, "grade", overloaded)
    report = running.run(week, submissions, folder, isolation=marks.UNSANDBOXED)
    assert log.read_text() == "aba" and all(m.complete for m in report.made)


def test_without_isolation_it_refuses_and_unsandboxed_marks_say_so(course):
    _, _, folder, hand_in = course
    hand_in("good", SOLVED)
    env = {**os.environ, "PATH": "/nonexistent"}
    refused = grade(course, env=env)
    assert refused.returncode == 2 and not list(folder.glob("week91/*/*.json"))
    assert "bubblewrap is not installed" in refused.stderr and "--unsandboxed" in refused.stderr
    assert refused.stderr.count("\n") == 1
    # Before anything is graded: the reference is not to blame.
    assert refused.stderr.startswith("grade: submissions cannot be shut in on this machine")
    done = grade(course, "--unsandboxed", env=env)
    assert done.returncode == 0 and "UNSANDBOXED" in done.stdout, done.stdout + done.stderr
    one = mark(course, "good")
    assert one.points == 15 and one.isolation == marks.UNSANDBOXED and "UNSANDBOXED" in one.attention[-1]


@needs_sandbox
def test_a_reference_that_does_not_pass_stops_everything(course):
    week, _, folder, hand_in = course
    hand_in("good", SOLVED)
    (week.folder / "ops.py").write_text(WRONG)
    done = grade(course)
    assert done.returncode == 2 and "the reference itself" in done.stderr and "91.1" in done.stderr
    assert not list(folder.glob("week91/*/*.json"))


@pytest.mark.parametrize(
    "make, words", [(lambda course: None, "there is no"), (lambda course: course[1].mkdir(), "no submission")]
)
def test_nothing_to_grade_is_one_sentence(course, make, words):
    make(course)
    with pytest.raises(LabError, match=words):
        running.run(course[0], course[1], course[2])


def test_two_runs_at_once_are_refused(course):
    week, submissions, folder, hand_in = course
    hand_in("good", SOLVED)
    with running._locked(folder / "week91"), pytest.raises(LabError, match="another `grade run`"):
        running.run(week, submissions, folder)


def test_judges_are_born_with_what_the_week_hands_out(course, monkeypatch):
    """Each would take all its solutions out anew, and ask git for its files."""
    week, *_ = course
    monkeypatch.setattr(running.gc, "freeze", lambda: None)  # for good, in a process that goes on with other tests
    released._released.cache_clear()
    running._prepare(week)
    before = released._released.cache_info()
    released.released_week(week)
    after = released._released.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_the_reference_is_compiled_once_as_submissions_are(course, monkeypatch):
    week, *_ = course
    asked = {}

    class Asked(Exception):
        pass

    def sandbox(folder, **options):
        asked.update(options)
        raise Asked

    monkeypatch.setattr(judge, "SandboxRunner", sandbox)
    with pytest.raises(Asked):
        judge.reference(arrange(running.reference_submission(week), week), week, judge.Settings(1, work=course[2]))
    assert asked["precompile"]


def test_the_seed_is_made_once_and_is_its_owners(tmp_path):
    seed = running.class_seed(tmp_path)
    assert running.class_seed(tmp_path) == seed
    assert (tmp_path / ".seed.json").stat().st_mode & 0o077 == 0
    (tmp_path / ".seed.json").write_text("{}")
    with pytest.raises(LabError, match="holds no seed"):
        running.class_seed(tmp_path)


@needs_sandbox
def test_what_the_week_declares_of_labkit_is_in_the_sandbox_and_the_rest_is_refused_by_name(course):
    week, _, folder, hand_in = course
    hand_in("anna", SOLVED.replace("import torch\n", "import torch\nfrom labkit.strict import Config\n", 1))
    graded(course)
    (mark,) = marks.all_marks(folder, week.name)
    assert mark.points == 0 and mark.complete
    assert all("labkit.strict is not part of " in case["text"] for case in mark.cases)
    assert "labkit.strict is not part of task 91.1: of labkit it stands on labkit.comm" in mark.cases[0]["text"]
    registry = week.folder / "tasks.toml"
    registry.write_text('uses = ["labkit.strict"]\n' + registry.read_text())
    assert graded(course)["made"] == ["anna"], "other tests, so another mark"
    (mark,) = marks.all_marks(folder, week.name)
    assert mark.points == mark.possible == 15


def counts(box, tell, total):
    for done in range(total + 1):
        tell(done, total)


def test_how_far_the_reference_is_comes_to_whoever_shows_it(course, tmp_path):
    heard = []
    settings = judge.Settings(1, marks.UNSANDBOXED, work=tmp_path / "work")
    with pool.Pool(course[0], tmp_path, settings, 1) as judges:
        assert judges.alone(counts, 5, told=lambda *numbers: heard.append(numbers)) == 0
    assert heard[-1] == (5, 5) and heard == sorted(heard)


def test_the_minutes_of_the_reference_are_told_with_what_is_left(monkeypatch):
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with table.shown(Console(file=out, width=100)) as told:
        for now[0], done, total in ((0, 0, 0), (1, 1, 40), (20, 10, 40), (22, 11, 40), (60, 30, 40)):
            told(running.Progress(done, total, None))
    assert out.getvalue().splitlines() == [
        table.MEASURED,
        "10 of 40 checks of the course's own solutions, 60 s left",
        "30 of 40 checks of the course's own solutions, 20 s left",
    ]
    screen = Console(file=io.StringIO(), width=150, force_terminal=True)
    with table.shown(screen) as told:
        told(running.Progress(10, 40, None))
        told(running.Progress(0, 7, None, expected=310))
    assert "10/40" in screen.file.getvalue() and table.MEASURED in screen.file.getvalue()
    assert "7 submissions to grade: about 5 minutes if each takes as long" in screen.file.getvalue()


def test_before_the_first_submission_it_is_told_how_long_all_may_take(course, tmp_path, monkeypatch):
    """Three at a time: the reference's seconds twice over for four. Its seconds are made up; nothing is judged."""
    week, submitted, folder, hand_in = course
    measured = judge.Settings(1, marks.UNSANDBOXED, work=tmp_path / "work", total=100.0)
    monkeypatch.setattr(running, "_timed", lambda *given: measured)
    monkeypatch.setattr(pool.Pool, "grade_all", lambda *given: None)
    for student in "abcd":
        hand_in(student, OPS)
    heard = []
    running.run(week, submitted, folder, jobs=3, isolation=marks.UNSANDBOXED, told=heard.append)
    assert [(step.done, step.total, step.expected) for step in heard] == [(0, 4, 200.0)]
    out = io.StringIO()
    with table.shown(Console(file=out, width=200)) as told:
        told(heard[0])
    assert out.getvalue().startswith("4 submissions to grade: about 3 minutes if each takes as long as the course's")


def test_what_is_another_than_was_listed_is_not_judged(course):
    week, submissions, _, hand_in = course
    hand_in("anna", SOLVED)
    (entry,) = find_submissions(submissions, week)
    digest = load(entry, week).digest
    assert judge.as_listed(entry, digest, week).digest == digest
    hand_in("anna", WRONG)
    with pytest.raises(LabError, match="has changed since this run began"):
        judge.as_listed(entry, digest, week)
